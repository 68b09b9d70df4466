#!/usr/bin/env bash
# tests/fuzz/fuzz.sh [OPTIONS] [PROGRAM]: runs the fuzz targets one after another
# (docs/reliability/fuzzing.md). PROGRAM is build-fuzz/fuzz if left out: cmake --preset fuzz &&
# cmake --build --preset fuzz. Exit code 1: an input made a target fail.
#   --minutes N     of all targets together (60)
#   --target NAME   this target alone; may be repeated
#   --runs N        at most N runs of each target
#   --journal FILE  tests/fuzz/journal.jsonl
#   --no-journal    adds nothing to the journal
#   --write-page    puts the table of the journal into docs/reliability/fuzzing.md, and runs nothing
# The journal has the seconds of processor time, so that a busy machine changes no rate.
# Inputs that reach new code stay in build-fuzz/corpus, findings in build-fuzz/findings.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
minutes=60 journal=$root/tests/fuzz/journal.jsonl targets=() limit=() action=run
while [[ ${1:-} == --* ]]; do
  case $1 in
    --minutes) minutes=${2:?$1 needs a value} ;;
    --target) targets+=("${2:?$1 needs a value}") ;;
    --runs) limit=("-runs=${2:?$1 needs a value}") ;;
    --journal) journal=$(realpath "${2:?$1 needs a value}") ;;
    --no-journal) journal='' ;;
    --write-page) action=$1 ;;
    *) sed -nE '2,/^set/s/^# ?//p' "$0" >&2 && exit 2 ;;
  esac
  case $1 in --no-journal | --write-page) shift ;; *) shift 2 ;; esac
done
program=$(realpath "${1:-$root/build-fuzz/fuzz}")
if [[ $action == --write-page ]]; then
  "$program" --summary "$journal" | bash "$root/tests/page_table.sh" "$root/docs/reliability/fuzzing.md"
  exit
fi
mapfile -t all < <("$program" --list)
((${#targets[@]} > 0)) || targets=("${all[@]}")
commit=$("$program" --commit)
work=$(dirname "$program")
mkdir -p "$work/corpus" "$work/findings"
# Targets write their inputs to files.
TMPDIR=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo /tmp)" switchyard-fuzz-XXXXXX)
export TMPDIR OMP_NUM_THREADS=1
trap 'rm -rf "$TMPDIR"' EXIT
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=4:detect_stack_use_after_return=0
export UBSAN_OPTIONS=print_stacktrace=1
TIMEFORMAT='%U %S'

# Bounds of one input, as in tests/fuzz/targets.h.
bounds=(-timeout=20 -malloc_limit_mb=256 -rss_limit_mb=2048)
seconds=$(awk -v minutes="$minutes" -v n=${#targets[@]} 'BEGIN { printf "%d", minutes * 60 / n + 0.5 }')
((seconds > 0)) || seconds=1
failed=0 number=0
for target in "${targets[@]}"; do
  [[ -d $root/tests/fuzz/corpus/$target ]] || { echo "fuzz.sh: there is no target $target" >&2 && exit 2; }
  left=$(((${#targets[@]} - number) * seconds))
  number=$((number + 1))
  printf '%s (%d of %d), up to %d s; all end within %d min %02d s\n' "$target" $number ${#targets[@]} "$seconds" \
    $((left / 60)) $((left % 60))
  mkdir -p "$work/corpus/$target"
  # Short inputs are fast, and libFuzzer changes fast ones more often. The files of the corpus are
  # read whole.
  largest=$(find "$root/tests/fuzz/corpus/$target" -type f -printf '%s\n' | sort -n | tail -n 1)
  max_len=$((largest > 512 ? largest : 512))
  log=$work/findings/$target.log
  code=0 found=0
  {
    time "$program" "$target" "${bounds[@]}" "${limit[@]}" -max_total_time="$seconds" -max_len=$max_len \
      -entropic_scale_per_exec_time=1 \
      -print_final_stats=1 -artifact_prefix="$work/findings/$target-" "$work/corpus/$target" \
      "$root/tests/fuzz/corpus/$target" >"$log" 2>&1
  } 2>"$TMPDIR/time" || code=$?
  ((code == 0 || code == 72)) || found=1  # 72: interrupted by SIGINT
  took=$(awk '{ printf "%.1f", $1 + $2 }' "$TMPDIR/time")
  runs=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)$/\1/p' "$log" | tail -n 1)
  if [[ -z $runs ]]; then
    echo "fuzz.sh: $target did not run: see $log" >&2
    failed=1
    continue
  fi
  printf '  %s runs in %s s of processor time, %s\n' "$runs" "$took" \
    "$( ((found)) && echo "a finding: see $log" || echo "no finding")"
  ((!found)) || failed=1
  [[ -z $journal ]] ||
    printf '{"target":"%s","runs":%d,"findings":%d,"seconds":%s,"commit":"%s","date":"%s"}\n' \
      "$target" "$runs" $found "$took" "$commit" "$(date -u +%F)" >>"$journal"
done
exit $failed
