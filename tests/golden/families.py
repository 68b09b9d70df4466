"""Makes families.json: small models of all importable families, stored and computed by Hugging Face transformers.

Needs torch and transformers (5.23 made the file):
  python3 families.py > families.json
  python3 families.py check SWITCHYARD [NAME ...]    imports and exports each model with the program
The check loads each export. With the files that an import keeps of the original, the export has the same
files. Without them, as for a model trained by Switchyard, it has the same logits. Exit code 1 if any differ.
Values are not stored: both sides compute them from the tensors' names (values.py).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from values import values

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 12, 30, 7]
V = 37
SEGMENT_TOKENS = {"bert_segments": 5}  # name of a case: the token that ends its first segment


def ids_of(architecture):  # RoBERTa gives the token 1, padding, no position
    return [8 if i == 1 and architecture.startswith("Roberta") else i for i in IDS]


def sizes(**more):
    out = dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
               intermediate_size=28, max_position_embeddings=40, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    return {**out, **more}


def plain(**more):  # without grouped heads
    out = sizes(**more)
    del out["num_key_value_heads"]
    return out


def gpt2(**more):
    return dict(vocab_size=V, n_embd=24, n_layer=2, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=0, **more)


def modern(**more):
    return plain(cls_token_id=0, sep_token_id=0, **more)


def rope(kind, **more):
    return {"rope_type": kind, "rope_theta": 1000.0, **more}


LONG = dict(short_factor=[1.0, 1.5, 2.0], long_factor=[2.0, 3.0, 5.0])
MOE = dict(num_local_experts=5, num_experts_per_tok=2)
FINE = dict(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12)
DEEP = dict(n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, kv_lora_rank=10, qk_rope_head_dim=4,
            qk_nope_head_dim=6, v_head_dim=5, first_k_dense_replace=1, num_key_value_heads=4, num_hidden_layers=3)
SIGMOID = dict(n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, n_shared_experts=2,
               routed_scaling_factor=1.5)
ERNIE = dict(moe_num_experts=6, moe_k=3, moe_intermediate_size=12, moe_num_shared_experts=2)
# name, class of the model, its configuration, changes of config.json (None removes a key)
CASES = [
    ("gpt2", "GPT2LMHeadModel", hf.GPT2Config(**gpt2()), {}),
    ("gpt2_bare", "GPT2LMHeadModel", hf.GPT2Config(**gpt2(n_inner=28)), {}),
    ("gptj", "GPTJForCausalLM", hf.GPTJConfig(**gpt2(rotary_dim=4, tie_word_embeddings=False)), {}),
    ("gpt_neox", "GPTNeoXForCausalLM", hf.GPTNeoXConfig(**plain(hidden_size=32, rotary_pct=0.25)), {}),
    ("bloom", "BloomForCausalLM", hf.BloomConfig(vocab_size=V, hidden_size=24, n_layer=2, n_head=4, bos_token_id=0,
                                                eos_token_id=0, pad_token_id=0), {}),
    ("gpt_neox_mlp_biases", "GPTNeoXForCausalLM",
     hf.GPTNeoXConfig(**plain(hidden_size=32, rotary_pct=1.0, attention_bias=False)), {}),
    ("bloom_residual", "BloomForCausalLM",
     hf.BloomConfig(vocab_size=V, hidden_size=24, n_layer=3, n_head=4, apply_residual_connection_post_layernorm=True,
                    bos_token_id=0, eos_token_id=0, pad_token_id=0), {}),
    ("opt", "OPTForCausalLM", hf.OPTConfig(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, ffn_dim=28,
                                          max_position_embeddings=40, word_embed_proj_dim=24, bos_token_id=0,
                                          eos_token_id=0, pad_token_id=1), {}),
    ("opt_post_norm", "OPTForCausalLM",
     hf.OPTConfig(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, ffn_dim=28,
                  max_position_embeddings=40, word_embed_proj_dim=24, do_layer_norm_before=False, enable_bias=False,
                  bos_token_id=0, eos_token_id=0, pad_token_id=1), {}),
    ("falcon_7b", "FalconForCausalLM", hf.FalconConfig(**plain(multi_query=True, ffn_hidden_size=28)), {}),
    ("falcon_40b", "FalconForCausalLM",
     hf.FalconConfig(**plain(new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=28)), {}),
    ("falcon_rw", "FalconForCausalLM",
     hf.FalconConfig(**plain(alibi=True, bias=True, multi_query=False, parallel_attn=False, ffn_hidden_size=28)), {}),
    ("falcon2", "FalconForCausalLM",
     hf.FalconConfig(**plain(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
                             ffn_hidden_size=28)), {}),
    ("llama", "LlamaForCausalLM", hf.LlamaConfig(**sizes(head_dim=6)), {}),
    ("llama_biases", "LlamaForCausalLM", hf.LlamaConfig(**sizes(attention_bias=True, mlp_bias=True)), {}),
    ("llama_attention_bias", "LlamaForCausalLM", hf.LlamaConfig(**sizes(attention_bias=True)), {}),
    ("llama3", "LlamaForCausalLM",
     hf.LlamaConfig(**sizes(head_dim=8, tie_word_embeddings=True,
                            rope_parameters=rope("llama3", factor=4.0, original_max_position_embeddings=10,
                                                 low_freq_factor=1.0, high_freq_factor=4.0))), {}),
    ("llama_4x_keys", "LlamaForCausalLM",
     hf.LlamaConfig(**sizes(head_dim=8, rope_parameters=rope("linear", factor=2.0))),
     dict(rope_parameters=None, rope_theta=1000.0, rope_scaling={"type": "linear", "factor": 2.0}, dtype=None,
          torch_dtype="float32", head_dim=8)),
    ("mistral", "MistralForCausalLM", hf.MistralConfig(**sizes(head_dim=8, sliding_window=5)), {}),
    ("gemma2", "Gemma2ForCausalLM",
     hf.Gemma2Config(**sizes(head_dim=6, sliding_window=5, query_pre_attn_scalar=9, num_hidden_layers=3,
                             final_logit_softcapping=5.0, attn_logit_softcapping=3.0)), {}),
    ("gemma3", "Gemma3ForCausalLM",
     hf.Gemma3TextConfig(**sizes(head_dim=6, sliding_window=5, query_pre_attn_scalar=9, num_hidden_layers=7)), {}),
    ("gemma3_bias", "Gemma3ForCausalLM",
     hf.Gemma3TextConfig(**sizes(head_dim=6, sliding_window=5, query_pre_attn_scalar=9, attention_bias=True)), {}),
    ("gemma3_4x_keys", "Gemma3ForCausalLM",
     hf.Gemma3TextConfig(**sizes(head_dim=6, sliding_window=5, query_pre_attn_scalar=9, num_hidden_layers=7)),
     dict(rope_parameters=None, layer_types=None, sliding_window_pattern=3, rope_theta=4000.0, rope_local_base_freq=50.0,
          rope_scaling={"factor": 8.0, "rope_type": "linear"})),
    ("gemma3_sliding", "Gemma3ForCausalLM",
     hf.Gemma3TextConfig(**sizes(head_dim=6, sliding_window=5, query_pre_attn_scalar=9, num_hidden_layers=3)),
     dict(rope_parameters=None, layer_types=None, rope_theta=4000.0, rope_local_base_freq=50.0)),
    ("qwen2", "Qwen2ForCausalLM", hf.Qwen2Config(**sizes()), {}),
    ("qwen3_bias", "Qwen3ForCausalLM", hf.Qwen3Config(**sizes(head_dim=6, attention_bias=True)), {}),
    ("qwen3", "Qwen3ForCausalLM", hf.Qwen3Config(**sizes(head_dim=6)), {}),
    ("olmo", "OlmoForCausalLM", hf.OlmoConfig(**sizes()), {}),
    ("olmo_clip", "OlmoForCausalLM", hf.OlmoConfig(**sizes(clip_qkv=0.3)), {}),
    ("olmo2", "Olmo2ForCausalLM", hf.Olmo2Config(**sizes()), {}),
    ("phi3", "Phi3ForCausalLM", hf.Phi3Config(**sizes(sliding_window=7)), {}),
    ("phi3_long", "Phi3ForCausalLM",
     hf.Phi3Config(**sizes(original_max_position_embeddings=10,
                           rope_parameters=rope("longrope", original_max_position_embeddings=10, **LONG))), {}),
    ("cohere", "CohereForCausalLM", hf.CohereConfig(**sizes(logit_scale=0.25)), {}),
    ("cohere_qk", "CohereForCausalLM", hf.CohereConfig(**sizes(logit_scale=0.25, use_qk_norm=True)), {}),
    ("cohere2", "Cohere2ForCausalLM",
     hf.Cohere2Config(**sizes(sliding_window=5, num_hidden_layers=5, logit_scale=0.25)), {}),
    ("cohere2_full", "Cohere2ForCausalLM",
     hf.Cohere2Config(**sizes(sliding_window=5, logit_scale=0.25, layer_types=["full_attention"] * 2)), {}),
    ("nemotron", "NemotronForCausalLM", hf.NemotronConfig(**sizes(hidden_size=32, head_dim=8)), {}),
    ("nemotron_mlp_bias", "NemotronForCausalLM",
     hf.NemotronConfig(**sizes(hidden_size=32, head_dim=8, mlp_bias=True)), {}),
    ("mixtral", "MixtralForCausalLM", hf.MixtralConfig(**sizes(head_dim=6, **MOE)), {}),
    ("qwen2_moe", "Qwen2MoeForCausalLM",
     hf.Qwen2MoeConfig(**sizes(shared_expert_intermediate_size=10, num_hidden_layers=4, decoder_sparse_step=2, **FINE)), {}),
    ("qwen3_moe", "Qwen3MoeForCausalLM",
     hf.Qwen3MoeConfig(**sizes(head_dim=6, num_hidden_layers=3, mlp_only_layers=[0], norm_topk_prob=True, **FINE)), {}),
    ("qwen2_moe_window", "Qwen2MoeForCausalLM",
     hf.Qwen2MoeConfig(**sizes(shared_expert_intermediate_size=10, num_hidden_layers=4, use_sliding_window=True,
                               sliding_window=3, max_window_layers=2, **FINE)), dict(layer_types=None)),
    ("qwen3_moe_dense_layers", "Qwen3MoeForCausalLM",
     hf.Qwen3MoeConfig(**sizes(head_dim=6, num_hidden_layers=5, mlp_only_layers=[0, 2, 3], norm_topk_prob=True, **FINE)), {}),
    ("qwen3_moe_window", "Qwen3MoeForCausalLM",
     hf.Qwen3MoeConfig(**sizes(head_dim=6, use_sliding_window=True, sliding_window=3, **FINE)), {}),
    ("olmoe", "OlmoeForCausalLM",
     hf.OlmoeConfig(**sizes(num_experts=5, num_experts_per_tok=3)), {}),
    ("olmoe_clip", "OlmoeForCausalLM",
     hf.OlmoeConfig(**sizes(num_experts=5, num_experts_per_tok=3, clip_qkv=0.5)), {}),
    ("deepseek_v2", "DeepseekV2ForCausalLM",
     hf.DeepseekV2Config(**sizes(**DEEP, q_lora_rank=None, n_group=3, topk_group=2, topk_method="group_limited_greedy",
                                 routed_scaling_factor=2.0, n_shared_experts=2)), {}),
    ("deepseek_v3", "DeepseekV3ForCausalLM",
     hf.DeepseekV3Config(**sizes(**DEEP, q_lora_rank=9, n_group=3, topk_group=2, n_shared_experts=1,
                                 routed_scaling_factor=2.5,
                                 rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=10, mscale=0.7,
                                                      mscale_all_dim=0.9))), {}),
    ("deepseek_v32", "DeepseekV32ForCausalLM",
     hf.DeepseekV32Config(**sizes(**DEEP, q_lora_rank=9, n_group=3, topk_group=2, n_shared_experts=1, index_n_heads=3,
                                  index_head_dim=7, index_topk=4, routed_scaling_factor=2.5,
                                  rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=10, mscale=0.7,
                                                       mscale_all_dim=0.9))), {}),
    ("gpt_oss", "GptOssForCausalLM",
     hf.GptOssConfig(**sizes(head_dim=8, num_hidden_layers=3, sliding_window=5, **MOE,
                             rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=10, beta_fast=32.0,
                                                  beta_slow=1.0, truncate=False))), {}),
    ("gemma", "GemmaForCausalLM", hf.GemmaConfig(**sizes(head_dim=10)), {}),
    ("gemma_published", "GemmaForCausalLM", hf.GemmaConfig(**sizes(head_dim=6, num_key_value_heads=1)),
     dict(hidden_act="gelu", rope_parameters=None, rope_theta=1000.0, use_bidirectional_attention=None)),
    ("arcee", "ArceeForCausalLM",
     hf.ArceeConfig(**sizes(rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=10))), {}),
    ("arcee_biases", "ArceeForCausalLM", hf.ArceeConfig(**sizes(attention_bias=True, mlp_bias=True)), {}),
    ("starcoder2", "Starcoder2ForCausalLM", hf.Starcoder2Config(**sizes(sliding_window=5)), {}),
    ("starcoder2_no_bias", "Starcoder2ForCausalLM",
     hf.Starcoder2Config(**sizes(use_bias=False, hidden_act="gelu", tie_word_embeddings=False)), {}),
    ("stablelm", "StableLmForCausalLM", hf.StableLmConfig(**sizes(hidden_size=32, use_qkv_bias=True)), {}),
    ("stablelm_parallel", "StableLmForCausalLM",
     hf.StableLmConfig(**sizes(hidden_size=32, qk_layernorm=True, use_parallel_residual=True)), {}),
    ("phi", "PhiForCausalLM", hf.PhiConfig(**sizes(hidden_size=32)), {}),
    ("seed_oss", "SeedOssForCausalLM", hf.SeedOssConfig(**sizes(head_dim=10)), {}),
    ("seed_oss_out_bias", "SeedOssForCausalLM", hf.SeedOssConfig(**sizes(head_dim=10, attention_out_bias=True)), {}),
    ("ernie4_5", "Ernie4_5ForCausalLM", hf.Ernie4_5Config(**sizes(head_dim=10)), {}),
    ("ernie4_5_biases", "Ernie4_5ForCausalLM", hf.Ernie4_5Config(**sizes(head_dim=6, use_bias=True)), {}),
    ("helium", "HeliumForCausalLM", hf.HeliumConfig(**sizes(head_dim=6)), {}),
    ("helium_bias", "HeliumForCausalLM", hf.HeliumConfig(**sizes(head_dim=6, attention_bias=True)), {}),
    ("glm", "GlmForCausalLM", hf.GlmConfig(**sizes(head_dim=12)), {}),
    ("glm4", "Glm4ForCausalLM", hf.Glm4Config(**sizes(head_dim=12, attention_bias=False)), {}),
    ("smollm3", "SmolLM3ForCausalLM", hf.SmolLM3Config(**sizes(num_hidden_layers=5)), {}),
    ("smollm3_window", "SmolLM3ForCausalLM",
     hf.SmolLM3Config(**sizes(num_hidden_layers=5, use_sliding_window=True, sliding_window=5, no_rope_layers=[1, 0, 0, 1, 0],
                              layer_types=["sliding_attention"] * 2 + ["full_attention"] * 3)), {}),
    ("exaone4", "Exaone4ForCausalLM", hf.Exaone4Config(**sizes(sliding_window=5, num_hidden_layers=5)), {}),
    ("exaone4_full", "Exaone4ForCausalLM",
     hf.Exaone4Config(**sizes(sliding_window=None, layer_types=["full_attention"] * 2)), {}),
    ("olmo3", "Olmo3ForCausalLM",
     hf.Olmo3Config(**sizes(sliding_window=5, num_hidden_layers=5,
                            rope_parameters={"sliding_attention": rope("default"),
                                             "full_attention": rope("yarn", factor=4.0,
                                                                    original_max_position_embeddings=10)})), {}),
    ("olmo3_4x_keys", "Olmo3ForCausalLM", hf.Olmo3Config(**sizes(sliding_window=5, num_hidden_layers=5)),
     dict(rope_parameters=None, rope_theta=500000.0,
          rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10})),
    ("ministral", "MinistralForCausalLM",
     hf.MinistralConfig(**sizes(head_dim=8, sliding_window=5, num_hidden_layers=3,
                                layer_types=["full_attention"] + ["sliding_attention"] * 2)), {}),
    ("kimi_k2", "DeepseekV3ForCausalLM",
     hf.DeepseekV3Config(**sizes(**DEEP, q_lora_rank=9, n_group=1, topk_group=1, n_shared_experts=1,
                                 routed_scaling_factor=2.827,
                                 rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=10, mscale=1.0,
                                                      mscale_all_dim=1.0))), dict(model_type="kimi_k2")),
    ("glm4_moe", "Glm4MoeForCausalLM",
     hf.Glm4MoeConfig(**sizes(head_dim=12, num_hidden_layers=3, use_qk_norm=True, attention_bias=True, **SIGMOID,
                              first_k_dense_replace=1, n_group=3, topk_group=2, num_mtp_layers=0)), {}),
    ("glm4_moe_plain", "Glm4MoeForCausalLM",
     hf.Glm4MoeConfig(**sizes(hidden_size=32, **SIGMOID, norm_topk_prob=False, first_k_dense_replace=0)), {}),
    ("dots1", "Dots1ForCausalLM",
     hf.Dots1Config(**sizes(head_dim=10, num_hidden_layers=3, **SIGMOID, first_k_dense_replace=1, norm_topk_prob=True,
                            sliding_window=5, max_window_layers=1)), {}),
    ("minimax_m2", "MiniMaxM2ForCausalLM",
     hf.MiniMaxM2Config(**sizes(head_dim=10, **MOE, rope_parameters=rope("default", partial_rotary_factor=0.4))), {}),
    ("minimax_m2_published", "MiniMaxM2ForCausalLM", hf.MiniMaxM2Config(**sizes(head_dim=10, **MOE)),
     dict(rope_parameters=None, rope_theta=1000.0, rotary_dim=6)),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", hf.Ernie4_5_MoeConfig(**sizes(num_hidden_layers=3, **ERNIE)), {}),
    ("ernie4_5_moe_layers", "Ernie4_5_MoeForCausalLM",
     hf.Ernie4_5_MoeConfig(**sizes(num_hidden_layers=6, **ERNIE, moe_layer_interval=2, moe_layer_start_index=2,
                                   moe_layer_end_index=4)), {}),
    ("granite", "GraniteForCausalLM",
     hf.GraniteConfig(**sizes(embedding_multiplier=12.0, logits_scaling=3.0, residual_multiplier=0.22,
                              attention_multiplier=0.3, tie_word_embeddings=True)), {}),
    ("granite_biases", "GraniteForCausalLM", hf.GraniteConfig(**sizes(attention_bias=True, mlp_bias=True)), {}),
    ("granitemoe", "GraniteMoeForCausalLM",
     hf.GraniteMoeConfig(**sizes(embedding_multiplier=12, logits_scaling=6, residual_multiplier=0.22,
                                 attention_multiplier=0.25, num_local_experts=5, num_experts_per_tok=3)), {}),
    ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", hf.HunYuanDenseV1Config(**sizes(head_dim=10)), {}),
    ("hunyuan_v1_dense_published", "HunYuanDenseV1ForCausalLM",
     hf.HunYuanDenseV1Config(**sizes(head_dim=8, attention_bias=True, rope_parameters=rope(
         "dynamic", alpha=7.0, factor=1.0))),
     dict(rope_parameters=None, rope_theta=1000.0,
          rope_scaling={"alpha": 7.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
                        "mscale_all_dim": 1.0, "type": "dynamic"})),
    ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM",
     hf.HunYuanMoEV1Config(**sizes(head_dim=6, num_experts=5, moe_topk=3)), {}),
    ("hunyuan_v1_moe_by_layer", "HunYuanMoEV1ForCausalLM",
     hf.HunYuanMoEV1Config(**sizes(head_dim=10, num_experts=4, moe_topk=2)), dict(moe_topk=[2, 2])),
    ("apertus", "ApertusForCausalLM", hf.ApertusConfig(**sizes(hidden_size=32, num_attention_heads=4)), {}),
    ("apertus_bias", "ApertusForCausalLM",
     hf.ApertusConfig(**sizes(attention_bias=True, rope_parameters=rope("default"))), {}),
    ("gpt_oss_no_bias", "GptOssForCausalLM",
     hf.GptOssConfig(**sizes(head_dim=8, sliding_window=5, attention_bias=False, **MOE,
                             rope_parameters=rope("default"))), {}),
    ("bert", "BertForMaskedLM", hf.BertConfig(**plain()), {}),
    ("roberta", "RobertaForMaskedLM",
     hf.RobertaConfig(**plain(max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)), {}),
    ("bert_untied", "BertForMaskedLM", hf.BertConfig(**plain(tie_word_embeddings=False)), {}),
    ("bert_segments", "BertForMaskedLM", hf.BertConfig(**plain(type_vocab_size=3)), {}),
    ("roberta_untied", "RobertaForMaskedLM",
     hf.RobertaConfig(**plain(max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1,
                              tie_word_embeddings=False)), {}),
    ("modernbert_untied", "ModernBertForMaskedLM", hf.ModernBertConfig(**modern(tie_word_embeddings=False)), {}),
    ("modernbert", "ModernBertForMaskedLM", hf.ModernBertConfig(**modern(num_hidden_layers=4, local_attention=4)), {}),
    ("modernbert_norm_bias", "ModernBertForMaskedLM",
     hf.ModernBertConfig(**modern(local_attention=7, norm_bias=True, decoder_bias=False,
                                  layer_types=["sliding_attention"] * 2)), {}),
    ("modernbert_flat_keys", "ModernBertForMaskedLM",
     hf.ModernBertConfig(**modern(num_hidden_layers=5, local_attention=2, global_attn_every_n_layers=2,
                                  global_rope_theta=5000.0, local_rope_theta=100.0)),
     dict(layer_types=None, rope_parameters=None, global_attn_every_n_layers=2, global_rope_theta=5000.0,
          local_rope_theta=100.0)),
]


def save(folder, name, architecture, config, otherwise):
    """Writes the folder of a model with the numbers of values(). Returns config.json and the tensors."""
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = getattr(hf, architecture)(config)
    model.save_pretrained(folder)
    path = f"{folder}/model.safetensors"
    tensors = load_file(path)
    bare = name.endswith("_bare")
    tensors = {(k.removeprefix("transformer.") if bare else k): t for k, t in tensors.items()}
    constant = ("act_fn.beta", "act_fn.eps")  # of xIELU
    filled = {k: t if k.endswith(constant) else values(k, list(t.shape), k.endswith("weight") and t.dim() == 1)
              for k, t in tensors.items()}
    save_file(filled, path, metadata={"format": "pt"})
    with open(f"{folder}/config.json") as f:
        saved_config = json.load(f)
    for key, value in otherwise.items():
        saved_config[key] = value
        if value is None:
            del saved_config[key]
    with open(f"{folder}/config.json", "w") as f:
        json.dump(saved_config, f)
    os.path.exists(f"{folder}/generation_config.json") and os.remove(f"{folder}/generation_config.json")
    return saved_config, filled


def logits(folder, architecture="AutoModelForCausalLM", segment_token=None, ids=None):
    with open(f"{folder}/config.json") as f:
        saved = json.load(f)
    alibi = saved.get("alibi")  # eager attention of Falcon adds ALiBi's biases twice
    more = {}
    if saved["model_type"] == "kimi_k2":  # not known to transformers
        del saved["model_type"]
        more["config"] = hf.DeepseekV3Config(**saved)
    model, info = getattr(hf, architecture).from_pretrained(folder, dtype=torch.float32,
                                                            attn_implementation="sdpa" if alibi else "eager",
                                                            output_loading_info=True, **more)
    assert not info["unexpected_keys"] and not [k for k in info["missing_keys"] if k != "lm_head.weight"], info
    model.eval()
    with torch.no_grad():
        more = {} if architecture.endswith("MaskedLM") else dict(use_cache=False)
        ids = ids or ids_of(architecture)
        if segment_token is not None:
            second = ids.index(segment_token) + 1
            more["token_type_ids"] = torch.tensor([[0] * second + [1] * (len(ids) - second)])
        return model(torch.tensor([ids]), **more).logits[0]


def main():
    out = []
    for name, architecture, config, otherwise in CASES:
        with tempfile.TemporaryDirectory() as folder:
            saved_config, tensors = save(folder, name, architecture, config, otherwise)
            segment_token = SEGMENT_TOKENS.get(name)
            got = logits(folder, architecture, segment_token)
            rows = {p: [float(f"{x:.9g}") for x in got[p].tolist()] for p in (len(IDS) // 2, len(IDS) - 1)}
            out.append({"name": name, "config": saved_config, "ids": ids_of(architecture), "logits": rows,
                        "tensors": {k: list(t.shape) for k, t in tensors.items()}})
            if segment_token is not None:
                out[-1]["segment_token"] = segment_token
            print(name, float(got.abs().max()), file=sys.stderr)
    print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in out) + "]")


def logits_of_case(folder, architecture, of_case):
    return logits(folder, architecture, ids=ids_of(of_case))


def check(switchyard, *only, cases=CASES, save=save, logits=logits_of_case):
    """Returns whether an export differs. logits(folder, class of the model, class of the model of the case)"""
    failed = False
    for name, architecture, config, otherwise in cases:
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            source, run, back, bare = (f"{folder}/{name}" for name in ("source", "run", "back", "bare"))

            def call(*command):
                done = subprocess.run([switchyard, *command, "--quiet"], capture_output=True, text=True)
                if done.returncode:
                    print(f"{name}: {command[0]}: {done.stderr.strip()}", flush=True)
                return done.returncode == 0

            _, tensors = save(source, name, architecture, config, otherwise)
            want = logits(source, architecture, architecture)
            close = float(want.abs().max()) * 1e-4
            if not call("import", source, run) or not call("export", run, back):
                failed = True
                continue
            again = load_file(f"{back}/model.safetensors")
            same = again.keys() == tensors.keys() and all(torch.equal(again[k], tensors[k]) for k in tensors)
            with open(f"{source}/model.safetensors", "rb") as a, open(f"{back}/model.safetensors", "rb") as b:
                same_bytes = a.read() == b.read()
            worst = float((logits(back, architecture, architecture) - want).abs().max())
            print(f"{name}: tensors {'equal' if same else 'DIFFER'}, file {'equal' if same_bytes else 'DIFFERS'}, "
                  f"logits of the export differ by {worst:.2g}", flush=True)
            failed |= not (same and same_bytes and worst == 0)
            shutil.rmtree(f"{run}/huggingface")
            if not call("export", run, bare):
                failed = True
                continue
            with open(f"{bare}/config.json") as f:
                exported = json.load(f)
            family = exported["model_type"]
            worst = float((logits(bare, exported["architectures"][0], architecture) - want).abs().max())
            print(f"  without the original's config.json: {family}, logits differ by {worst:.2g}", flush=True)
            failed |= not worst < close
    return failed


if __name__ == "__main__":
    sys.exit(check(*sys.argv[2:])) if sys.argv[1:2] == ["check"] else main()
