#!/usr/bin/env bash
# tests/bench/restart.sh [OPTIONS] [PROGRAM]: measures how long a training stands still if a rank is
# killed, until the restarted ranks have completed a step. PROGRAM is build/switchyard if left out.
#   --rounds N       number of kills (5)
#   --ranks N        (2)
#   --most SECONDS   the longest restart that is accepted (10)
#
# It trains the model of tests/bench/step.cpp under launch/supervise.sh, and kills one rank after
# another. The sections of a restart end with the launcher, and when supervisor.log,
# provenance.jsonl and the step in metrics.jsonl were written.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/bench/base_model.sh
source "$root/tests/bench/base_model.sh"
rounds=5 ranks=2 most=10
read_options "rounds ranks most" "$@"
# shellcheck source=tests/cli/lib/lib.sh
source "$root/tests/cli/lib/lib.sh" "$program" "$root"
# shellcheck source=tests/cli/lib/supervised.sh
source "$root/tests/cli/lib/supervised.sh"
export OMP_NUM_THREADS=1

base_model
run=$work/run
trap 'kill -TERM "${supervisor:-}" 2>/dev/null || true; wait; cd /; rm -rf "$work"' EXIT
"$root/launch/supervise.sh" --restarts $((rounds + 1)) "$ranks" "$program" train base.ini \
  --run.dir="$run" --train.micro_batch=$((8 / ranks)) --run.checkpoint_every=5 --run.keep=2 --quiet >out 2>err &
supervisor=$!
exec {silence}<> <(:)
# Waits a hundredth of a second without a new process.
pause() { read -rt 0.01 -u "$silence" || true; }
lines_of() { if [[ -f $run/$1 ]]; then wc -l <"$run/$1"; else echo 0; fi; }
# Prints the time of the first step of the latest start, in seconds since 1970. Fails if there is
# none yet.
first_step() {
  local step time
  step=$(tail -n 1 "$run/provenance.jsonl" | sed -E 's/^.*"first_step": *([0-9]+).*/\1/')
  time=$(sed -nE "s/^\{\"step\":$step,.*\"time\":\"([^\"]*)\".*/\1/p" "$run/metrics.jsonl")
  # The line may be of the killed start: it is cut off after provenance.jsonl was written.
  [[ -n $time && $(date -d "$time" +%s%3N) -gt $(date -r "$run/provenance.jsonl" +%s%3N) ]] || return 1
  date -d "$time" +%s.%N
}
restarted() { [[ $(lines_of provenance.jsonl) -ge $1 ]] && first_step >/dev/null 2>&1; }  # STARTS
written() { stat -c %.9Y "$run/$1"; }

names=(launcher leftovers load step all)
declare -A texts=([launcher]="the launcher ends the other ranks and itself" [leftovers]="supervisor: end of the attempt, leftovers"
                  [load]="start of the ranks; verification and load of the checkpoint"
                  [step]="first step" [all]="all")
echo "seconds: ${names[*]}, load"
for ((round = 1; round <= rounds; ++round)); do
  wait_until "start $round" started "$run" "$round" 7
  read -r load _ </proc/loadavg
  mapfile -t processes < <(processes_of "$run" switchyard | sort -n)
  launcher=$(processes_of "$run" "$(basename "$mpiexec")")
  [[ -n $launcher ]] || launcher=$(processes_of "$run" "$(basename "$(readlink -f "$(command -v "$mpiexec")")")")
  [[ ${#processes[@]} -eq $ranks && -n $launcher ]] || die "other processes: ranks ${processes[*]}, launcher $launcher"
  killed=$EPOCHREALTIME
  kill -KILL "${processes[round % ranks]}"
  while kill -0 "$launcher" 2>/dev/null; do pause; done
  ended=$EPOCHREALTIME
  wait_until "restart $round" restarted $((round + 1))
  step=$(first_step)
  awk -v a="$killed" -v b="$ended" -v c="$(written supervisor.log)" \
    -v d="$(written provenance.jsonl)" -v e="$step" -v load="$load" \
    'BEGIN { printf "%.2f %.2f %.2f %.2f %.2f %s\n", b - a, c - b, d - c, e - d, e - a, load }' | tee -a all
done
bytes=$(cat "$run"/checkpoints/step-????????/* | wc -c)
count=$(compgen -G "$run/checkpoints/step-????????" | wc -l)
kill -TERM "$supervisor"
code=0
wait "$supervisor" || code=$?
[[ $code -eq 0 ]] || die "exit code $code: $(tail -n 30 err)"

echo
echo "$ranks ranks, a checkpoint of $((bytes / count / 1000000)) MB, $rounds restarts. Median (least to greatest), seconds:"
echo
echo "| from the death of a rank to the next step | s |"
echo "| --- | --- |"
for i in "${!names[@]}"; do
  echo "| ${texts[${names[i]}]} | $(awk -v column=$((i + 1)) '{ print $column }' all | summary %.2f) |"
done
awk -v most="$most" '$5 > most { late = 1 } END { exit late }' all || die "a restart took longer than $most s"
