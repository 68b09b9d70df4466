#!/usr/bin/env bash
# Tests encoder-decoders through the commands: training by span corruption and on pairs, resumption,
# evaluation, targets of sources, logits, the expert report, export and import, plans and errors.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 20
global_batch = 8
micro_batch = 2
warmup = 2
lr = 0.01
validate_every = 10
validate_windows = 4
[run]
backend = cpu
checkpoint_every = 10
INI
pairs=(--model.kind=encoder_decoder --model.sentinels=8 --model.position=t5 --model.t5_buckets=8
  --model.t5_max_distance=16)
losses() { sed -nE 's/.*"loss":([^,]*),.*/\1/p' "$1/metrics.jsonl"; }
nearly() { paste "$1" "$2" | awk '{d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) exit 1}'; }

# The sentinels are the ids after those of the bytes.
expect_ok "$switchyard" train config.ini --run.dir=run "${pairs[@]}"
grep -q "^sentinel_token = 264" run/config.ini || die "the sentinels are not recorded"
grep -q "^start_token = 256" run/config.ini || die "the start token is not recorded"
grep -q "^objective = span_corruption" run/config.ini || die "the objective is not recorded"
losses run >one
awk 'NR == 1 {first = $1} {last = $1} END {exit !(last < 0.9 * first)}' one || die "the loss does not fall"

# It is resumed on another layout, with the same losses.
cp -r run resumed
rm -r resumed/checkpoints/*20
expect_ok ranks 2 train config.ini --run.dir=resumed "${pairs[@]}" --run.resume=true --parallel.tp=2 --quiet
losses resumed >again
nearly again one || die "the resumed run has other losses"

# Evaluation is the same on any layout. The expert report has the layers of both stacks by name.
expect_ok "$switchyard" evaluate run --quiet
alone=$out
expect_ok ranks 2 evaluate run --quiet --batch 3
[[ $out == "$alone" ]] || die "two ranks have another loss"
expect_ok "$switchyard" experts run
expect_output "encoder 1"
expect_output "decoder 1"
expect_ok "$switchyard" experts run --json
expect_output '"name": "encoder 1"'
# Figures have the same names, and a layer can be named.
expect_ok "$switchyard" experts run --layer "decoder 1" --compare run --placement ep=2 --figures-csv figures.csv --hdf5 load.h5
expect_output "decoder 1"
[[ $out != *"encoder 1"* ]] || die "it is another layer"
grep -q "^comparison,cv_first,ratio,decoder 1," figures.csv || die "the comparison has another name"
grep -q "^placement,imbalance_after,ratio,decoder 1," figures.csv || die "the placement has another name"
if command -v h5dump >/dev/null; then
  h5dump -a /summary/cv/layer load.h5 | grep -q '"decoder 1"' || die "HDF5 has another name"
fi
expect_error "the layers with experts are encoder 0, encoder 1, decoder 0, decoder 1" "$switchyard" experts run \
  --layer "decoder 2"
expect_ok "$switchyard" evaluate run --tokens 116,257,107 --decoder-tokens 256,3 --logits logits.h5 --quiet
[[ -s logits.h5 ]] || die "there are no logits"
expect_ok "$switchyard" generate run --prompt "a train" --tokens 5 --json
expect_output '"finish"'

# Sources and targets.
for i in $(seq 1 60); do echo "{\"source\": \"word $i\", \"target\": \"$i\"}"; done >toy.jsonl
expect_ok "$switchyard" prepare --pairs toy=toy.jsonl --tokenizer bytes --valid-fraction 0.2 --output pairs
grep -q "^pairs = true" pairs/dataset.ini || die "the data set has no pairs"
toy=("${pairs[@]}" --model.sentinels=0 --train.objective=seq2seq --data.path=pairs --model.seq_len=12)
expect_ok ranks 2 train config.ini --run.dir=toy "${toy[@]}" --parallel.ep=2 --quiet
expect_ok "$switchyard" evaluate toy --quiet
expect_ok "$switchyard" generate toy --prompt "word 7" --prompt "word 12" --beams 3 --length-penalty 0.6 --tokens 4 --json
found=$out
expect_ok ranks 2 generate toy --prompt "word 7" --prompt "word 12" --beams 3 --length-penalty 0.6 --tokens 4 --json
[[ $out == "$found" ]] || die "two ranks have other targets"
expect_ok "$switchyard" train config.ini --run.dir=prefix "${pairs[@]}" --train.objective=prefix --train.steps=2 --quiet

# A model like T5 is exported and imported.
t5=("${pairs[@]}" --model.attention_scale=1 --model.norm_eps=1e-6 --model.ffn=relu --model.kv_heads=0
  --model.head_dim=4 --moe.experts=0 --moe.first_dense=0 --train.steps=2 --train.validate_every=0)
expect_ok "$switchyard" train config.ini --run.dir=t5 "${t5[@]}" --quiet
expect_ok "$switchyard" export t5 hf
grep -Eq '"model_type": *"m?t5"' hf/config.json || die "it is not exported as t5"
expect_ok "$switchyard" import hf back
expect_ok "$switchyard" evaluate t5 --tokens 1,257,3 --decoder-tokens 256,7 --logits a.h5 --quiet
expect_ok "$switchyard" evaluate back --tokens 1,257,3 --decoder-tokens 256,7 --logits b.h5 --quiet
if command -v h5diff >/dev/null; then
  h5diff a.h5 b.h5 /logits >&2 || die "the imported model has other logits"
fi

# Plans, dry runs and sizes know both stacks.
expect_ok "$switchyard" train config.ini --run.dir=x "${pairs[@]}" --dry-run
expect_ok "$switchyard" plan config.ini --ranks 2 "${pairs[@]}"
expect_ok "$switchyard" inspect run
expect_output "encoder-decoder, d_model"
expect_ok "$switchyard" inspect --config "$root/configs/models/switch-base-8.ini"
expect_output "8 experts, top 1"
expect_output "512 in the encoder"

# Errors.
expect_error "no <extra_id_0>" "$switchyard" train config.ini --run.dir=x --model.kind=encoder_decoder
expect_error "sources and targets" "$switchyard" train config.ini --run.dir=x "${pairs[@]}" --data.path=pairs
expect_error "texts without targets" "$switchyard" train config.ini --run.dir=x "${pairs[@]}" --train.objective=seq2seq
expect_error "train.objective = causal with model.kind = encoder_decoder" "$switchyard" train config.ini --run.dir=x \
  "${pairs[@]}" --train.objective=causal
expect_error "train.objective = seq2seq with model.kind = decoder" "$switchyard" train config.ini --run.dir=x \
  --train.objective=seq2seq
expect_error "model.kind = decoder has no section [encoder]" "$switchyard" train config.ini --run.dir=x \
  --encoder.layers=3
expect_error "both stacks have equally many experts" "$switchyard" train config.ini --run.dir=x "${pairs[@]}" \
  --encoder.experts=3
expect_error "set it to 0, or moe.experts to 3" "$switchyard" train config.ini --run.dir=x "${pairs[@]}" \
  --encoder.experts=3 --moe.experts=0
# Each stack has learned positions of its own.
expect_ok "$switchyard" train config.ini --run.dir=learned --model.kind=encoder_decoder --model.sentinels=8 --model.position=learned \
  --model.seq_len=32 --train.steps=1 --train.validate_every=0
expect_output "--tokens 8"
expect_ok "$switchyard" generate learned --prompt "a train of tokens" --tokens 5 --backend cpu
expect_error "the decoder has learned 8 positions, and 9 are asked for" "$switchyard" generate learned --prompt a --tokens 9 --backend cpu
expect_error "the encoder has learned 32 positions" "$switchyard" generate learned --tokens 5 --backend cpu \
  --prompt "a train of tokens is longer than the encoder"
expect_ok "$switchyard" evaluate learned --tokens 1,2,3,4,5,6,7,8,9 --decoder-tokens 256,3 --logits learned.h5 --backend cpu --quiet
expect_error "model.mtp_depth = 1 with model.kind = encoder_decoder" "$switchyard" train config.ini --run.dir=x \
  "${pairs[@]}" --model.mtp_depth=1
expect_error "is less than the" "$switchyard" train config.ini --run.dir=x "${pairs[@]}" --encoder.seq_len=4
expect_error "give the inputs of the" "$switchyard" evaluate run --tokens 1,2 --logits x.h5
expect_error "needs a source" "$switchyard" evaluate run --decoder-tokens 1,2
expect_error "--stride is of decoders" "$switchyard" evaluate run --stride 4
expect_error "the model is an encoder-decoder" "$switchyard" generate run --prompt x --temperature 0.5
expect_error "the model is an encoder-decoder" "$switchyard" experts run --replay data
echo '{"source": "no target"}' >wrong.jsonl
expect_error "line 1 has no target" "$switchyard" prepare --pairs toy=wrong.jsonl --output wrong
expect_ok "$switchyard" train config.ini --run.dir=decoder --train.steps=1 --train.validate_every=0 --quiet
expect_error "beams is of encoder-decoders" "$switchyard" generate decoder --prompt x --beams 2
