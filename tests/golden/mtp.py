"""Makes mtp.json: a small DeepSeek-V3 model with two modules of multi-token prediction, as published files store it.

It has the model's config.json, the shapes of its tensors by their published names, the main loss and that of each
module, and two values of the gradient of each tensor: its norm, and its product with a vector of known numbers.
The decoder and its blocks are those of Hugging Face transformers. The modules are written here from section 2.2 of
the report of DeepSeek-V3 (2024), and are compared with MtpLayer of transformers if it has that class.

Needs torch and transformers (5.24 made the file): python3 mtp.py > mtp.json
Parameters and vectors are not stored: both sides compute them from names (values.py).
"""

import json

import torch
import transformers as hf
from torch.func import functional_call
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from values import values

D, LAYERS, MODULES, V, WEIGHT = 24, 2, 2, 37, 0.3
IDS = [[3, 1, 4, 1, 5, 9, 2, 6, 12, 30, 7], [8, 0, 36, 5, 5, 21, 33, 14, 2, 2, 9]]
TARGETS = [row[1:] + [last] for row, last in zip(IDS, (11, 4))]

config = hf.DeepseekV3Config(
    vocab_size=V, hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=4,
    intermediate_size=28, max_position_embeddings=40, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, kv_lora_rank=10, q_lora_rank=9,
    qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5, first_k_dense_replace=1, n_group=3, topk_group=2,
    n_shared_experts=1, routed_scaling_factor=2.5, rms_norm_eps=0.01, attn_implementation="eager",
    experts_implementation="eager", num_nextn_predict_layers=MODULES)


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * weight


class Tensors:
    """Tensors by their published names, as leaves of the graph."""

    def __init__(self):
        self.all = {}

    def __call__(self, name, *shape):
        if name not in self.all:
            leaf = values(name, shape, len(shape) == 1 and name.endswith("weight"))
            self.all[name] = leaf.double().requires_grad_(not name.endswith("e_score_correction_bias"))
        return self.all[name]

    def of_block(self, block, prefix):
        """Parameters of a decoder layer of transformers. Published files have one tensor for each expert's projection."""
        out = {}
        for name, p in list(block.named_parameters()) + [b for b in block.named_buffers() if "correction" in b[0]]:
            if name == "mlp.experts.gate_up_proj":
                width = p.shape[1] // 2
                out[name] = torch.stack([torch.cat([
                    self(f"{prefix}mlp.experts.{e}.gate_proj.weight", width, D),
                    self(f"{prefix}mlp.experts.{e}.up_proj.weight", width, D)]) for e in range(p.shape[0])])
            elif name == "mlp.experts.down_proj":
                out[name] = torch.stack([self(f"{prefix}mlp.experts.{e}.down_proj.weight", *p.shape[1:])
                                         for e in range(p.shape[0])])
            else:
                out[name] = self(prefix + name, *p.shape)
        return out


tensor = Tensors()
ids, targets = torch.tensor(IDS), torch.tensor(TARGETS)
S = ids.shape[1]
embedding = tensor("model.embed_tokens.weight", V, D)
head = tensor("lm_head.weight", V, D)
positions = torch.arange(S)[None]
rotation = v3.DeepseekV3RotaryEmbedding(config)(embedding, positions)
mask = torch.full((S, S), float("-inf"), dtype=torch.float64).triu(1)[None, None]


def run_block(x, layer):
    block = v3.DeepseekV3DecoderLayer(config, min(layer, LAYERS - 1)).double().eval()
    block.self_attn.layer_idx = layer
    out = functional_call(block, tensor.of_block(block, f"model.layers.{layer}."), (x,),
                          dict(position_embeddings=rotation, attention_mask=mask))
    return out[0] if isinstance(out, tuple) else out


def loss_of(hidden, wanted):
    """Sum over tokens with a target, divided by the number of all tokens (equation 24)."""
    logits = hidden @ head.T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-1,
                                             reduction="sum") / ids.numel()


hidden = embedding[ids]
for layer in range(LAYERS):
    hidden = run_block(hidden, layer)
hidden = rms_norm(hidden, tensor("model.norm.weight", D))
main = loss_of(hidden, targets)
modules = []
for k in range(1, MODULES + 1):
    prefix = f"model.layers.{LAYERS + k - 1}."
    # The id k tokens later. The last one is known from the targets; those after it have no loss.
    later = torch.cat([ids[:, k:], targets[:, -1:].expand(-1, k)], 1)
    wanted = torch.cat([targets[:, k:], torch.full((len(IDS), k), -1)], 1)
    joined = torch.cat([rms_norm(embedding[later], tensor(prefix + "enorm.weight", D)),
                        rms_norm(hidden, tensor(prefix + "hnorm.weight", D))], -1)
    projected = joined @ tensor(prefix + "eh_proj.weight", D, 2 * D).T
    before, hidden = hidden, run_block(projected, LAYERS + k - 1)
    hidden = rms_norm(hidden, tensor(prefix + "shared_head.norm.weight", D))
    modules.append(loss_of(hidden, wanted))
    if hasattr(hf.modeling_layers, "MtpLayer"):
        layer = hf.modeling_layers.MtpLayer(config, v3.DeepseekV3DecoderLayer, v3.DeepseekV3RMSNorm,
                                            LAYERS - 1).double().eval()
        w = {f"mtp_block.{n}": p for n, p in tensor.of_block(layer.mtp_block, prefix).items()}
        w |= {n + ".weight": tensor.all[prefix + n + ".weight"] for n in ("enorm", "hnorm", "eh_proj")}
        w["post_norm.weight"] = tensor.all[prefix + "shared_head.norm.weight"]
        theirs = functional_call(layer, w, (embedding[later], before, rotation, mask, positions, None))
        assert torch.allclose(theirs, hidden, atol=1e-5), (theirs - hidden).abs().max()  # its norms are in f32
(main + WEIGHT * sum(modules) / MODULES).backward()


def short(x):
    return float(f"{x.item():.9g}")


gradients = {n: [short((p.grad.flatten() * values("direction " + n, (p.numel(),)).double()).sum()), short(p.grad.norm())]
             for n, p in tensor.all.items() if p.requires_grad}
settings = json.loads(config.to_json_string(use_diff=False))
settings = {k: v for k, v in settings.items() if v is not None and k not in ("id2label", "label2id", "dtype")}
settings.update(model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], num_nextn_predict_layers=MODULES)
print(json.dumps({"config": settings, "tensors": {n: list(p.shape) for n, p in tensor.all.items()}, "ids": IDS,
                  "targets": TARGETS, "weight": WEIGHT, "loss": short(main), "mtp_losses": [short(x) for x in modules],
                  "gradients": gradients}))
