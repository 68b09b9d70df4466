"""Makes encoder_decoders.json: small encoder-decoders, stored and computed by Hugging Face transformers.

Needs torch and transformers (5.24 made the file):
  python3 encoder_decoders.py > encoder_decoders.json
  python3 encoder_decoders.py check SWITCHYARD [NAME ...]    as families.py
The logits are those after each input of the decoder. Values are not stored: both sides compute them from the
tensors' names (values.py). Files of T5 v1.1 have an output of their own, which save_pretrained leaves out.
"""

import json
import sys
import tempfile

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from families import V, check, save
from values import values

SOURCE = [3, 1, 4, 1, 5, 9, 2, 6, 12, 30, 7]
IDS = [0, 8, 2, 31, 16, 4, 4]


def t5(**more):
    return dict(vocab_size=V, d_model=24, d_kv=5, d_ff=28, num_layers=2, num_decoder_layers=3, num_heads=4,
                relative_attention_num_buckets=8, relative_attention_max_distance=9, decoder_start_token_id=0, **more)


GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
SWITCH = dict(num_experts=5, expert_capacity=64, num_sparse_encoder_layers=1, num_sparse_decoder_layers=3)
BART = dict(vocab_size=V, d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=3,
            encoder_ffn_dim=28, decoder_ffn_dim=20, max_position_embeddings=40, scale_embedding=True, pad_token_id=1,
            bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)
LED = dict(vocab_size=V, d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=3,
           encoder_ffn_dim=28, decoder_ffn_dim=20, max_encoder_position_embeddings=48, max_decoder_position_embeddings=40,
           pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
# name, class of the model, its configuration, changes of config.json
CASES = [
    ("t5", "T5ForConditionalGeneration", hf.T5Config(**t5()), {}),
    ("t5_v1_1", "T5ForConditionalGeneration", hf.T5Config(**t5(**GATED)), {"tie_word_embeddings": False}),
    ("mt5", "MT5ForConditionalGeneration", hf.MT5Config(**t5(**GATED)), {"tie_word_embeddings": False}),
    ("switch_transformers", "SwitchTransformersForConditionalGeneration",
     hf.SwitchTransformersConfig(**t5(**SWITCH)), {}),
    ("bart", "BartForConditionalGeneration", hf.BartConfig(**BART), {}),
    ("led", "LEDForConditionalGeneration", hf.LEDConfig(**LED, attention_window=[4, 4]), {}),
    ("led_one_window", "LEDForConditionalGeneration",
     hf.LEDConfig(**LED, attention_window=6, activation_function="relu"), {"attention_window": 6}),
]


def store(folder, name, architecture, config, otherwise):
    saved_config, tensors = save(folder, name, architecture, config, otherwise)
    if otherwise.get("tie_word_embeddings") is False and "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = values("lm_head.weight", [V, 24])
        save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
    return saved_config, tensors


def logits(folder, architecture):
    model, info = getattr(hf, architecture).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                            output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"], info
    model.eval()
    # The first token of LED's source is global.
    masks = {"global_attention_mask": torch.tensor([[1] + [0] * (len(SOURCE) - 1)])} if architecture.startswith("LED") else {}
    with torch.no_grad():
        return model, model(input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([IDS]), use_cache=False,
                            **masks).logits[0]


def main():
    out = []
    for name, architecture, config, otherwise in CASES:
        with tempfile.TemporaryDirectory() as folder:
            saved_config, tensors = store(folder, name, architecture, config, otherwise)
            model, got = logits(folder, architecture)
            if "lm_head.weight" in tensors:
                assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"]), "the output is tied"
            rows = {p: [float(f"{x:.9g}") for x in got[p].tolist()] for p in (len(IDS) // 2, len(IDS) - 1)}
            out.append({"name": name, "config": saved_config, "source": SOURCE, "ids": IDS, "logits": rows,
                        "tensors": {k: list(t.shape) for k, t in sorted(tensors.items())}})
            print(name, float(got.abs().max()), file=sys.stderr)
    print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in out) + "]")


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        sys.exit(check(*sys.argv[2:], cases=CASES, save=store, logits=lambda folder, architecture, _: logits(folder, architecture)[1]))
    main()
