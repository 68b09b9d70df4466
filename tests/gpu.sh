#!/usr/bin/env bash
# tests/gpu.sh: all that only a GPU can show, on a machine with one: the operations' tests and the layouts of several ranks on one
# card (label gpu), the operations again under compute-sanitizer's memcheck, racecheck, initcheck and synccheck, and then the
# benchmarks (tests/bench/gpu.sh). Exit code 2: there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $({ nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || true; } | head -1) ]] ||
  { echo "gpu.sh: there is no NVIDIA GPU here (nvidia-smi names none)" >&2; exit 2; }
if command -v cmake > /dev/null; then # without, as on a node of a cluster, what was built is run
  cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON -DSWITCHYARD_CUDA=ON --log-level=NOTICE
  cmake --build build --parallel "$(nproc)"
fi
ctest --test-dir build --output-on-failure --no-tests=error -L gpu
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck initcheck synccheck; do
    echo "compute-sanitizer --tool $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 20 build/test_kernels --gtest_brief=1 \
      --gtest_filter='*/cuda*'
  done
else
  echo "compute-sanitizer is not installed: its checks were not made" >&2
fi
tests/bench/gpu.sh
