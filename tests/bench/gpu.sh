#!/usr/bin/env bash
# tests/bench/gpu.sh [REPORT]: what the product reaches on this machine's GPU: the roofs, every operation, MoE layers beside
# PyTorch (of $SWITCHYARD_PYTHON or python3, where it has one), a training step. Tables on standard output, and as
# Markdown in REPORT (default: build/gpu-NAME-DATE.md). Builds what is not up to date; without cmake, as on a node of a
# cluster, or where SWITCHYARD_BUILT is set, runs what was built. Exit code 2: there is no GPU.
# With several GPUs, CUDA_VISIBLE_DEVICES says which one.
set -euo pipefail
card=$({ nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || true; } | head -1)
[[ $card ]] || { echo "gpu.sh: there is no NVIDIA GPU here (nvidia-smi names none)" >&2; exit 2; }
report=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../../build/gpu-${card// /-}-$(date +%F).md}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ ! ${SWITCHYARD_BUILT:-} ]] && command -v cmake >/dev/null; then
  cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON -DSWITCHYARD_CUDA=ON --log-level=NOTICE >&2
  cmake --build build --parallel "$(nproc)" --target bench_gpu >&2
fi
echo "gpu.sh: what is measured is also written to $report" >&2
exec build/bench_gpu --report "$report"
