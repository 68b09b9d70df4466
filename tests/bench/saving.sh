#!/usr/bin/env bash
# tests/bench/saving.sh [OPTIONS] [PROGRAM]: measures the time for which checkpoints hold up a
# training. PROGRAM is build/switchyard if left out.
#   --rounds N   number of trainings of each kind (3)
#   --steps N    measured steps of each training (100)
#   --threads N  of the training (1); the writer has another core
#   --every LIST numbers of steps between two checkpoints ("10 100")
#
# It trains the model of tests/bench/step.cpp on one rank, with a checkpoint every 10, every 100 and
# no steps, by turns. It measures the steps after step 10: the time from its end to that of the last
# step. It fails if training waits for more than 3 % of this time with a checkpoint every 10 steps,
# or for more than 1 % with one every 100. Keep the machine quiet.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/bench/base_model.sh
source "$root/tests/bench/base_model.sh"
rounds=3 steps=100 threads=1 every="10 100"
read_options "rounds steps threads every" "$@"
# shellcheck source=tests/cli/lib/lib.sh
source "$root/tests/cli/lib/lib.sh" "$program" "$root"
export OMP_NUM_THREADS=$threads

first=10 last=$((10 + steps))
base_model
# Trains once, and adds a line to the file `all`. Its columns are the steps between two checkpoints,
# the share of the time for which training waited, the milliseconds of a checkpoint, tokens/s, and
# the load of the machine.
measure() {  # STEPS
  local load _
  read -r load _ </proc/loadavg
  rm -rf run
  expect_ok "$program" train base.ini --run.dir=run --train.steps=$last --run.checkpoint_every="$1" --run.keep=2 --quiet
  sed -nE 's/^\{"step":([0-9]+),"tokens":([0-9]+),.*"save_seconds":([0-9.e-]+),.*"time":"[^T]*T([0-9]+):([0-9]+):([0-9.]+)Z".*/\1 \2 \3 \4 \5 \6/p' run/metrics.jsonl |
    awk -v every="$1" -v first=$first -v last=$last -v load="$load" '
      { now = $4 * 3600 + $5 * 60 + $6 }
      $1 == first { begin = now; tokens = $2 }
      $1 > first { waited += $3 }
      $1 == last {
        seconds = now - begin + (now < begin ? 86400 : 0)
        saves = every > 0 ? (last - first) / every : 0
        printf "%d %.6f %.3f %.1f %s\n", every, waited / seconds, (saves > 0 ? 1e3 * waited / saves : 0), ($2 - tokens) / seconds, load
        done = 1
      }
      END { exit !done }' | tee -a all || die "metrics.jsonl lacks steps"
}
echo "checkpoint every, share of waiting, ms of a checkpoint, tokens/s, load"
for ((round = 1; round <= rounds; ++round)); do
  for interval in 0 $every; do measure "$interval"; done
done
bytes=$(cat run/checkpoints/step-*$last/* | wc -c)

column() { awk -v every="$1" -v column="$2" -v factor="${3:-1}" '$1 == every { print factor * $column }' all; }
# The speed that a training loses beside the one without checkpoints of the same round, in percent.
lost() { awk -v every="$1" '$1 == 0 { speed = $4 } $1 == every { print 100 * (1 - $4 / speed) }' all; }
echo
echo "A checkpoint has $((bytes / 1000000)) MB. Median (least to greatest) of $rounds trainings, $threads threads:"
echo
echo "| checkpoint every | training waits, % of the time | ms of a checkpoint | tokens/s | throughput lost, % |"
echo "| --- | --- | --- | --- | --- |"
echo "| - | | | $(column 0 4 | summary %.0f) | |"
for interval in $every; do
  echo "| $interval steps | $(column "$interval" 2 100 | summary %.2f) | $(column "$interval" 3 | summary %.1f) | $(column "$interval" 4 | summary %.0f) | $(lost "$interval" | summary %.2f) |"
done
for interval in $every; do
  column "$interval" 2 100 | summary %.4f |
    awk -v steps="$interval" '{ exit $1 > (steps >= 100 ? 1 : 3) }' || die "with a checkpoint every $interval steps, training waits too long"
done
