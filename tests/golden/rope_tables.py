"""Makes rope_tables.json: rotary positions with every scaling, by Hugging Face transformers.

Needs torch and transformers (5.23 made the file): python3 rope_tables.py > rope_tables.json
"""

import json

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# Arguments of a case: Switchyard's settings, the configuration of transformers, the positions of a
# sequence, and those that are stored.
SHORT = [1.0, 1.05, 1.1, 1.3, 1.6, 2.0, 2.1, 2.4]
LONG = [1.0, 1.2, 1.7, 3.0, 5.5, 9.0, 14.0, 20.0]


def case(name, head_dim, theta, length, positions, original=None, model_settings=None, **scaling):
    settings = {"head_dim": head_dim, "rope_theta": theta, "seq_len": length, **(model_settings or {})}
    parameters = {"rope_theta": theta, **scaling}
    # Scalings that depend on the length of the model use the original length. The positions below
    # give the length of a sequence.
    config = LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim,
                         max_position_embeddings=original or length, rope_parameters=parameters)
    rope = LlamaRotaryEmbedding(config)
    # The first position is the last one of the sequence: it sets the length.
    cos, sin = rope(torch.zeros(1), torch.tensor([[length - 1] + positions]))
    half = head_dim // 2

    def short(tensor):  # with the digits of f32
        return [short(row) for row in tensor] if tensor.dim() else float(f"{tensor.item():.9g}")

    return {
        "name": name,
        "settings": [f"--model.{key}={value}" for key, value in settings.items()],
        "frequencies": short(rope.inv_freq),
        "positions": positions,
        "cos": short(cos[0, 1:, :half]),
        "sin": short(sin[0, 1:, :half]),
    }


def scaled(kind, factor, original, **more):
    return {"rope_scaling": kind, "rope_factor": factor, "rope_original_length": original, **more}


def listed(numbers):
    return ",".join(str(x) for x in numbers)


# NTK: the base of dynamic scaling at a length where its factor is 7. The factor is
# s * length / original - (s - 1).
cases = [
    case("default", 16, 10000.0, 600, [0, 1, 77, 599], rope_type="default"),
    case("linear", 16, 10000.0, 2048, [1, 511, 512, 2047], rope_type="linear", factor=4.0,
         model_settings={"rope_scaling": "linear", "rope_factor": 4}),
    case("ntk", 16, 10000.0, 2048, [1, 511, 512, 2047], original=512, rope_type="dynamic", factor=2.0,
         model_settings={"rope_scaling": "ntk", "rope_factor": 7}),
    case("dynamic", 16, 10000.0, 2048, [1, 511, 512, 2047], original=512, rope_type="dynamic", factor=2.0,
         model_settings=scaled("dynamic", 2, 512)),
    case("dynamic_within_the_original_length", 16, 10000.0, 300, [1, 299], original=512, rope_type="dynamic", factor=2.0,
         model_settings=scaled("dynamic", 2, 512)),
    # Llama 3.1, and a small one.
    case("llama3_of_llama", 128, 500000.0, 20000, [8191, 8192, 19999], rope_type="llama3", factor=8.0,
         low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192,
         model_settings=scaled("llama3", 8, 8192)),
    case("llama3", 16, 1000.0, 1024, [1, 63, 64, 1023], rope_type="llama3", factor=16.0, low_freq_factor=0.5,
         high_freq_factor=6.0, original_max_position_embeddings=64,
         model_settings=scaled("llama3", 16, 64, rope_low_frequency=0.5, rope_high_frequency=6)),
    case("yarn", 32, 10000.0, 2048, [1, 255, 256, 2047], rope_type="yarn", factor=8.0,
         original_max_position_embeddings=256, model_settings=scaled("yarn", 8, 256)),
    # gpt-oss
    case("yarn_of_gpt_oss", 64, 150000.0, 16384, [4095, 4096, 16383], rope_type="yarn", factor=32.0, beta_fast=32.0,
         beta_slow=1.0, truncate=False, original_max_position_embeddings=4096,
         model_settings=scaled("yarn", 32, 4096, rope_whole_dimensions="false")),
    # DeepSeek-V2, which leaves cos and sin unscaled this way
    case("yarn_of_deepseek", 64, 10000.0, 16384, [4095, 4096, 16383], rope_type="yarn", factor=40.0, beta_fast=32.0,
         beta_slow=1.0, mscale=0.707, mscale_all_dim=0.707, original_max_position_embeddings=4096,
         model_settings=scaled("yarn", 40, 4096, rope_attention_factor=1)),
    case("yarn_betas", 16, 10000.0, 512, [1, 63, 511], rope_type="yarn", factor=8.0, beta_fast=4.0, beta_slow=0.25,
         attention_factor=1.5, original_max_position_embeddings=64,
         model_settings=scaled("yarn", 8, 64, rope_beta_fast=4, rope_beta_slow=0.25, rope_attention_factor=1.5)),
    case("longrope", 16, 10000.0, 1024, [1, 127, 128, 1023], rope_type="longrope", factor=8.0, short_factor=SHORT,
         long_factor=LONG, original_max_position_embeddings=128,
         model_settings=scaled("longrope", 8, 128, rope_short_factors=listed(SHORT), rope_long_factors=listed(LONG))),
    case("longrope_within_the_original_length", 16, 10000.0, 128, [1, 127], rope_type="longrope", factor=8.0,
         short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=128,
         model_settings=scaled("longrope", 8, 128, rope_short_factors=listed(SHORT), rope_long_factors=listed(LONG))),
]
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
