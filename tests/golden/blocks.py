"""Makes blocks.json: logits of small models of several families, as Hugging Face transformers computes them.

Needs torch and transformers (5.23 made the file): python3 blocks.py > blocks.json
Parameters are not stored: both sides make them of their names (value()).
"""

import json

import torch
import transformers as hf

D, HEADS, KV, HD, F, V, LAYERS = 16, 4, 2, 4, 20, 13, 2
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 12]


def value(name, i):
    """Element i of our parameter of this name: in [-0.5, 0.5), and around 1 of a norm's weight."""
    h = 0
    for c in name:
        h = (h * 31 + ord(c)) % 65521
    x = ((i + 1) * 2654435761 + h * 40503) % 2**32
    x ^= x >> 15
    x = x * 2246822519 % 2**32
    x ^= x >> 13
    return x / 2**32 - 0.5 + (1 if name.endswith("norm.weight") else 0)


def ours(name, *shape):
    n = 1
    for d in shape:
        n *= d
    return torch.tensor([value(name, i) for i in range(n)], dtype=torch.float64).float().reshape(shape)


class Layer:
    """Our parameters of one layer, in the shapes of nn.Linear."""

    def __init__(self, i, kv=KV, gated=True):
        self.p, self.kv, self.gated = f"layers.{i}.", kv, gated

    def norm(self, name):
        return ours(self.p + name, D)

    def q(self): return ours(self.p + "attention.q.weight", HEADS * HD, D)
    def k(self): return ours(self.p + "attention.k.weight", self.kv * HD, D)
    def v(self): return ours(self.p + "attention.v.weight", self.kv * HD, D)
    def bias(self, of, n): return ours(self.p + of + ".bias", n)
    def out(self): return ours(self.p + "attention.out.weight", D, HEADS * HD)
    def up(self): return ours(self.p + "mlp.up.weight", (2 if self.gated else 1) * F, D)
    def down(self): return ours(self.p + "mlp.down.weight", D, F)


def llama_like(layer, prefix, biased=False):
    """The names that most families share."""
    out = {prefix + "self_attn.q_proj.weight": layer.q(), prefix + "self_attn.k_proj.weight": layer.k(),
           prefix + "self_attn.v_proj.weight": layer.v(), prefix + "self_attn.o_proj.weight": layer.out(),
           prefix + "mlp.gate_proj.weight": layer.up()[:F], prefix + "mlp.up_proj.weight": layer.up()[F:],
           prefix + "mlp.down_proj.weight": layer.down()}
    if biased:
        for of, n in (("q", HEADS * HD), ("k", KV * HD), ("v", KV * HD)):
            out[f"{prefix}self_attn.{of}_proj.bias"] = layer.bias("attention." + of, n)
    return out


def run(name, settings, model, weights):
    missing = model.load_state_dict(weights, strict=False)
    lost = [m for m in missing.missing_keys if not any(x in m for x in ("masked_bias", "attn.bias", "inv_freq"))]
    assert not missing.unexpected_keys and (lost in ([], ["lm_head.weight"])), missing
    model.tie_weights()
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0, -1]
    return {"name": name, "settings": [f"--model.{s}" for s in settings], "vocab": V, "ids": IDS,
            "logits": [float(f"{x:.9g}") for x in logits.tolist()]}


def common(kv=KV):
    return dict(hidden_size=D, num_attention_heads=HEADS, num_key_value_heads=kv, head_dim=HD, intermediate_size=F,
                num_hidden_layers=LAYERS, vocab_size=V, max_position_embeddings=64, attn_implementation="eager",
                bos_token_id=0, eos_token_id=0, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def gpt2():
    w = {"transformer.wte.weight": ours("embedding.weight", V, D),
         "transformer.wpe.weight": ours("position.weight", 64, D),
         "transformer.ln_f.weight": ours("final_norm.weight", D), "transformer.ln_f.bias": ours("final_norm.bias", D)}
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"transformer.h.{i}."
        for theirs, mine in (("ln_1", "attention_norm"), ("ln_2", "ffn_norm")):
            w[p + theirs + ".weight"], w[p + theirs + ".bias"] = l.norm(mine + ".weight"), l.norm(mine + ".bias")
        w[p + "attn.c_attn.weight"] = torch.cat([l.q(), l.k(), l.v()]).T
        w[p + "attn.c_attn.bias"] = torch.cat([l.bias("attention." + of, D) for of in "qkv"])
        w[p + "attn.c_proj.weight"], w[p + "attn.c_proj.bias"] = l.out().T, l.bias("attention.out", D)
        w[p + "mlp.c_fc.weight"], w[p + "mlp.c_fc.bias"] = l.up().T, l.bias("mlp.up", F)
        w[p + "mlp.c_proj.weight"], w[p + "mlp.c_proj.bias"] = l.down().T, l.bias("mlp.down", D)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=D, n_head=HEADS, n_layer=LAYERS, n_inner=F, vocab_size=V,
                                             n_positions=64, attn_implementation="eager", bos_token_id=0,
                                             eos_token_id=0))
    return run("gpt2", ["norm=layernorm", "bias=all", "position=learned", "ffn=gelu_tanh", "tie_embeddings=true",
                        "kv_heads=4"], model, w)


def gptj():
    w = {"transformer.wte.weight": ours("embedding.weight", V, D), "lm_head.weight": ours("output.weight", V, D),
         "lm_head.bias": torch.zeros(V), "transformer.ln_f.weight": ours("final_norm.weight", D),
         "transformer.ln_f.bias": ours("final_norm.bias", D)}
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"transformer.h.{i}."
        w[p + "ln_1.weight"], w[p + "ln_1.bias"] = l.norm("attention_norm.weight"), l.norm("attention_norm.bias")
        for of, x in (("q", l.q()), ("k", l.k()), ("v", l.v()), ("out", l.out())):
            w[f"{p}attn.{of}_proj.weight"] = x
        w[p + "mlp.fc_in.weight"], w[p + "mlp.fc_in.bias"] = l.up(), l.bias("mlp.up", F)
        w[p + "mlp.fc_out.weight"], w[p + "mlp.fc_out.bias"] = l.down(), l.bias("mlp.down", D)
    model = hf.GPTJForCausalLM(hf.GPTJConfig(n_embd=D, n_head=HEADS, n_layer=LAYERS, n_inner=F, vocab_size=V,
                                             n_positions=64, rotary_dim=2, attn_implementation="eager",
                                             bos_token_id=0, eos_token_id=0, tie_word_embeddings=False))
    return run("gptj", ["norm=layernorm", "bias=mlp", "norm_bias=true", "parallel_block=true",
                        "rope_pairs=interleaved", "rope_fraction=0.5", "ffn=gelu_tanh", "kv_heads=4"], model, w)


def neox():
    w = {"gpt_neox.embed_in.weight": ours("embedding.weight", V, D),
         "gpt_neox.final_layer_norm.weight": ours("final_norm.weight", D),
         "gpt_neox.final_layer_norm.bias": ours("final_norm.bias", D)}
    by_head = lambda parts, *tail: torch.stack([x.reshape(HEADS, HD, *tail) for x in parts], 1).reshape(3 * D, *tail)
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"gpt_neox.layers.{i}."
        for theirs, mine in (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm")):
            w[p + theirs + ".weight"], w[p + theirs + ".bias"] = l.norm(mine + ".weight"), l.norm(mine + ".bias")
        w[p + "attention.query_key_value.weight"] = by_head([l.q(), l.k(), l.v()], D)
        w[p + "attention.query_key_value.bias"] = by_head([l.bias("attention." + of, D) for of in "qkv"])
        w[p + "attention.dense.weight"], w[p + "attention.dense.bias"] = l.out(), l.bias("attention.out", D)
        w[p + "mlp.dense_h_to_4h.weight"], w[p + "mlp.dense_h_to_4h.bias"] = l.up(), l.bias("mlp.up", F)
        w[p + "mlp.dense_4h_to_h.weight"], w[p + "mlp.dense_4h_to_h.bias"] = l.down(), l.bias("mlp.down", D)
    config = hf.GPTNeoXConfig(hidden_size=D, num_attention_heads=HEADS, intermediate_size=F, num_hidden_layers=LAYERS,
                              vocab_size=V, max_position_embeddings=64, rotary_pct=0.5, attn_implementation="eager",
                              bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
    model = hf.GPTNeoXForCausalLM(config)
    head = [k for k in model.state_dict() if k in ("embed_out.weight", "lm_head.weight")][0]
    w[head] = ours("output.weight", V, D)
    return run("gpt_neox", ["norm=layernorm", "bias=all", "parallel_block=true", "parallel_norms=2",
                            "rope_fraction=0.5", "ffn=gelu", "kv_heads=4"], model, w)


def family(name, settings, model, norms, biased=False, tied=False, shifted=0.0, final=True, qk=None):
    """norms: ours by theirs, within a layer. shifted: what they add to a norm's weight."""
    w = {"model.embed_tokens.weight": ours("embedding.weight", V, D),
         "model.norm.weight": ours("final_norm.weight", D) - shifted}
    if not tied:
        w["lm_head.weight"] = ours("output.weight", V, D)
    for i in range(LAYERS):
        l, p = Layer(i), f"model.layers.{i}."
        w.update(llama_like(l, p, biased))
        for theirs, mine in norms.items():
            w[f"{p}{theirs}.weight"] = l.norm(mine + ".weight") - shifted
        if qk:
            w[p + "self_attn.q_norm.weight"] = ours(l.p + "attention.q_norm.weight", HEADS * HD)
            w[p + "self_attn.k_norm.weight"] = ours(l.p + "attention.k_norm.weight", KV * HD)
    return run(name, settings, model, w)


cases = [
    gpt2(), gptj(), neox(),
    family("qwen2", ["bias=qkv"], hf.Qwen2ForCausalLM(hf.Qwen2Config(**common(), rms_norm_eps=1e-5,
                                                                     tie_word_embeddings=False)),
           {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}, biased=True),
    family("olmo2", ["norm_position=output", "qk_norm=whole"],
           hf.Olmo2ForCausalLM(hf.Olmo2Config(**common(), rms_norm_eps=1e-5, tie_word_embeddings=False)),
           {"post_attention_layernorm": "attention_out_norm", "post_feedforward_layernorm": "ffn_out_norm"}, qk=True),
    family("gemma2", ["norm_position=both", "scale_embedding=true", "tie_embeddings=true", "ffn=geglu_tanh",
                      "attention_softcap=5", "output_softcap=3", "norm_offset=true", "pattern=local,global"],
           hf.Gemma2ForCausalLM(hf.Gemma2Config(**common(), rms_norm_eps=1e-5, query_pre_attn_scalar=HD,
                                                sliding_window=3, attn_logit_softcapping=5.0,
                                                final_logit_softcapping=3.0)),
           {"input_layernorm": "attention_norm", "post_attention_layernorm": "attention_out_norm",
            "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "ffn_out_norm"}, tied=True,
           shifted=1.0),
    family("cohere", ["norm=layernorm", "parallel_block=true", "rope_pairs=interleaved", "logit_scale=0.3",
                      "tie_embeddings=true"],
           hf.CohereForCausalLM(hf.CohereConfig(**{k: v for k, v in common().items() if k != "head_dim"},
                                                layer_norm_eps=1e-5, logit_scale=0.3)),
           {"input_layernorm": "attention_norm"}, tied=True),
]
cases[5]["settings"].append("--attention.local.window=3")
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
