#!/usr/bin/env bash
# Installs missing packages, builds, and runs the tests, those under mpirun included.
#   tests/run.sh            all labels except sweep
#   tests/run.sh --all      sweeps, too: more cases of the same rules
#   tests/run.sh --quick    only the labels unit and quick: minutes after the build
#   tests/run.sh -R mpi     other arguments go to ctest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  "") set -- -LE '^sweep$' ;;
  --all) shift ;;
  --quick) set -- -L '^(unit|quick)$' -LE '^sweep$' "${@:2}" ;;
esac
launch/install-deps.sh
# .ci/run sets these variables.
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON -DSWITCHYARD_WERROR="${SWITCHYARD_WERROR:-OFF}" \
  ${SWITCHYARD_CUDA_ARCHITECTURES:+"-DSWITCHYARD_CUDA_ARCHITECTURES=$SWITCHYARD_CUDA_ARCHITECTURES"} --log-level=NOTICE
cmake --build build --parallel "$(nproc)"
# --timeout is for tests that set none of their own. A build without tests is an error.
ctest --test-dir build --output-on-failure --no-tests=error --timeout 300 --parallel "$(nproc)" "$@"
