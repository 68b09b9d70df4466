"""Makes family_defaults.json: the values that transformers 4 and 5 take for keys that a config.json does not have.

Needs transformers 5, and transformers 4 in a folder of its own (requirements.txt):
  python3 family_defaults.py OLD > family_defaults.json
The file has for each major version {family: {key: default}}: the defaults of the configuration classes' arguments, and the
rotary keys in the form that both versions read. null: none, or a value that follows from others. Keys that do not say what a
model computes are left out (IGNORED); src/families must know all others.
"""

import dataclasses
import inspect
import json
import os
import subprocess
import sys

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FAMILIES = ("gpt2 gptj gpt_neox bloom opt falcon reformer llama mistral gemma2 gemma3_text qwen2 qwen3 olmo olmo2 phi3 cohere cohere2 "
            "nemotron granite hunyuan_v1_dense apertus gemma arcee starcoder2 stablelm phi seed_oss ernie4_5 helium glm glm4 smollm3 exaone4 olmo3 ministral mixtral "
            "qwen2_moe qwen3_moe olmoe deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm4_moe dots1 minimax_m2 ernie4_5_moe granitemoe hunyuan_v1_moe "
            "gpt_oss "
            "bert roberta modernbert t5 mt5 switch_transformers bart led").split()
# Families whose code is that of another one.
OTHER_NAMES = {"kimi_k2": "deepseek_v3"}
# Token ids, tasks, initial values, dropout and other settings of training, caches, and notes about how weights were made.
IGNORED = set("""
    bos_token_id eos_token_id eod_token_id pad_token_id sep_token_id id2label label2id num_labels problem_type return_dict architectures
    output_attentions output_hidden_states use_cache is_encoder_decoder chunk_size_feed_forward dtype torch_dtype
    transformers_version initializer_range init_std attention_dropout attn_pdrop embd_pdrop resid_pdrop hidden_dropout dropout
    classifier_dropout layerdrop summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    residual_dropout embedding_dropout pretraining_tp reorder_and_upcast_attn router_jitter_noise aux_loss_alpha seq_aux num_mtp_layers is_decoder
    add_cross_attention
    cls_token_id initializer_cutoff_factor mlp_dropout classifier_pooling
    hidden_dropout_prob attention_probs_dropout_prob deterministic_flash_attn sparse_prediction sparse_pred_ignore_index
    reference_compile repad_logits_with_grad tokenizer_class
    dropout_rate initializer_factor expert_capacity router_dtype router_ignore_padding_tokens add_router_probs
    axial_norm_std hash_seed chunk_size_lm_head lsh_attention_probs_dropout_prob local_attention_probs_dropout_prob
    router_z_loss_coef activation_dropout encoder_layerdrop decoder_layerdrop forced_eos_token_id
""".split())
# The widths of DeepSeek's heads have keys of their own. Routers with selection bias have no loss, nor have Hunyuan's.
DEEPSEEK = {"head_dim"}
BIASED_ROUTERS = set("deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm4_moe dots1 minimax_m2 ernie4_5_moe hunyuan_v1_moe".split())
ROUTER_LOSS = {"output_router_logits", "router_aux_loss_coef"}


def arguments(config_class):
    if dataclasses.is_dataclass(config_class):
        fields = dataclasses.fields(config_class)
        return {f.name: f.default if f.default is not dataclasses.MISSING else f.default_factory()
                for f in fields if f.init and (f.default is not dataclasses.MISSING
                                               or f.default_factory is not dataclasses.MISSING)}
    parameters = inspect.signature(config_class.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def rotary(config):
    """The rotary keys in the form of transformers 4, which 5 reads as well."""
    new = getattr(config, "rope_parameters", None)
    if not new:
        return {}
    out = {}
    full = new.get("full_attention", new)
    if "sliding_attention" in new and new["sliding_attention"]["rope_theta"] != full["rope_theta"]:
        out["rope_local_base_freq"] = new["sliding_attention"]["rope_theta"]
    out["rope_theta"] = full["rope_theta"]
    if "partial_rotary_factor" in full:
        out["partial_rotary_factor"] = full["partial_rotary_factor"]
    rest = {k: v for k, v in full.items() if k not in ("rope_theta", "partial_rotary_factor")}
    out["rope_scaling"] = None if rest["rope_type"] == "default" else rest
    return out


def defaults():
    out = {}
    for name in FAMILIES:
        source = OTHER_NAMES.get(name, name)
        if source not in CONFIG_MAPPING:  # younger than this version
            continue
        config_class = CONFIG_MAPPING[source]
        keys = {**arguments(config_class), **rotary(config_class())}
        ignored = IGNORED | {"rope_parameters"} | (DEEPSEEK if source.startswith("deepseek") else set())
        ignored |= ROUTER_LOSS if name in BIASED_ROUTERS else set()
        names = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
                 "modernbert": {"rope_theta": "global_rope_theta", "rope_local_base_freq": "local_rope_theta"}}.get(name, {})
        out[name] = {names.get(k, k): v for k, v in sorted(keys.items()) if k not in ignored}
    return out


def main(old):
    print("{" + ",\n".join(
        f'"{major}": {{\n' + ",\n".join(f'{json.dumps(name)}: {json.dumps(keys)}' for name, keys in table.items()) + "}"
        for major, table in (("4", json.loads(subprocess.run(
            [sys.executable, __file__, "--print"], env={**os.environ, "PYTHONPATH": old}, capture_output=True, text=True,
            check=True).stdout)), ("5", defaults()))) + "}")


if __name__ == "__main__":
    if sys.argv[1] == "--print":
        print(json.dumps(defaults()))
    else:
        assert transformers.__version__.startswith("5.")
        main(sys.argv[1])
