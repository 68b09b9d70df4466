"""Makes latent.json: small DeepSeek-V2 and V3 models, computed by Hugging Face transformers.

It has the loss, the logits after the last token, and two values of each parameter's gradient: its norm, and
its product with a vector of known numbers.

Needs torch and transformers (5.23 made the file): python3 latent.py > latent.json
Parameters and these vectors are not stored: both sides compute them from names (values.py).
"""

import json
import math

import torch
import transformers as hf
from torch.func import functional_call

from values import values

D, HEADS, NOPE, ROPE, VALUE, KV, F, V, LAYERS = 16, 4, 6, 4, 5, 7, 20, 13, 3
EXPERTS, EXPERT_F = 6, 9
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 12, 7, 7]
TARGETS = IDS[1:] + [0]


def numbers(name, shape):
    return values(name, shape, name.endswith("norm.weight"))


class Parameters:
    """Switchyard's parameters by name, as leaves of the graph."""

    def __init__(self):
        self.all = {}

    def __call__(self, name, *shape):
        leaf = numbers(name, shape).double().requires_grad_()
        self.all[name] = leaf
        return leaf


def weights(param, q_lora_rank):
    w = {"model.embed_tokens.weight": param("embedding.weight", V, D), "model.norm.weight": param("final_norm.weight", D),
         "lm_head.weight": param("output.weight", V, D)}
    for i in range(LAYERS):
        p, a = f"layers.{i}.", f"layers.{i}.attention."
        to, attn = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        w[to + "input_layernorm.weight"] = param(p + "attention_norm.weight", D)
        w[to + "post_attention_layernorm.weight"] = param(p + "ffn_norm.weight", D)
        q = param(a + "q.weight", HEADS, ROPE + NOPE, q_lora_rank or D)
        # transformers rotates the last dimensions.
        q = torch.cat([q[:, ROPE:], q[:, :ROPE]], 1).flatten(0, 1)
        if q_lora_rank:
            w[attn + "q_a_proj.weight"] = param(a + "q_down.weight", q_lora_rank, D)
            w[attn + "q_a_layernorm.weight"] = param(a + "q_latent_norm.weight", q_lora_rank)
            w[attn + "q_b_proj.weight"] = q
        else:
            w[attn + "q_proj.weight"] = q
        w[attn + "kv_a_proj_with_mqa.weight"] = torch.cat(
            [param(a + "kv_down.weight", KV, D), param(a + "k_rope.weight", ROPE, D)])
        w[attn + "kv_a_layernorm.weight"] = param(a + "kv_latent_norm.weight", KV)
        w[attn + "kv_b_proj.weight"] = torch.cat(
            [param(a + "k.weight", HEADS, NOPE, KV), param(a + "v.weight", HEADS, VALUE, KV)], 1).flatten(0, 1)
        w[attn + "o_proj.weight"] = param(a + "out.weight", D, HEADS * VALUE)
        if i == 0:
            ffn(w, param, p + "mlp.", to + "mlp.", F)
            continue
        m = p + "moe."
        w[to + "mlp.gate.weight"] = param(m + "router.weight", EXPERTS, D)
        w[to + "mlp.experts.gate_up_proj"] = param(m + "experts.up.weight", EXPERTS, 2 * EXPERT_F, D)
        w[to + "mlp.experts.down_proj"] = param(m + "experts.down.weight", EXPERTS, D, EXPERT_F)
        ffn(w, param, m + "shared.", to + "mlp.shared_experts.", EXPERT_F)
    return w


def ffn(w, param, param_name, hf_name, width):
    up = param(param_name + "up.weight", 2 * width, D)
    w[hf_name + "gate_proj.weight"], w[hf_name + "up_proj.weight"] = up[:width], up[width:]
    w[hf_name + "down_proj.weight"] = param(param_name + "down.weight", D, width)


def run(name, model, q_lora_rank, mscale, settings):
    param = Parameters()
    w = weights(param, q_lora_rank)
    model = model.double().eval()
    assert set(w) == set(dict(model.named_parameters())), set(w) ^ set(dict(model.named_parameters()))
    logits = functional_call(model, w, (torch.tensor([IDS]),)).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(TARGETS))
    loss.backward()
    scale = (0.1 * mscale * math.log(4) + 1) ** 2 / math.sqrt(NOPE + ROPE)
    model_keys = [f"head_dim={NOPE}", f"kv_lora_rank={KV}", f"q_lora_rank={q_lora_rank}", f"qk_rope_head_dim={ROPE}",
                  f"v_head_dim={VALUE}", "latent_norm_eps=1e-6", "norm_eps=0.01", "rope_pairs=interleaved",
                  "rope_scaling=yarn", "rope_factor=4", "rope_original_length=8", "rope_attention_factor=1",
                  f"attention_scale={scale!r}"]
    short = lambda x: float(f"{x.item():.9g}")
    gradients = {n: [short((p.grad.flatten() * numbers("direction " + n, p.numel()).double()).sum()),
                     short(p.grad.norm())] for n, p in param.all.items()}
    return {"name": name, "settings": [f"--model.{k}" for k in model_keys] + [f"--moe.{k}" for k in settings],
            "vocab": V, "ids": IDS, "targets": TARGETS, "loss": short(loss),
            "logits": [short(x) for x in logits[-1]], "gradients": gradients}


def common(mscale, q_lora_rank):
    return dict(hidden_size=D, num_attention_heads=HEADS, num_key_value_heads=HEADS, intermediate_size=F,
                num_hidden_layers=LAYERS, vocab_size=V, max_position_embeddings=32, attn_implementation="eager",
                experts_implementation="eager",
                bos_token_id=0, eos_token_id=0, pad_token_id=0, rms_norm_eps=0.01, tie_word_embeddings=False,
                kv_lora_rank=KV, q_lora_rank=q_lora_rank or None, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE,
                v_head_dim=VALUE, n_routed_experts=EXPERTS, n_shared_experts=1, num_experts_per_tok=2,
                moe_intermediate_size=EXPERT_F, first_k_dense_replace=1,
                rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
                                 "beta_slow": 1.0, "mscale": mscale, "mscale_all_dim": mscale,
                                 "original_max_position_embeddings": 8})


torch.manual_seed(1)
cases = [
    run("deepseek_v3", hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(
        **common(1.0, 8), n_group=3, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True, num_mtp_layers=0)),
        8, 1.0, ["score=sigmoid", "scale=2.5", "groups=3", "topk_groups=2"]),
    run("deepseek_v2", hf.DeepseekV2ForCausalLM(hf.DeepseekV2Config(
        **common(0.707, 8), n_group=3, topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=16.0)),
        8, 0.707, ["renormalize=false", "scale=16", "groups=3", "topk_groups=2", "group_score=max"]),
    run("deepseek_v2_lite", hf.DeepseekV2ForCausalLM(hf.DeepseekV2Config(**common(0.707, 0), n_group=1, topk_group=1)),
        0, 0.707, ["renormalize=false"]),
]
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
