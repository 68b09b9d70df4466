#!/usr/bin/env bash
# Tests that every benchmark has a usage text, and refuses an unknown option with exit code 2 and
# one message.
#   tests/bench/arguments.sh ROOT BENCHMARK...
set -euo pipefail
root=$1
shift
die() {
  echo "tests/bench/arguments.sh: $1" >&2
  exit 1
}
[[ $# -gt 0 ]] || die "no benchmark"
export OMP_NUM_THREADS=1

check() { # COMMAND...
  local text code=0
  text=$("$@" --help 2>&1) || die "--help fails: $* --help: $text"
  [[ $(grep -c "^usage: bench_" <<<"$text") -eq 1 && $text == *--help* ]] || die "no usage text, or several: $* --help: $text"
  text=$("$@" --no-such-option 2>&1) || code=$?
  [[ $code -eq 2 ]] || die "exit code $code instead of 2: $* --no-such-option: $text"
  [[ $(grep -c "no-such-option.*--help" <<<"$text") -eq 1 && $text != *"terminate called"* ]] ||
    die "not one message that names --help: $* --no-such-option: $text"
}
for benchmark; do
  check "$benchmark"
  case $benchmark in
    *collectives | *gpu) check "$root/launch/mpirun.sh" 2 "$benchmark" ;;
  esac
done
