"""Makes reformer.json: small models of the family reformer, computed by Hugging Face transformers in double precision.

Needs torch and transformers (5.24 made the file):
  python3 reformer.py > reformer.json
The rotations of the hash are those of values.py in place of random ones: the test computes the same numbers from their names,
"rotations.LAYER", in the shape [heads, head size, rounds, half the sum of the factors of the buckets].
"""

import json
import sys
import tempfile
from unittest import mock

import torch
import transformers as hf
from safetensors.torch import load_file

from values import values

V = 37


def ids_of(count):
    return [(7 * i * i + 3 * i + 1) % V for i in range(count)]


def reformer(**more):
    out = dict(vocab_size=V, hidden_size=24, num_attention_heads=4, attention_head_size=5, feed_forward_size=28,
               attn_layers=["local", "lsh", "local", "lsh"], axial_pos_shape=[4, 6], axial_pos_embds_dim=[9, 15],
               max_position_embeddings=24, num_hashes=2, num_buckets=[2, 4], lsh_attn_chunk_length=4,
               local_attn_chunk_length=4, is_decoder=True, eos_token_id=0, pad_token_id=0)
    return {**out, **more}


# name, configuration, number of tokens, rows of logits
CASES = [
    ("reformer", reformer(), 24, (0, 5, 13, 23)),
    # transformers pads these to 24 tokens, and the hash puts padding after all others.
    ("reformer_padded", reformer(), 22, (7, 21)),
    ("reformer_one_chunk", reformer(), 3, (0, 2)),
    ("reformer_lsh", reformer(attn_layers=["lsh"] * 3, axial_pos_embds=False, num_hashes=3, num_buckets=4,
                              lsh_attn_chunk_length=6, lsh_num_chunks_before=2, hidden_act="gelu"), 24, (11, 23)),
    ("reformer_local", reformer(attn_layers=["local"] * 2, local_attn_chunk_length=6, local_num_chunks_before=2), 24, (14, 23)),
]


def with_rotations(attention, layer):
    """Lets the hash of a layer use the numbers of values.py."""
    hashed = attention._hash_vectors

    def randn(shape, device=None, dtype=None):
        return values(f"rotations.{layer}", list(shape)).to(dtype)

    def with_own(*args, **kwargs):
        with mock.patch.object(torch, "randn", randn):
            return hashed(*args, **kwargs)

    attention._hash_vectors = with_own


def main():
    out = []
    for name, config, count, rows in CASES:
        model = hf.ReformerModelWithLMHead(hf.ReformerConfig(**config)).eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tensors = load_file(f"{folder}/model.safetensors")
            with open(f"{folder}/config.json") as f:
                saved = json.load(f)
        del tensors["lm_head.bias"]  # the output adds lm_head.decoder.bias, of which published files have two copies
        filled = {k: values(k, list(t.shape), k.endswith("weight") and t.dim() == 1) for k, t in tensors.items()}
        missing = model.load_state_dict(filled, strict=False)
        assert not missing.unexpected_keys and missing.missing_keys == ["lm_head.bias"], missing
        model = model.double()
        for i, layer in enumerate(model.reformer.encoder.layers):
            if config["attn_layers"][i] == "lsh":
                with_rotations(layer.attention.self_attention, i)
        ids = ids_of(count)
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        assert logits.dtype == torch.float64 and logits.shape[0] == count
        print(name, float(logits.abs().max()), sorted(tensors), file=sys.stderr)
        out.append({"name": name, "config": saved, "ids": ids,
                    "logits": {p: [float(f"{x:.9g}") for x in logits[p].tolist()] for p in rows},
                    "tensors": {k: list(t.shape) for k, t in tensors.items()}})
    print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in out) + "]")


if __name__ == "__main__":
    main()
