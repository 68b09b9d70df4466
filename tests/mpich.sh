#!/usr/bin/env bash
# tests/mpich.sh [CTEST-ARGUMENT...]: tests build/ with MPICH in place of its MPI library.
# tests/mpich.sh --all [CTEST-ARGUMENT...]: builds everything in build-mpich/, and runs all tests.
#
# Only dist/, the program and the mpi tests contain MPI, so it builds these again in build/. Without
# arguments it runs some mpi tests, and short trainings on 2 and 4 ranks. Their losses and weights
# must equal recorded ones of Open MPI, bit for bit. At the end, build/ has its own MPI library
# again. Without MPICH, the script only says how to install it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for program in mpicc.mpich mpiexec.mpich; do
  command -v $program >/dev/null || {
    echo "tests/mpich.sh: skipped: there is no $program: launch/install-deps.sh --dev installs MPICH"
    exit 0
  }
done
folder=build build_type=() targets=(--target switchyard test_ends test_mpi test_faults)
if [[ ${1:-} == --all ]]; then
  shift
  folder=build-mpich build_type=(-DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON) targets=()
  set -- -LE '^sweep$' "$@"
else
  [[ -f build/CMakeCache.txt ]] || { echo "tests/mpich.sh: there is no build/: call tests/run.sh first" >&2; exit 2; }
  [[ $# -gt 0 ]] || set -- -R '^(ends|mpi_2|mpi_transport_3|baseline)$'
fi

configure() {  # MPI-COMPILER LAUNCHER
  cmake -S . -B $folder "${build_type[@]}" -U 'MPI_*' -U 'MPIEXEC_*' \
    -DMPI_C_COMPILER="$1" -DMPIEXEC_EXECUTABLE="$2" --log-level=NOTICE >/dev/null
}
build() { cmake --build $folder --parallel "$(nproc)" "${targets[@]}" >/dev/null; }
of_cache() { sed -n "s/^$1:[A-Z]*=//p" $folder/CMakeCache.txt; }
if [[ $folder == build ]]; then
  own=("$(of_cache MPI_C_COMPILER)" "$(of_cache MPIEXEC_EXECUTABLE)")
  trap 'configure "${own[@]}" && build' EXIT
fi
configure "$(command -v mpicc.mpich)" "$(command -v mpiexec.mpich)"
build
ldd $folder/switchyard | grep -q libmpich || { echo "tests/mpich.sh: the program is not linked with MPICH" >&2; exit 1; }
cc -O2 -shared -fPIC -o $folder/mpich_waits.so tests/dist/mpich_waits.c
LD_PRELOAD=$PWD/$folder/mpich_waits.so \
  ctest --test-dir $folder --output-on-failure --no-tests=error --timeout 300 --parallel "$(nproc)" "$@"
