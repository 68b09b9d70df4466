#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test, those under mpirun included. Arguments go to ctest:
# tests/run.sh -R mpi
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
launch/install-deps.sh
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON --log-level=NOTICE
cmake --build build --parallel "$(nproc)"
# --timeout is for tests that set none of their own. A build without tests is an error.
ctest --test-dir build --output-on-failure --no-tests=error --timeout 300 --parallel "$(nproc)" "$@"
