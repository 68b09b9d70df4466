#!/usr/bin/env bash
# tests/soak.sh [OPTIONS] [PROGRAM]: trains under launch/supervise.sh while ranks and launchers are
# killed, and compares the weights with those of an undisturbed run. It is no part of the other
# tests: it takes up to twice its minutes. PROGRAM is build/switchyard if left out.
#   --minutes N      length of the disturbed run (60)
#   --every SECONDS  time between two failures (60)
#   --least SHARE    least share of the time that completed steps must take (0.9)
#   --seed N         of the choice of the failures
#   --ranks N        (2)
#   --beside yes     both runs go on at once, each with half of the machine. At the end the shorter
#                    one makes the rest of the steps (no)
#
# It prints the failures, and the share of useful time: the sum of step_seconds of all steps, each
# counted once, by the time of the disturbed run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
minutes=60 every=60 least=0.9 seed=1 ranks=2 beside=no
while [[ ${1:-} == --* ]]; do
  case $1 in
    --minutes | --every | --least | --seed | --ranks | --beside) printf -v "${1#--}" %s "${2:?$1 needs a value}" ;;
    *) sed -nE '2,/^set/s/^# ?//p' "$0" >&2 && exit 2 ;;
  esac
  shift 2
done
program=$(realpath "${1:-$root/build/switchyard}")
RANDOM=$seed
# shellcheck source=tests/cli/lib/lib.sh
source "$root/tests/cli/lib/lib.sh" "$program" "$root"
# shellcheck source=tests/cli/lib/supervised.sh
source "$root/tests/cli/lib/supervised.sh"

make_data 60
small_config <<'INI'
[train]
steps = 1000000000
schedule = constant
lr = 1e-4
global_batch = 32
micro_batch = 4
[run]
backend = cpu
checkpoint_every = 50
log_every = 1000
INI
sed -i 's/^d_model = .*/d_model = 64/; s/^seq_len = .*/seq_len = 32/' config.ini
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
run=$work/run supervisor='' undisturbed=''
trap 'kill -TERM $supervisor $undisturbed 2>/dev/null || true; wait; cd /; rm -rf "$work"' EXIT

begin=$EPOCHREALTIME
"$root/launch/supervise.sh" --restarts $((minutes * 60 / every + 10)) --period 86400 \
  "$ranks" "$program" train config.ini --run.dir="$run" --quiet >out 2>err &
supervisor=$!
if [[ $beside == yes ]]; then
  "$root/launch/mpirun.sh" "$ranks" "$program" train config.ini --run.dir=alone --quiet >alone.out 2>&1 &
  undisturbed=$!
fi
# Failures: a signal to a process of this name.
failures=("KILL switchyard" "SEGV switchyard" "KILL mpirun" "TERM mpirun" "KILL mpirun.sh")
count=0
for ((next = every; next < minutes * 60; next += every)); do
  sleep "$(awk -v begin="$begin" -v now="$EPOCHREALTIME" -v next_time="$next" 'BEGIN { rest = begin + next_time - now; print (rest > 0 ? rest : 0) }')"
  kill -0 "$supervisor" 2>/dev/null || die "the supervisor ended: $(tail -n 30 err)"
  read -r signal name <<<"${failures[RANDOM % ${#failures[@]}]}"
  mapfile -t candidates < <(processes_of "$run" "$name" | sort -n)
  ((${#candidates[@]} > 0)) || continue
  [[ $name == switchyard ]] || candidates=("${candidates[0]}")  # not a subshell of a script
  process=${candidates[RANDOM % ${#candidates[@]}]}
  kill "-$signal" "$process" 2>/dev/null || continue
  count=$((count + 1))
  echo "$(($(date +%s) - ${begin%.*})) s: SIG$signal to $name, process $process, after step $(steps "$run")"
done
sleep "$(awk -v begin="$begin" -v now="$EPOCHREALTIME" -v end="$((minutes * 60))" 'BEGIN { rest = begin + end - now; print (rest > 0 ? rest : 0) }')"
kill -TERM "$supervisor"
code=0
wait "$supervisor" || code=$?
seconds=$(awk -v begin="$begin" -v now="$EPOCHREALTIME" 'BEGIN { print now - begin }')
[[ $code -eq 0 ]] || die "exit code $code: $(tail -n 30 err)"
last=$(steps "$run")
cut -f 2- "$run/supervisor.log"
share=$(sed -E 's/.*"step_seconds":([0-9.e-]+),.*/\1/' "$run/metrics.jsonl" | awk -v seconds="$seconds" '{ sum += $1 } END { printf "%.3f", sum / seconds }')
again=$(awk -F '\t' 'NR > 2 && $3 != "-" { sum += reached - $3 } { reached = $4 } END { print sum + 0 }' "$run/supervisor.log")
echo "$count failures in $seconds s, $last steps, $again of them computed again; share of useful time: $share"
if [[ $beside == yes ]]; then
  kill -TERM "$undisturbed"
  code=0
  wait "$undisturbed" || code=$?
  # 3: stopped as asked
  [[ $code -eq 3 ]] || die "exit code $code of the undisturbed run: $(tail -n 30 alone.out)"
  shorter=alone other=$(steps alone)
  ((other <= last)) || shorter=$run last=$other
  expect_ok start "$ranks" "$program" train config.ini --run.dir="$shorter" --run.resume=true --train.steps="$last" --quiet
else
  expect_ok start "$ranks" "$program" train config.ini --run.dir=alone --train.steps="$last" --quiet
fi
# A stop in between ends a window of steps in the history of the experts. Nothing computes with it.
call "$program" diff alone "$run"
[[ $code -le 1 && -z $err ]] || die "diff failed"
! grep -vE "^/experts/" .out | grep -q "^/" || die "the weights of step $last differ"
echo "the weights of step $last are those of an undisturbed run, bit by bit"
awk -v share="$share" -v least="$least" 'BEGIN { exit share < least }' || die "the share is below $least"
