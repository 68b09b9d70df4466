#!/usr/bin/env bash
# tests/bench/memory_check.sh [OPTIONS] [PROGRAM]: measures the cost of run.memory_check = digest.
# PROGRAM is build/switchyard if left out.
#   --rounds N   number of trainings of each kind (3)
#   --steps N    measured steps of each training (20)
#   --threads N  of the training (2)
#
# It trains the model of tests/bench/step.cpp on one rank with each optimizer, by turns with and
# without digests. It compares the median steps of each round, and fails if digests cost more than
# 2 % of a step in the median of the rounds. Keep the machine quiet.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/bench/base_model.sh
source "$root/tests/bench/base_model.sh"
rounds=3 steps=20 threads=2
read_options "rounds steps threads" "$@"
# shellcheck source=tests/cli/lib/lib.sh
source "$root/tests/cli/lib/lib.sh" "$program" "$root"
export OMP_NUM_THREADS=$threads

first=3
base_model
optimizers=("adamw" "adamw --train.moment_dtype=bf16" "sgd" "muon")
# Prints the milliseconds of the median step of one training.
median_step() {  # MEMORY_CHECK OPTIONS...
  rm -rf run
  expect_ok "$program" train base.ini --run.dir=run --train.steps=$((first + steps)) --run.checkpoint_every=0 --quiet \
    --run.memory_check="$1" "${@:2}"
  sed -nE 's/^\{"step":([0-9]+),.*"step_seconds":([0-9.e-]+),.*/\1 \2/p' run/metrics.jsonl |
    awk -v first=$first '$1 > first { print 1e3 * $2 }' | summary "%.2f" | sed 's/ .*//'
}
echo "| optimizer | step without, ms | step with digests, ms | cost, % of a step |"
echo "| --- | --- | --- | --- |"
for optimizer in "${optimizers[@]}"; do
  read -ra options <<<"--train.optimizer=$optimizer"
  rm -f pairs
  for ((round = 1; round <= rounds; ++round)); do
    off=$(median_step off "${options[@]}")
    digest=$(median_step digest "${options[@]}")
    echo "$off $digest" >>pairs
  done
  echo "| $optimizer | $(awk '{ print $1 }' pairs | summary %.1f) | $(awk '{ print $2 }' pairs | summary %.1f) |" \
    "$(awk '{ print 100 * ($2 / $1 - 1) }' pairs | summary %.2f) |" | tee -a costs
done
while read -r cost; do
  awk -v cost="$cost" 'BEGIN { exit cost > 2 }' || die "run.memory_check costs more than 2 % of a step"
done < <(sed -nE 's/.*\| (-?[0-9.]+) \(.*/\1/p' costs)
