#!/usr/bin/env bash
# Tests training in bf16 on CPU ranks: the loss is near that of f32 on every layout, and any
# checkpoint can be resumed.
source "$2/tests/cli/lib/lib.sh"
two=("$root/launch/mpirun.sh" 2)

expect_ok "$switchyard" prepare --domain code="$root/kernels" --tokenizer bytes --valid-fraction 0.02 --output data
cat >config.ini <<'INI'
[model]
layers = 2
d_model = 64
heads = 4
kv_heads = 2
seq_len = 64
[moe]
experts = 4
top_k = 2
d_ff = 48
capacity_factor = 0
[train]
steps = 50
global_batch = 32
micro_batch = 16
lr = 1e-3
warmup = 10
[data]
path = data
[run]
backend = cpu
log_every = 10
checkpoint_every = 25
keep = 0
INI
# Prints the mean loss of the last twenty steps.
loss() { sed -n 's/.*"step":\([0-9]*\),.*"loss":\([0-9.]*\).*/\1 \2/p' "$1/metrics.jsonl" |
  awk '$1 > 30 { sum += $2; n++ } END { print n == 20 ? sum / n : 0 }'; }
field() { sed -n 's/^ "'"$1"'": \([0-9.]*\).*/\1/p' <<<"$out"; }
near() { # A B PART
  awk -v a="$1" -v b="$2" -v share="$3" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 <= (share * a) ^ 2) }' || die "$1 is not near $2"
}

expect_ok "$switchyard" train config.ini --run.dir=f32 --quiet
expect_ok "$switchyard" train config.ini --run.dir=bf16 --run.dtype=bf16 --quiet
near "$(loss f32)" "$(loss bf16)" 0.005
expect_exit 1 "$switchyard" diff f32 bf16
expect_ok "${two[@]}" "$switchyard" train config.ini --run.dir=ep2 --run.dtype=bf16 --quiet --parallel.ep=2
near "$(loss f32)" "$(loss ep2)" 0.005
expect_ok "${two[@]}" "$switchyard" train config.ini --run.dir=tp2 --run.dtype=bf16 --quiet --parallel.tp=2 \
  --parallel.etp=2
near "$(loss f32)" "$(loss tp2)" 0.005

# A resume from the middle checkpoint gives bitwise the same result, since it holds the f32 values.
for run in bf16 ep2; do
  cp -r $run again
  rm -r again/checkpoints/step-00000050
  how=("$switchyard")
  [[ $run == bf16 ]] || how=("${two[@]}" "$switchyard")
  expect_ok "${how[@]}" train $run/config.ini --run.dir=again --run.resume=true --quiet
  expect_ok "$switchyard" diff $run again
  rm -r again
done
# A checkpoint can be resumed on another layout and in the other type.
expect_ok "${two[@]}" "$switchyard" train config.ini --run.dir=bf16 --run.resume=true --run.dtype=bf16 --quiet \
  --train.steps=52 --parallel.tp=2
expect_ok "$switchyard" train config.ini --run.dir=bf16 --run.resume=true --run.dtype=f32 --quiet --train.steps=54
expect_ok "$switchyard" inspect bf16 --verify

# Commands that read the run compute in its type.
expect_ok "$switchyard" evaluate f32 --json
exact=$(field loss)
expect_ok "$switchyard" evaluate tp2 --json
near "$exact" "$(field loss)" 0.01
alone=$(field loss)
expect_ok "${two[@]}" "$switchyard" evaluate tp2 --json
near "$alone" "$(field loss)" 0.002
expect_ok "$switchyard" generate tp2 --prompt "const " --tokens 24 --temperature 0
[[ ${#out} -ge 24 ]] || die "no text"

# Export and import again. bf16 files hold the weights that the model computes with; they are
# imported as f32.
expect_ok "$switchyard" export ep2 out --dtype bf16
expect_ok "$switchyard" import out back
for run in ep2 back; do
  expect_ok "$switchyard" evaluate $run --tokens 99,111,110,115,116 --logits $run.h5 --quiet
done
expect_ok h5diff --delta=0.1 ep2.h5 back.h5 /logits
