#!/usr/bin/env bash
# Tests batch norms through the commands: training on several layouts, resumption bit for bit, the
# running averages in evaluation and generation, warnings, and commands that refuse them.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

make_data 60 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 12
global_batch = 8
micro_batch = 4
warmup = 2
lr = 0.01
validate_every = 6
validate_windows = 4
[run]
backend = cpu
checkpoint_every = 6
keep = 0
INI
encoder=(--model.norm=batchnorm --model.norm_bias=true --model.kind=encoder --train.mask_rate=0.25)
losses() { sed -nE 's/.*"loss":([^,]*),.*/\1/p' "$1/metrics.jsonl"; }
step() { printf '%s/checkpoints/step-%08d' "$1" "$2"; }

expect_ok "$switchyard" train config.ini --run.dir=run "${encoder[@]}"
[[ $err == *"1 * 4 of the step's 8 sequences: keep the product"* ]] || die "no warning of the batch"
[[ $err != *"sees more than the earlier tokens"* ]] || die "an encoder is warned of later tokens"
losses run >one
awk 'NR == 1 {first = least = $1} $1 < least {least = $1} END {exit !(least < 0.8 * first)}' one || die "the loss does not fall"
expect_ok "$switchyard" inspect run
expect_output "/norm/averages"

# The second half again: every tensor is the same, the averages included.
cp -r run resumed
rm -r "$(step resumed 12)"
expect_ok "$switchyard" train config.ini --run.dir=resumed "${encoder[@]}" --run.resume=true --quiet
cmp <(losses run) <(losses resumed) || die "the resumed run has other losses"
expect_ok "$switchyard" diff "$(step run 12)" "$(step resumed 12)"
expect_exit 1 "$switchyard" diff "$(step run 6)" "$(step run 12)"
expect_output "/norm/averages"

# Layouts with the same dp * train.micro_batch.
for layout in "2 --train.micro_batch=2" "2 --parallel.tp=2" "4 --train.micro_batch=2 --parallel.tp=2"; do
  rm -rf other
  read -r -a words <<<"$layout"
  expect_ok ranks "${words[0]}" train config.ini --run.dir=other "${encoder[@]}" "${words[@]:1}" --quiet
  paste one <(losses other) | awk '{d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) exit 1}' ||
    die "$layout has other losses"
done

# Evaluation does not depend on the batch.
expect_ok "$switchyard" evaluate run --quiet
alone=$out
expect_ok ranks 2 evaluate run --quiet --batch 3
[[ $out == "$alone" ]] || die "two ranks have another loss"
expect_ok "$switchyard" generate run --fill-mask 'token 7 is s[MASK]nt to' --fillings 2

# A decoder is warned, and generates.
expect_ok "$switchyard" train config.ini --run.dir=decoder --model.norm=batchnorm
[[ $err == *"model.norm = batchnorm in a model that predicts later tokens"* ]] || die "no warning of later tokens"
expect_ok "$switchyard" generate decoder --prompt 'token 7' --tokens 8 --temperature 0
together=$out
expect_ok ranks 2 generate decoder --prompt 'token 7' --tokens 8 --temperature 0
[[ $out == "$together" ]] || die "two ranks generate another text"
expect_ok "$switchyard" plan config.ini --model.norm=batchnorm --ranks 4

# Commands and settings that have no batch norms.
expect_error "no family has batch norms" "$switchyard" export decoder exported
expect_error "model.norm = batchnorm with train.lora_rank = 2" "$switchyard" train config.ini \
  --run.dir=lora --model.norm=batchnorm --train.lora_rank=2 --run.init_from=decoder
expect_error "model.norm: rmsnorm here, batchnorm there" "$switchyard" train config.ini --run.dir=decoder \
  --run.resume=true
