"""Makes documents.json: several documents in one sequence, computed by Hugging Face transformers.

Attention is masked to the document, and positions restart in each. The file has the loss of every token, and two
values of each parameter's gradient: its norm, and its product with a vector of known numbers.

Needs torch and transformers (5.24 made the file): python3 documents.py > documents.json
Parameters and these vectors are not stored: both sides compute them from names (values.py).
"""

import json

import torch
import transformers as hf
from torch.func import functional_call

from values import values

D, HEADS, KV, HD, F, V, LAYERS, EXPERTS = 16, 4, 2, 4, 20, 13, 2, 6
DOCUMENTS = [[3, 1, 4, 1, 5], [9], [2, 6, 12, 7, 7, 8, 0], [5, 11, 5]]
IDS = sum(DOCUMENTS, [])
TARGETS = sum((d[1:] + [-1] for d in DOCUMENTS), [])
STARTS = [sum(map(len, DOCUMENTS[:i])) for i, d in enumerate(DOCUMENTS) for _ in d]


class Parameters:
    """Switchyard's parameters by name, as leaves of the graph."""

    def __init__(self):
        self.all = {}

    def __call__(self, name, *shape):
        leaf = values(name, shape, name.endswith("norm.weight")).double().requires_grad_()
        self.all[name] = leaf
        return leaf


def mixtral(param):
    w = {"model.embed_tokens.weight": param("embedding.weight", V, D),
         "model.norm.weight": param("final_norm.weight", D), "lm_head.weight": param("output.weight", V, D)}
    for i in range(LAYERS):
        p, to = f"layers.{i}.", f"model.layers.{i}."
        w[to + "input_layernorm.weight"] = param(p + "attention_norm.weight", D)
        w[to + "post_attention_layernorm.weight"] = param(p + "ffn_norm.weight", D)
        for of, heads in (("q", HEADS), ("k", KV), ("v", KV)):
            w[f"{to}self_attn.{of}_proj.weight"] = param(f"{p}attention.{of}.weight", heads * HD, D)
        w[to + "self_attn.o_proj.weight"] = param(p + "attention.out.weight", D, HEADS * HD)
        w[to + "mlp.gate.weight"] = param(p + "moe.router.weight", EXPERTS, D)
        w[to + "mlp.experts.gate_up_proj"] = param(p + "moe.experts.up.weight", EXPERTS, 2 * F, D)
        w[to + "mlp.experts.down_proj"] = param(p + "moe.experts.down.weight", EXPERTS, D, F)
    return w


def gpt2(param):
    w = {"transformer.wte.weight": param("embedding.weight", V, D),
         "transformer.wpe.weight": param("position.weight", 32, D)}

    def norm(to, name):
        w[to + ".weight"], w[to + ".bias"] = param(name + ".weight", D), param(name + ".bias", D)

    for i in range(LAYERS):
        p, to = f"layers.{i}.", f"transformer.h.{i}."
        norm(to + "ln_1", p + "attention_norm")
        norm(to + "ln_2", p + "ffn_norm")
        qkv = [(param(f"{p}attention.{of}.weight", D, D), param(f"{p}attention.{of}.bias", D)) for of in "qkv"]
        w[to + "attn.c_attn.weight"] = torch.cat([x for x, _ in qkv]).T
        w[to + "attn.c_attn.bias"] = torch.cat([x for _, x in qkv])
        for of, name, rows, columns in (("attn.c_proj", "attention.out", D, D), ("mlp.c_fc", "mlp.up", F, D),
                                        ("mlp.c_proj", "mlp.down", D, F)):
            w[f"{to}{of}.weight"] = param(f"{p}{name}.weight", rows, columns).T
            w[f"{to}{of}.bias"] = param(f"{p}{name}.bias", rows)
    norm("transformer.ln_f", "final_norm")
    return w


def run(name, model, weights_of, settings):
    param = Parameters()
    weights = weights_of(param)
    model = model.double().eval()
    missing = set(weights) ^ set(dict(model.named_parameters()))
    assert missing in (set(), {"lm_head.weight"}), missing
    starts, positions = torch.tensor(STARTS), torch.arange(len(IDS))
    seen = (starts[:, None] == starts[None]) & (positions[:, None] >= positions[None])
    mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)[None, None]
    logits = functional_call(model, weights, (torch.tensor([IDS]),), dict(
        attention_mask=mask, position_ids=(positions - starts)[None])).logits[0]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(TARGETS), ignore_index=-1, reduction="none")
    (losses.sum() / sum(t >= 0 for t in TARGETS)).backward()
    short = lambda x: float(f"{x.item():.9g}")
    direction = lambda n, p: values("direction " + n, (p.numel(),), n.endswith("norm.weight")).double()
    gradients = {n: [short((p.grad.flatten() * direction(n, p)).sum()), short(p.grad.norm())]
                 for n, p in param.all.items()}
    return {"name": name, "settings": settings, "vocab": V, "ids": IDS, "targets": TARGETS, "document_start": STARTS,
            "losses": [short(x) for x in losses], "gradients": gradients}


torch.manual_seed(1)
common = dict(attn_implementation="eager", bos_token_id=0, eos_token_id=0, vocab_size=V)
cases = [
    run("mixtral", hf.MixtralForCausalLM(hf.MixtralConfig(
        hidden_size=D, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HD, intermediate_size=F,
        num_hidden_layers=LAYERS, max_position_embeddings=32, num_local_experts=EXPERTS, num_experts_per_tok=2,
        rms_norm_eps=1e-5, sliding_window=None, experts_implementation="eager", tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **common)), mixtral,
        ["--model.kv_heads=2", f"--moe.experts={EXPERTS}", f"--moe.d_ff={F}"]),
    run("gpt2", hf.GPT2LMHeadModel(hf.GPT2Config(
        n_embd=D, n_head=HEADS, n_layer=LAYERS, n_inner=F, n_positions=32, layer_norm_epsilon=1e-5,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **common)), gpt2,
        ["--model.norm=layernorm", "--model.bias=all", "--model.position=learned", "--model.ffn=gelu_tanh",
         "--model.tie_embeddings=true"]),
]
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
