#!/usr/bin/env bash
# Tests the commands of the tutorials. Each fenced block "sh test" runs with small inputs under the
# names of the pages.
source "$2/tests/cli/lib/lib.sh"

# Makes small versions of build/switchyard, configs/quickstart.ini, text/, data/quickstart and
# SmolLM2-135M.
mkdir build configs
printf '#!/bin/sh\nexec "%s" "$@"\n' "$switchyard" >build/switchyard
chmod +x build/switchyard
ln -s "$root/launch" launch
make_text text 200
sed -E -e 's/^(layers) = .*/\1 = 2/; s/^d_model = .*/d_model = 32/; s/^seq_len = .*/seq_len = 32/' \
  -e 's/^d_ff = .*/d_ff = 32/; s/^(warmup|log_every) = .*/\1 = 2/; s/^checkpoint_every = .*/checkpoint_every = 500/' \
  "$root/configs/quickstart.ini" >configs/quickstart.ini
sed -E -e 's/^layers = .*/layers = 2/; s/^d_(model|ff) = .*/d_\1 = 32/; s/^(warmup) = .*/\1 = 2/' \
  "$root/configs/switch-t5-tiny.ini" >configs/switch-t5-tiny.ini
expect_ok "$switchyard" prepare --domain english=text --tokenizer bytes --valid-fraction 0.2 --output data/quickstart
expect_ok "$switchyard" prepare --domain english=text --tokenizer train-spm:300 --valid-fraction 0.2 --output data/spm
cat >dense.ini <<'INI'
[model]
layers = 2
d_model = 32
heads = 4
d_ff = 64
seq_len = 64
[moe]
experts = 0
[train]
steps = 2
warmup = 1
global_batch = 2
micro_batch = 1
[run]
dir = runs/dense
INI
expect_ok "$switchyard" train dense.ini --data.path=data/spm
expect_ok "$switchyard" export runs/dense SmolLM2-135M

for i in $(seq 1 40); do
  printf '{"prompt": "Which track is free? %d", "completion": "Track %d."}\n' "$i" $((i % 7)) >>conversations.jsonl
done

for page in your-own-text analyse-experts import-and-upcycle scaling-study fine-tune pack-documents t5-with-experts mlperf; do
  sed -n '/^```sh test$/,/^```$/{/^```/!p}' "$root/docs/tutorials/$page.md" >commands
  [[ -s commands ]] || die "$page.md has no commands"
  OMP_NUM_THREADS=1 bash -eu -o pipefail commands >output 2>&1 || die "$page.md: $(tail -5 output)"
done
[[ -s report.html && -s experts.txt && -s load.csv && -s my-model/config.json ]] || die "an output of the tutorials is missing"
for file in SmolLM2-135M/*.safetensors; do
  cmp "$file" "SmolLM2-again/${file##*/}" || die "the export differs from the import"
done
