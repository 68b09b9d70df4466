#!/usr/bin/env bash
# Tests encoders through the commands: training on masked tokens, resumption, evaluation, fillings,
# logits, export and import, plans, and the errors of commands that only decoders have.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 30
global_batch = 8
micro_batch = 2
warmup = 2
lr = 0.01
validate_every = 15
validate_windows = 4
[run]
backend = cpu
checkpoint_every = 15
INI
encoder=(--model.kind=encoder --train.mask_rate=0.25)
losses() { sed -nE 's/.*"loss":([^,]*),.*/\1/p' "$1/metrics.jsonl"; }

# The mask token is the id after those of the bytes, which has a row of its own.
expect_ok "$switchyard" train config.ini --run.dir=run "${encoder[@]}" --train.mask_whole_words=true
expect_output "generate run --fill-mask"
grep -q "^mask_token = 257" run/config.ini || die "the mask token is not recorded"
grep -q "^objective = masked" run/config.ini || die "the objective is not recorded"
grep -q "^attention = full" run/config.ini || die "attention is not full"
losses run >one
awk 'NR == 1 {first = $1} {last = $1} END {exit !(last < 0.8 * first)}' one || die "the loss does not fall"

# It is resumed on another layout, with the same losses.
expect_ok ranks 2 train config.ini --run.dir=two "${encoder[@]}" --train.mask_whole_words=true --quiet
losses two >of_two
paste one of_two | awk '{d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) exit 1}' || die "two ranks have other losses"
cp -r run resumed
rm -r resumed/checkpoints/*30
expect_ok ranks 2 train config.ini --run.dir=resumed "${encoder[@]}" --train.mask_whole_words=true --run.resume=true \
  --parallel.tp=2 --quiet
paste <(losses resumed) one | awk '{d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) exit 1}' ||
  die "the resumed run has other losses"
expect_error "model.kind: decoder here, encoder there" "$switchyard" train config.ini --run.dir=run --run.resume=true

# Evaluation has the masked loss, the same on any layout, or the pseudo-perplexity.
expect_ok "$switchyard" evaluate run --quiet
expect_output "masked loss"
alone=$out
expect_ok "$switchyard" experts run
expect_output "masked loss"
[[ $out != *perplexity* && $out != *bits/byte* ]] || die "the report has a perplexity of hidden tokens"
expect_ok ranks 2 evaluate run --quiet --batch 3
[[ $out == "$alone" ]] || die "two ranks have another masked loss"
expect_ok "$switchyard" evaluate run --pseudo-perplexity --max-windows 3 --quiet
expect_output "pseudo-perplexity"
pseudo=$out
expect_ok ranks 2 evaluate run --pseudo-perplexity --max-windows 3 --quiet --batch 5
[[ $out == "$pseudo" ]] || die "two ranks have another pseudo-perplexity"
expect_ok "$switchyard" evaluate run --pseudo-perplexity --max-windows 3 --quiet --json
expect_output '"scoring": "each_token"'

# Fillings, with and without tensor parallelism.
expect_ok "$switchyard" generate run --fill-mask 'token 7 is s[MASK]nt to <mask>x' --fillings 3
expect_output "probability"
[[ $(wc -l <<<"$out") -eq 8 ]] || die "there are not three fillings of two masks"
tokens() { sed -E 's/ +[0-9.]+$//' <<<"$out"; }  # probabilities may differ in their last digit
filled=$(tokens)
expect_ok ranks 2 generate run --fill-mask 'token 7 is s[MASK]nt to <mask>x' --fillings 3 --parallel.tp=2
[[ $(tokens) == "$filled" ]] || die "tensor parallelism has other fillings"
expect_ok "$switchyard" generate run --fill-mask '[MASK]' --json
expect_output '"probability"'
expect_ok "$switchyard" evaluate run --tokens 116,257,107 --logits logits.h5 --quiet
[[ -s logits.h5 ]] || die "there are no logits"

# Commands and settings that only decoders have.
expect_error "the model is an encoder, which continues no text" "$switchyard" generate run --prompt x
expect_error "hides no token" "$switchyard" generate run --fill-mask x
expect_error "leave it out, or give --pseudo-perplexity" "$switchyard" evaluate run --stride 4
expect_error "this is an encoder: leave it out" "$switchyard" evaluate run --stride 4 --pseudo-perplexity
[[ $err != *"or give"* ]] || die "the advice is given already"
expect_error "train.objective = causal with model.kind = encoder" "$switchyard" train config.ini --run.dir=x \
  --model.kind=encoder --train.objective=causal
expect_error "train.objective = masked with model.kind = decoder" "$switchyard" train config.ini --run.dir=x \
  --train.objective=masked
expect_error "model.attention = full with model.kind = decoder" "$switchyard" train config.ini --run.dir=x \
  --model.attention=full
expect_error "model.attention = strided with model.kind = encoder" "$switchyard" train config.ini --run.dir=x \
  "${encoder[@]}" --model.attention=strided
expect_error "model.t5_buckets = 2 with model.position = t5 in an encoder" "$switchyard" train config.ini --run.dir=x \
  "${encoder[@]}" --model.position=t5 --model.t5_buckets=2
expect_error "model.mtp_depth = 1 with model.kind = encoder" "$switchyard" train config.ini --run.dir=x \
  "${encoder[@]}" --model.mtp_depth=1
expect_error "are more than 1" "$switchyard" train config.ini --run.dir=x "${encoder[@]}" --train.mask_random_share=0.5
expect_ok "$switchyard" train config.ini --run.dir=decoder --train.steps=1 --train.validate_every=0 --quiet
expect_error "the model is a decoder" "$switchyard" generate decoder --fill-mask '[MASK]'
expect_error "this is a decoder" "$switchyard" evaluate decoder --pseudo-perplexity

# Plans and dry runs count the row of the mask token.
expect_ok "$switchyard" train config.ini --run.dir=x "${encoder[@]}" --dry-run
expect_ok "$switchyard" plan config.ini --ranks 2 "${encoder[@]}"
expect_ok "$switchyard" inspect run
expect_output "encoder, 2 layers"

# A model like BERT is exported and imported.
bert=("${encoder[@]}" --model.norm=layernorm --model.norm_eps=1e-12 --model.norm_position=post
  --model.embedding_norm=true --model.bias=all --model.ffn=gelu --model.position=learned --model.segments=2
  --model.output_transform=true --model.output_bias=true --model.tie_embeddings=true --model.kv_heads=0
  --moe.experts=0 --moe.first_dense=0)
expect_ok "$switchyard" train config.ini --run.dir=bert "${bert[@]}" --quiet
expect_ok "$switchyard" export bert hf
grep -q '"model_type": *"bert"' hf/config.json || die "it is not exported as bert"
expect_ok "$switchyard" import hf back
expect_ok "$switchyard" evaluate bert --tokens 1,257,3 --logits a.h5 --quiet
expect_ok "$switchyard" evaluate back --tokens 1,257,3 --logits b.h5 --quiet
if command -v h5diff >/dev/null; then
  h5diff a.h5 b.h5 /logits >&2 || die "the imported model has other logits"
fi

# The configuration in configs/ trains, on one rank and on two.
cp "$root/configs/bert-tiny.ini" .
small=(--data.path=data --model.layers=1 --model.d_model=32 --model.seq_len=16 --train.global_batch=8
  --train.micro_batch=2 --train.steps=20 --train.warmup=2 --train.lr=1e-2 --quiet)
expect_ok "$switchyard" train bert-tiny.ini "${small[@]}" --run.dir=tiny
expect_ok ranks 2 train bert-tiny.ini "${small[@]}" --run.dir=tiny2
losses tiny | awk 'NR == 1 {first = $1} {last = $1} END {exit !(last < 0.9 * first)}' || die "bert-tiny learns nothing"
