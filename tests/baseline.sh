#!/usr/bin/env bash
# Compares short trainings with recorded results, bit by bit (tests/fixtures/baseline/results.txt).
#   tests/baseline.sh SWITCHYARD [CASE...]            compares; without CASE, every case
#   tests/baseline.sh --record SWITCHYARD [CASE...]   prints the lines of the fixture
#
# A case is a sample configuration with a layout, 30 steps on a generated text. Its line has the
# digests of the metrics, without times and rates, and of the tensors of the last checkpoint. The
# kernels are those of AVX2, so that every processor that has it gives the same bits.
#
# Exit code 0: equal; 1: something differs; 77: this processor has no AVX2, or h5dump is missing.
set -euo pipefail
record=
if [[ ${1:-} == --record ]]; then record=yes && shift; fi
switchyard=$(realpath "$1") && shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
grep -qw avx2 /proc/cpuinfo || { echo "this processor has no AVX2"; exit 77; }
command -v h5dump >/dev/null || { echo "h5dump is missing: install hdf5-tools"; exit 77; }
export SWITCHYARD_ISA=avx2 OMP_NUM_THREADS=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# A text of 200 kB: words that a linear congruential generator (Park and Miller, 1988) draws.
awk 'BEGIN {
  n = split("the a track signal wagon engine points siding goes stops waits carries before after near under red green old iron", word, " ")
  for (x = 1; bytes < 200000; bytes += length(w) + 1) {
    x = x * 16807 % 2147483647
    w = word[x % n + 1]
    printf "%s%s", w, x % 13 ? " " : ".\n"
  }
}' >text
"$switchyard" prepare --domain text=text --tokenizer bytes --valid-fraction 0.1 --output data >/dev/null 2>&1

# name, ranks, sample configuration, options
cases=()
for layout in "1 ep=1" "2 ep=2" "2 ep=1 tp=2" "4 ep=2 tp=2"; do
  read -r ranks options <<<"$layout"
  for config in quickstart switch-tiny mixtral-tiny deepseek-tiny; do
    cases+=("$config-$ranks-${options// /-} $ranks $config $(printf -- '--parallel.%s ' $options)")
  done
done
latent="--model.kv_lora_rank=32 --model.qk_rope_head_dim=16 --model.kv_heads=0"
pattern="--model.pattern=local,global --attention.local.window=32"
for dtype in f32 bf16; do
  cases+=("latent-$dtype 2 quickstart --parallel.ep=2 --run.dtype=$dtype $latent"
          "pattern-$dtype 2 quickstart --parallel.ep=2 --run.dtype=$dtype $pattern")
done

# Prints the digest of the tensors of a group of a checkpoint, by name.
digest_of() { # CHECKPOINT GROUP
  local tensor
  h5dump -n "$1/index.h5" | awk -v group="$2" '$1 == "dataset" && index($2, "/" group "/") == 1 { print $2 }' | sort |
    while read -r tensor; do
      echo "$tensor"
      h5dump -d "$tensor" -b LE -o "$work/tensor" "$1/index.h5" >/dev/null
      cat "$work/tensor"
    done | sha256sum | cut -c1-16
}

fixture=$root/tests/fixtures/baseline/results.txt
failed=0
for case in "${cases[@]}"; do
  read -r name ranks config options <<<"$case"
  [[ $# -eq 0 || " $* " == *" $name "* ]] || continue
  rm -rf run
  # shellcheck disable=SC2086 # options are words
  "$root/launch/mpirun.sh" "$ranks" "$switchyard" train "$root/configs/$config.ini" --data.path=data --run.dir=run \
    --train.steps=30 --train.global_batch=8 --train.micro_batch=1 --model.seq_len=64 --run.backend=cpu \
    --train.warmup=5 --run.checkpoint_every=30 $options >log 2>&1 || { cat log; exit 1; }
  line="$name metrics=$(sed -E 's/,"epochs":\{[^}]*\}//; s/"samples":[0-9]*,//; s/"(time|[a-z_]*seconds|[a-z_]*per_second[a-z_]*|unix[a-z_]*)":[^,}]*,?//g' run/metrics.jsonl | sha256sum | cut -c1-16)"
  for group in params optimizer router experts; do line+=" $group=$(digest_of run/checkpoints/step-00000030 $group)"; done
  if [[ $record ]]; then
    echo "$line"
  elif grep -qxF "$line" "$fixture"; then
    echo "$name: equal"
  else
    echo "$name: differs: $line"
    grep "^$name " "$fixture" || echo "  $fixture has no such case"
    failed=1
  fi
done
exit $failed
