"""Makes rope_lengths.json: models whose rotary positions depend on the length in use, as Hugging Face transformers computes them.

Needs torch and transformers (5.24 made the file): python3 rope_lengths.py > rope_lengths.json
Values are not stored: both sides make them of the tensors' names (values.py).
"""

import json
import tempfile

import torch
import transformers as hf

from families import save, sizes

ORIGINAL = 16
LENGTHS = [8, 16, 17, 30]  # within the original length, and beyond it
PROMPT, ADDED = 12, 10  # a generated text passes the original length
CASES = [
    # Phi-3 computes a cache again when a text passes the original length.
    ("longrope", "Phi3ForCausalLM",
     hf.Phi3Config(**sizes(max_position_embeddings=64, original_max_position_embeddings=ORIGINAL, rope_parameters=dict(
         rope_type="longrope", rope_theta=1000.0, original_max_position_embeddings=ORIGINAL,
         short_factor=[1.0, 1.5, 2.0], long_factor=[2.0, 3.0, 5.0])))),
    # Keys that are in a cache keep the rotation of the length at which they came.
    ("dynamic", "LlamaForCausalLM",
     hf.LlamaConfig(**sizes(head_dim=6, max_position_embeddings=ORIGINAL,
                            rope_parameters=dict(rope_type="dynamic", rope_theta=1000.0, factor=4.0)))),
]


def text(length):
    return [(7 * i * i + 3 * i + 5) % 37 for i in range(length)]


def short(row):
    return [float(f"{x:.9g}") for x in row.tolist()]


def main():
    out = []
    for name, architecture, config in CASES:
        with tempfile.TemporaryDirectory() as folder:
            saved_config, tensors = save(folder, name, architecture, config, {})

            def load():  # anew for each text: transformers keeps the longest length of earlier texts
                return getattr(hf, architecture).from_pretrained(folder, dtype=torch.float32,
                                                                 attn_implementation="eager").eval()

            with torch.no_grad():
                texts = [{"ids": text(n), "logits": short(load()(torch.tensor([text(n)]), use_cache=False).logits[0, -1])}
                         for n in LENGTHS]
                model = load()
                model.generation_config = hf.GenerationConfig(do_sample=False, max_new_tokens=ADDED, pad_token_id=0)
                ids = torch.tensor([text(PROMPT)])
                got = model.generate(ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True,
                                     output_logits=True)
            added = got.sequences[0, PROMPT:].tolist()
            assert len(added) == ADDED
            out.append({"name": name, "config": saved_config, "tensors": {k: list(t.shape) for k, t in tensors.items()},
                        "texts": texts, "prompt": text(PROMPT), "added": added,
                        "added_logits": [short(row[0]) for row in got.logits]})
    print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in out) + "]")


if __name__ == "__main__":
    main()
