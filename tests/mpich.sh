#!/usr/bin/env bash
# tests/mpich.sh [CTEST-ARGUMENT...]: tests build/ with MPICH in place of its MPI library.
#
# Only dist/, the program and the mpi tests contain MPI, so it builds these again. Without arguments
# it runs some mpi tests, and short trainings on 2 and 4 ranks. Their losses and weights must equal
# recorded ones of Open MPI, bit for bit. At the end, build/ has its own MPI library again. Without
# MPICH, the script only says how to install it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for program in mpicc.mpich mpiexec.mpich; do
  command -v $program >/dev/null || {
    echo "tests/mpich.sh: skipped: there is no $program: launch/install-deps.sh --dev installs MPICH"
    exit 0
  }
done
[[ -f build/CMakeCache.txt ]] || { echo "tests/mpich.sh: there is no build/: call tests/run.sh first" >&2; exit 2; }
[[ $# -gt 0 ]] || set -- -R '^(ends|mpi_2|mpi_transport_3|baseline)$'

configure() {  # MPI-COMPILER LAUNCHER
  cmake -S . -B build -U 'MPI_*' -U 'MPIEXEC_*' -DMPI_C_COMPILER="$1" -DMPIEXEC_EXECUTABLE="$2" --log-level=NOTICE >/dev/null
}
targets=(switchyard test_ends test_mpi test_faults)
build() { cmake --build build --parallel "$(nproc)" --target "${targets[@]}" >/dev/null; }
of_cache() { sed -n "s/^$1:[A-Z]*=//p" build/CMakeCache.txt; }
own=("$(of_cache MPI_C_COMPILER)" "$(of_cache MPIEXEC_EXECUTABLE)")
trap 'configure "${own[@]}" && build' EXIT
configure "$(command -v mpicc.mpich)" "$(command -v mpiexec.mpich)"
build
ldd build/switchyard | grep -q libmpich || { echo "tests/mpich.sh: the program is not linked with MPICH" >&2; exit 1; }
ctest --test-dir build --output-on-failure --no-tests=error --timeout 300 --parallel "$(nproc)" "$@"
