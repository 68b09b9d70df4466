#!/usr/bin/env bash
# tests/gpu.sh [PART...]: all that only a GPU can show, on a machine with one: these parts in this order, or those named.
#   ops                   the operations' tests, each in a process of its own
#   layouts               the layouts of 1, 2 and 4 ranks on one card
#   memcheck, synccheck   the operations' tests under these tools of compute-sanitizer
#   bench                 tests/bench/gpu.sh
#   initcheck, racecheck  the operations' tests under compute-sanitizer's slow tools
# A part that fails stops no other, and a table at the end says how each went. Builds what is not up to date; without
# cmake, as on a node of a cluster, or where SWITCHYARD_BUILT is set, runs what was built.
# Exit code 1: a part failed; 2: there is no GPU, or no such part.
set -uo pipefail
parts=(ops layouts memcheck synccheck bench initcheck racecheck)
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
for part in "$@"; do
  [[ " ${parts[*]} " == *" $part "* ]] || { echo "gpu.sh: there is no part $part: choose from ${parts[*]}" >&2; exit 2; }
done
[[ $# -eq 0 ]] || parts=("$@")

[[ $({ nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || true; } | head -1) ]] ||
  { echo "gpu.sh: there is no NVIDIA GPU here (nvidia-smi names none)" >&2; exit 2; }
if [[ ! ${SWITCHYARD_BUILT:-} ]] && command -v cmake >/dev/null; then
  cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON -DSWITCHYARD_CUDA=ON --log-level=NOTICE || exit 1
  cmake --build build --parallel "$(nproc)" --target switchyard test_kernels test_mpi bench_gpu || exit 1
fi
# Tests that find no device are skipped, and would count as passed.
build/test_mpi --backend=cuda --gtest_filter=none >/dev/null || {
  build/switchyard doctor
  echo "gpu.sh: this build cannot use the GPU of this machine" >&2
  exit 2
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

ops() {
  local case cases failed=0
  mapfile -t cases < <(build/test_kernels --gtest_list_tests --gtest_filter='*/cuda*' |
    awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }')
  for case in "${cases[@]}"; do
    timeout 300 build/test_kernels --gtest_brief=1 --gtest_filter="$case" >"$log" 2>&1 && continue
    failed=$((failed + 1))
    cat "$log"
    echo "failed: $case"
  done
  echo "$failed of ${#cases[@]} tests failed"
  [[ ${#cases[@]} -gt 0 && $failed -eq 0 ]]
}

layouts() {  # the list that ctest has
  local name ranks dtype cases failed=0
  while read -r name ranks dtype cases; do
    echo "$name: $ranks ranks, $dtype, $cases"
    timeout 1800 launch/mpirun.sh "$ranks" build/test_mpi --backend=cuda --dtype="$dtype" --gtest_brief=1 \
      --gtest_filter="$cases" </dev/null || { failed=1; echo "failed: $name"; }
  done < <(sed -nE 's/^sy_layouts_on_cuda\((.*)\)$/\1/p' tests/CMakeLists.txt)
  return $failed
}

# Errors of the CUDA API are the product's to see, and among them is an event that is not ready when it is asked.
sanitizer() {  # TOOL OPTION...
  compute-sanitizer --tool "$@" --report-api-errors no --error-exitcode 1 --print-limit 20 \
    build/test_kernels --gtest_brief=1 --gtest_filter='*/cuda*'
}
memcheck() { sanitizer memcheck; }
synccheck() { sanitizer synccheck; }
initcheck() { sanitizer initcheck; }
racecheck() { sanitizer racecheck --racecheck-detect-level error; }

bench() { tests/bench/gpu.sh; }

table="" worst=0
for part in "${parts[@]}"; do
  echo "== $part"
  SECONDS=0 result=passed
  if [[ $part == *check ]] && ! command -v compute-sanitizer >/dev/null; then
    result="not run: compute-sanitizer is not installed" worst=1
  elif ! "$part"; then
    result=failed worst=1
  fi
  table+=$(printf '%-10s %4d s  %s' "$part" "$SECONDS" "$result")$'\n'
done
printf '\n%s' "$table"
exit $worst
