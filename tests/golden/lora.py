"""Makes lora.json: LoRA of a small Llama by PEFT, and of a small Mixtral with adapters of its experts.

Each case has the model's config.json, the shapes of its tensors by their published names, rank, alpha and targets of
LoRA, the loss, logits of the last tokens, and two values of the gradient of each adapter: its norm, and its product
with a vector of known numbers. The first case is PEFT's. PEFT has no standard form of experts, so the second one
computes with weights W + alpha / rank * B A in transformers, in f64.

Needs torch, transformers and peft (2.15, 5.24 and 0.21 made the file): python3 lora.py > lora.json
Parameters and vectors are not stored: both sides compute them from names (values.py).
"""

import json

import peft
import torch
import transformers as hf
from torch.func import functional_call

from values import values

RANK, ALPHA, V = 3, 6, 37
IDS = [[3, 1, 4, 1, 5, 9, 2, 6, 12, 30, 7], [8, 0, 36, 5, 5, 21, 33, 14, 2, 2, 9]]
TARGETS = [row[1:] + [last] for row, last in zip(IDS, (11, 4))]
COMMON = dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              intermediate_size=20, max_position_embeddings=40, bos_token_id=0, eos_token_id=0, pad_token_id=None,
              rms_norm_eps=0.01, tie_word_embeddings=False, attn_implementation="eager")
ids, targets = torch.tensor(IDS), torch.tensor(TARGETS)


def short(x):
    return float(f"{x.item():.9g}")


def loss_of(logits):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def filled(name, shape):
    return values(name, shape, len(shape) == 1).double()


def case(name, config, targets_here, tensors, logits, adapters):
    loss = loss_of(logits)
    loss.backward()
    gradients = {n: [short((p.grad.flatten() * values("direction " + n, (p.numel(),)).double()).sum()),
                     short(p.grad.norm())] for n, p in adapters.items()}
    settings = json.loads(config.to_json_string(use_diff=False))
    settings = {k: v for k, v in settings.items() if v is not None and k not in ("id2label", "label2id", "dtype")}
    return {"name": name, "config": settings, "rank": RANK, "alpha": ALPHA, "targets": targets_here,
            "tensors": tensors, "ids": IDS, "target_ids": TARGETS, "loss": short(loss),
            "logits": [[short(x) for x in row[-1]] for row in logits], "gradients": gradients}


def llama():
    config = hf.LlamaConfig(**COMMON)
    config.architectures = ["LlamaForCausalLM"]
    base = hf.LlamaForCausalLM(config).double().eval()
    tensors = {n: list(p.shape) for n, p in base.named_parameters()}
    with torch.no_grad():
        for n, p in base.named_parameters():
            p.copy_(filled(n, p.shape))
    model = peft.get_peft_model(base, peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "o_proj", "gate_proj",
                                                                    "up_proj", "down_proj"])).double()
    adapters = {}
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_" not in n:
                continue
            plain = n.removeprefix("base_model.model.").replace(".default", "")
            p.copy_(filled(plain, p.shape))
            adapters[plain] = p
    return case("llama", config, "attention.q, attention.v, attention.out, mlp", tensors, model(ids).logits, adapters)


def mixtral():
    config = hf.MixtralConfig(**COMMON, num_local_experts=4, num_experts_per_tok=2, experts_implementation="eager")
    config.architectures = ["MixtralForCausalLM"]
    model = hf.MixtralForCausalLM(config).double().eval()
    tensors, adapters, weights = {}, {}, {}

    def adapted(name, *shape):
        """W + alpha / rank * B A of one published tensor."""
        tensors[name] = list(shape)
        module = name.removesuffix(".weight")
        a, b = (filled(f"{module}.lora_{x}.weight", s).requires_grad_() for x, s in
                (("A", (RANK, shape[1])), ("B", (shape[0], RANK))))
        adapters[f"{module}.lora_A.weight"], adapters[f"{module}.lora_B.weight"] = a, b
        return filled(name, shape) + ALPHA / RANK * b @ a

    D, F = COMMON["hidden_size"], COMMON["intermediate_size"]
    for n, p in model.named_parameters():
        prefix = n.replace(".mlp.", ".block_sparse_moe.").rsplit(".experts.", 1)[0]
        experts = range(config.num_local_experts)
        if n.endswith("experts.gate_up_proj"):
            weights[n] = torch.stack([torch.cat([adapted(f"{prefix}.experts.{e}.{w}.weight", F, D)
                                                 for w in ("w1", "w3")]) for e in experts])
        elif n.endswith("experts.down_proj"):
            weights[n] = torch.stack([adapted(f"{prefix}.experts.{e}.w2.weight", D, F) for e in experts])
        elif n.endswith("self_attn.k_proj.weight"):
            weights[n] = adapted(n, *p.shape)
        else:
            published = n.replace(".mlp.", ".block_sparse_moe.")
            tensors[published] = list(p.shape)
            weights[n] = filled(published, p.shape)
    logits = functional_call(model, weights, (ids,)).logits
    return case("mixtral", config, "experts, attention.k", tensors, logits, adapters)


print(json.dumps([llama(), mixtral()]))
