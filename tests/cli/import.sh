#!/usr/bin/env bash
# Tests switchyard import, export and evaluate --tokens. Any layout writes the same files; a hostile
# file is one clear error.
source "$2/tests/cli/lib/lib.sh"

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 6
global_batch = 8
micro_batch = 2
lr = 1e-2
warmup = 2
[run]
backend = cpu
INI
# A model like Mixtral, trained on four ranks.
expect_ok ranks 4 train config.ini --run.dir=trained --quiet --parallel.tp=2 --parallel.ep=2 --model.norm_eps=1e-6

# One rank and three ranks write the same files.
expect_ok "$switchyard" export trained exported
expect_output "at step 6"
expect_file exported/config.json exported/model.safetensors
grep -q '"model_type": "mixtral"' exported/config.json || die "not a Mixtral"
expect_ok ranks 3 export trained/checkpoints/step-00000006 by3 --quiet
cmp exported/model.safetensors by3/model.safetensors
expect_ok "$switchyard" export trained parts --file-bytes 20000 --dtype bf16
[[ $(ls parts/model-*-of-*.safetensors | wc -l) -ge 3 ]] || die "not several files"
expect_file parts/model.safetensors.index.json

# An import of the exported files has the same weights, on any number of ranks.
expect_ok "$switchyard" import exported back
expect_ok ranks 3 import exported back3 --quiet
expect_ok "$switchyard" diff back back3
for run in back back3; do
  "$switchyard" inspect "$run" --json >"$run.json"
  expect_ok "$switchyard" evaluate "$run" --tokens 1,2,3,200 --logits "$run.h5" --backend cpu --quiet
done
expect_ok "$switchyard" evaluate trained --tokens 1,2,3,200 --logits trained.h5 --backend cpu --quiet
expect_ok ranks 2 evaluate trained --tokens 1,2,3,200 --logits trained2.h5 --backend cpu --quiet
for file in back.h5 back3.h5 trained2.h5; do
  expect_ok h5diff --delta=1e-5 trained.h5 "$file" /logits
done
expect_ok "$switchyard" export back again --quiet
cmp exported/model.safetensors again/model.safetensors
cmp exported/config.json again/config.json
expect_ok "$switchyard" import parts rounded --quiet
expect_ok "$switchyard" export rounded parts2 --quiet
for file in parts/*.safetensors; do cmp "$file" "parts2/$(basename "$file")"; done

# Training can start from an import, but cannot resume it; the error says what to do.
expect_ok "$switchyard" train config.ini --run.dir=on --run.init_from=back --quiet --model.norm_eps=1e-6 --train.steps=2
expect_error "--run.init_from" "$switchyard" train back/config.ini --run.resume=true --data.path=data --run.dir=back \
  --run.backend=cpu --model.seq_len=16
expect_error "was imported" "$switchyard" evaluate back --backend cpu
expect_ok "$switchyard" evaluate back --data data --backend cpu --quiet
# The evaluation of another data set is beside the first one.
cp back/evaluation.json first.json
expect_ok "$switchyard" prepare --domain english=text --tokenizer bytes --valid-fraction 0.3 --output others
expect_ok "$switchyard" evaluate back --data others --backend cpu --quiet
cmp back/evaluation.json first.json || die "the evaluation of another data set replaced the first one"
expect_file back/evaluation-????????.json
expect_ok "$switchyard" evaluate back --data data --max-windows 0 --backend cpu --quiet
[[ $(echo back/evaluation*.json | wc -w) -eq 2 ]] || die "an evaluation of the first data set is elsewhere"

# Upcycling: the first loss of the model with experts equals that of the dense model.
expect_ok "$switchyard" train config.ini --run.dir=dense --quiet --moe.experts=0 --model.norm_eps=1e-6
expect_ok "$switchyard" evaluate dense --backend cpu --json
loss=$(grep -m1 '"loss"' .out | tr -dc '0-9.')
expect_ok "$switchyard" export dense llama --quiet
grep -q '"model_type": "llama"' llama/config.json || die "not a Llama"
upcycled() {  # FOLDER RUN HOW
  expect_ok "$switchyard" import "$1" "$2" --upcycle "$3" --quiet
  expect_ok "$switchyard" evaluate "$2" --data data --backend cpu --json
  local now
  now=$(grep -m1 '"loss"' .out | tr -dc '0-9.')
  awk -v a="$loss" -v b="$now" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-8) }' || die "loss $now, and of the dense model $loss"
}
upcycled llama up experts=4,top_k=2
upcycled dense up-parts experts=8,top_k=4,parts=2
expect_ok "$switchyard" train up/config.ini --run.dir=up-on --run.init_from=up --data.path=data --run.backend=cpu --quiet \
  --model.seq_len=16 --train.steps=2 --train.global_batch=4

# Impossible exports are errors that give the reason, and leave no files.
expect_error "experts already" "$switchyard" import exported no --upcycle experts=4,top_k=2
expect_error "multiples of parts" "$switchyard" import llama no --upcycle experts=4,top_k=3,parts=2
expect_error "experts=E,top_k=K" "$switchyard" import llama no --upcycle experts=4
expect_error "is a run already" "$switchyard" import llama back
expect_error "is there already" ranks 2 export trained exported
expect_error "there is no family 'lama'" "$switchyard" export trained no --family lama
expect_error "moe" "$switchyard" export trained no --family llama
expect_error "no config.json" ranks 2 import data no
expect_error "--tokens: '999'" "$switchyard" evaluate trained --tokens 1,999 --logits no.h5
expect_error "go together" "$switchyard" evaluate trained --tokens 1
broken() {  # TEXT; the error of importing `broken`, on one rank and on two
  expect_error "$1" "$switchyard" import broken no
  expect_error "$1" ranks 2 import broken no
  rm -rf broken
}
copy() { cp -r llama broken; }
copy; sed -i 's/"model_type": "llama"/"model_type": "lama"/' broken/config.json; broken "models of type lama"
copy; sed -i 's/"hidden_act": "silu"/"hidden_act": "tanh"/' broken/config.json; broken 'hidden_act = "tanh"'
copy; sed -i '/"hidden_size"/d' broken/config.json; broken "it has no hidden_size"
copy; sed -i 's/"vocab_size": [0-9]*/"vocab_size": 99/' broken/config.json; broken "expected [99, 32]"
copy; sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' broken/config.json; broken "model.layers.2.self_attn.q_proj.weight [32, 32] is missing"
copy; sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' broken/config.json; broken "is more than the model"
copy; echo '{"a": ' >broken/config.json; broken "cannot be read"
copy; rm broken/model.safetensors; broken "has neither model.safetensors"
copy; : >broken/model.safetensors; broken "it has 0 bytes"
copy; truncate -s -4 broken/model.safetensors; broken "no whole safetensors file"
copy; echo '{"weight_map": {"a": "../model.safetensors"}}' >broken/model.safetensors.index.json; broken "no file of its folder"
expect_no_file no

# Existing folders stay unchanged.
mkdir no.tmp && echo mine >no.tmp/thesis.txt
expect_error "no export of this version left it there" ranks 2 export trained no
[[ $(cat no.tmp/thesis.txt) == mine ]] || die "the export changed a folder that is not its own"
expect_no_file no

# If several commands run at the same time, exactly one makes the folder, and the folder is
# complete.
one_of() {  # FOLDER COMMAND...; prints nothing; the other commands end with code 2 and one error
  local n pids=() won=0 code
  for n in 1 2 3 4 5; do
    "${@:2}" >/dev/null 2>"err.$n" &
    pids+=($!)
  done
  for n in 1 2 3 4 5; do
    code=0
    wait "${pids[n - 1]}" || code=$?
    if [[ $code -eq 0 ]]; then
      won=$((won + 1))
      continue
    fi
    [[ $code -eq 2 && $(grep -c '^switchyard: ' "err.$n") -eq 1 ]] || die "exit code $code, and $(cat "err.$n")"
  done
  [[ $won -eq 1 ]] || die "$won of 5 made $1"
  expect_no_file "$1.tmp" "$1/switchyard.lock" "$1/import.unfinished"
}
for round in 1 2 3; do
  one_of "out$round" "$switchyard" export trained "out$round" --quiet
  diff -r exported "out$round" || die "the export is a mixture"
  one_of "in$round" "$switchyard" import exported "in$round" --quiet
  expect_ok "$switchyard" diff back "in$round"
  diff -r back/huggingface "in$round/huggingface" || die "the import is a mixture"
done
