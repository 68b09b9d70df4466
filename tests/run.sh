#!/usr/bin/env bash
# Installs missing packages, builds, and runs every test, those under mpirun included.
#   tests/run.sh --quick    only the labels unit and quick: minutes after the build
#   tests/run.sh -R mpi     other arguments go to ctest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ${1:-} == --quick ]]; then set -- -L '^(unit|quick)$' "${@:2}"; fi
launch/install-deps.sh
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON -DSWITCHYARD_WERROR="${SWITCHYARD_WERROR:-OFF}" --log-level=NOTICE
cmake --build build --parallel "$(nproc)"
# --timeout is for tests that set none of their own. A build without tests is an error.
ctest --test-dir build --output-on-failure --no-tests=error --timeout 300 --parallel "$(nproc)" "$@"
