#!/usr/bin/env bash
# Tests that a FIFO, a device or a folder as input is one immediate error. No command waits for it
# or reads it without end. Links that point out of a run folder are not followed.
source "$2/tests/cli/lib/lib.sh"

make_data 60 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 2
warmup = 1
global_batch = 2
micro_batch = 1
[run]
dir = run
backend = cpu
checkpoint_every = 1
INI
expect_ok "$switchyard" train config.ini --quiet
expect_ok "$switchyard" export run model
expect_ok "$switchyard" experts run --placement ep=2 --placement-file order.json
echo hello >prompts

# Runs each command with each input replaced. A command that waits would end with exit code 137. One
# that reads without end would run out of memory and end with exit code 1.
bounded() {
  (ulimit -v 4000000; exec timeout -s KILL 30 "$@")
}
refused() {  # FILE COMMAND...
  local kind
  mv "$1" saved
  for kind in ${kinds:-FIFO device folder}; do
    case $kind in
      FIFO) mkfifo "$1" ;;
      device) ln -s /dev/zero "$1" ;;
      folder) mkdir "$1" ;;
    esac
    call bounded "${@:2}"
    [[ $code -eq 2 ]] || die "exit code $code of ${*:2} with a $kind as $1"
    [[ $(grep -c '^switchyard: ' "$work/.err") -eq 1 ]] || die "not one error of ${*:2} with a $kind as $1"
    [[ $err == *"$1"* || $err == *"${1##*/}"* ]] || die "the error of ${*:2} does not name $1"
    [[ $err != *"$1: cannot read $1"* ]] || die "the error of ${*:2} names $1 twice"
    rm -r "$1"
  done
  mv saved "$1"
}
refused config.ini "$switchyard" train config.ini --dry-run
refused order.json "$switchyard" train config.ini --dry-run --moe.expert_map=order.json
refused data/dataset.ini "$switchyard" train config.ini --dry-run
refused data/english.train.idx "$switchyard" train config.ini --dry-run
refused data/english.train.bin "$switchyard" train config.ini --dry-run
refused prompts "$switchyard" generate run --prompts prompts
refused run/checkpoints/step-00000002/manifest.json "$switchyard" inspect run/checkpoints/step-00000002
refused run/checkpoints/step-00000002/index.h5 "$switchyard" inspect run/checkpoints/step-00000002
refused model/config.json "$switchyard" import model imported
refused model/model.safetensors "$switchyard" import model imported
echo x >model/chat_template.jinja
refused model/chat_template.jinja "$switchyard" import model imported
rm model/chat_template.jinja
mv model/model.safetensors model/model-00001-of-00001.safetensors
echo '{"weight_map": {}}' >model/model.safetensors.index.json
refused model/model.safetensors.index.json "$switchyard" import model imported
mkdir tokenizer
echo '{}' >tokenizer/tokenizer.json
refused tokenizer/tokenizer.json "$switchyard" prepare --domain x=text --tokenizer hf:tokenizer/tokenizer.json --output more
echo x >tokenizer/m.model
refused tokenizer/m.model "$switchyard" prepare --domain x=text --tokenizer spm:tokenizer/m.model --output more
kinds="FIFO device" refused text/1 "$switchyard" prepare --domain x=text/1 --tokenizer bytes --output more
refused run/metrics.jsonl "$switchyard" experts run
refused run/metrics.jsonl "$switchyard" train config.ini --train.steps=3 --run.resume=true
expect_ok "$switchyard" evaluate run --quiet
refused run/evaluation.json "$switchyard" experts run

# A run folder from elsewhere causes no writes to files outside of it.
echo precious >victim
for name in metrics.jsonl metrics.csv metrics.prom.new train.log switchyard.lock; do
  for link in "ln -s" ln; do
    rm -rf foreign
    cp -r run foreign
    rm -f foreign/$name
    $link "$work/victim" foreign/$name
    expect_error "$name" "$switchyard" train config.ini --run.dir=foreign --train.steps=3 --run.resume=true --log.csv=true \
      --log.prometheus=true
    [[ $(cat victim) == precious ]] || die "$link: $name was followed"
  done
done
