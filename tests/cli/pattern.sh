#!/usr/bin/env bash
# Tests a model with several kinds of layers: configuration, checkpoint, resume, evaluation and
# generation.
source "$2/tests/cli/lib/lib.sh"

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 6
global_batch = 4
micro_batch = 2
warmup = 2
[run]
backend = cpu
checkpoint_every = 3
[attention.local]
window = 5
rope_theta = 100
[attention.global]
position = none
INI
sed -i 's/^layers = 2/layers = 3\npattern = local*2, global/' config.ini

# A resumed run equals the uninterrupted one, and so does a run of RUN/config.ini.
expect_ok "$switchyard" train config.ini --run.dir=whole
grep -A 2 -x '\[attention.local\]' whole/config.ini | diff - <(printf '[attention.local]\nrope_theta = 100\nwindow = 5\n')
expect_ok "$switchyard" train config.ini --run.dir=part
rm -r part/checkpoints/step-00000006
expect_ok "$switchyard" train config.ini --run.dir=part --run.resume=true
expect_output "(step 3)"
[[ $out != *changed* ]] || die "a change where there is none"
expect_ok "$switchyard" diff whole part
expect_ok "$switchyard" train whole/config.ini --run.dir=again
expect_ok "$switchyard" diff whole again
# The kinds of layers differ: with the same window in all layers, the weights become others.
expect_ok "$switchyard" train config.ini --run.dir=other --attention.global.window=5
expect_exit 1 "$switchyard" diff whole other

# A resume with another layout works; a resume with another model is refused.
expect_ok ranks 2 train config.ini --run.dir=part --run.resume=true --train.steps=7 --parallel.tp=2 --parallel.ep=2
expect_error "holds another model (attention.local.window: 4 here, 5 there)" \
  "$switchyard" train config.ini --run.dir=part --run.resume=true --attention.local.window=4
expect_error "(attention.global.position of layer 1: none here, rope there; model.position of layer 2: rope here, none there" \
  "$switchyard" train config.ini --run.dir=part --run.resume=true --model.pattern=local,global
# Names of kinds are not part of a model.
sed 's/local/narrow/; s/global\b/wide/' config.ini >renamed.ini
expect_ok "$switchyard" train renamed.ini --run.dir=part --run.resume=true --train.steps=8

expect_ok "$switchyard" evaluate whole --backend cpu --json
loss=$(sed -n 's/^ "loss": \([0-9.]*\).*/\1/p' <<<"$out")
expect_ok ranks 2 evaluate whole --backend cpu --json
awk -v a="$loss" -v b="$(sed -n 's/^ "loss": \([0-9.]*\).*/\1/p' <<<"$out")" \
  'BEGIN { exit !(a > 0 && (a - b < 1e-5) && (b - a < 1e-5)) }' || die "loss $loss alone, another on 2 ranks"
expect_ok "$switchyard" generate whole --backend cpu --prompt "token " --tokens 8
expect_ok "$switchyard" inspect whole
expect_output "3 layers"

# Kinds of layers with attention by hashing keep their numbers of buckets, and the seed of the hash.
sed 's/^pattern = .*/pattern = a, b/; s/^layers = 3/layers = 2/; s/^seq_len = .*/seq_len = 64/; /^\[attention/,$d' config.ini >hash.ini
printf '[attention.a]\nattention = lsh\nlsh_chunk_length = 4\n[attention.b]\nattention = lsh\nlsh_chunk_length = 16\n' >>hash.ini
expect_ok "$switchyard" train hash.ini --run.dir=hash --model.position=learned --moe.experts=0 --train.validate_every=3 --quiet
trained=$(grep -o '"validation":{[^}]*"loss":[0-9.]*' hash/metrics.jsonl | tail -1 | grep -o '[0-9.]*$')
expect_ok "$switchyard" evaluate hash --backend cpu --json
awk -v a="$trained" -v b="$(grep -m1 '"loss"' .out | tr -dc '0-9.')" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-16) }' ||
  die "the evaluation is of another model than the validation $trained"
hash=(hash.ini --model.position=learned --moe.experts=0 --train.steps=7 --quiet)
expect_error "the hashes of model.attention = lsh follow it" "$switchyard" train "${hash[@]}" --run.dir=hash --run.resume=true --train.seed=7
expect_error "set train.seed = 1" "$switchyard" train "${hash[@]}" --run.dir=tuned --run.init_from=hash --train.seed=7
expect_ok "$switchyard" train "${hash[@]}" --run.dir=hash --run.resume=true

# A kind that only the module of multi-token prediction has belongs to the model, too.
module=(config.ini --model.layers=1 --model.mtp_depth=1 "--model.pattern=global,local" --run.dir=module)
expect_ok "$switchyard" train "${module[@]}"
expect_error "holds another model (attention.local.window: 8 here, 5 there)" \
  "$switchyard" train "${module[@]}" --run.resume=true --train.steps=7 --attention.local.window=8
expect_ok "$switchyard" plan "${module[@]}" --ranks 1 --attention.local.position=t5

# The embedding has learned positions, although no kind of layers uses them.
expect_ok "$switchyard" train config.ini --run.dir=learned --model.position=learned --attention.local.position=rope --quiet
expect_error "has learned 16 positions, and 67 are asked for" "$switchyard" generate learned --prompt "to do" --tokens 62 --backend cpu

# Axial positions, with a rank that has no sequence.
expect_ok "$switchyard" train config.ini --run.dir=axial --model.position=axial \
  --model.axial_shape=4,4 --model.axial_widths=8,24 --quiet
expect_ok ranks 2 generate axial --prompt "to" --tokens 3 --backend cpu

# ---- help, completion and errors ----
expect_ok "$switchyard" help config
expect_output "[attention.NAME]"
grep -q '^window = .*replaces model.window' .out || die "no key of kinds of layer"
[[ $(wc -L <.out) -le 100 ]] || die "help config is wider than 100 columns"
"$switchyard" completion bash >completion
source completion
complete_line() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=(); compopt() { :; }; _switchyard; out="${COMPREPLY[*]}"; }
complete_line "$switchyard" train --attention.NA
[[ $out == *--attention.NAME.window=* ]] || die "no keys of kinds of layer: $out"
complete_line "$switchyard" train --attention.local.win
[[ $out == --attention.local.window= ]] || die "not --attention.local.window=: $out"
sed 's/local\*2/local*0/' config.ini >wrong.ini
for n in 1 2; do
  expect_error "did you mean 'local'?" ranks "$n" train config.ini --run.dir=x --attention.locla.window=3
  expect_error "wrong.ini:3: model.pattern = 'local*0, global': expected names of up to 100 kinds" ranks "$n" train wrong.ini --run.dir=x
done
