"""Makes blocks.json: logits of small models of several families, computed by Hugging Face transformers.

Needs torch and transformers (5.23 made the file): python3 blocks.py > blocks.json
Parameters are not stored: both sides compute them from their names (values.py).
"""

import json

import torch
import transformers as hf

from values import values

D, HEADS, KV, HD, F, V, LAYERS = 16, 4, 2, 4, 20, 13, 2
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 12]


def param(name, *shape):
    """Switchyard's parameter of this name, around 1 if it is the weight of a norm."""
    return values(name, shape, name.endswith("norm.weight"))


def around_zero(name, *shape):
    """The parameter around 0: for norms with an offset, and for norms of the embedding."""
    return (param(name, *shape).double() - 1).float()


def with_bias(w, hf_name, param_name, weight=param):
    """Adds the parameters of a LayerNorm with a bias."""
    w[hf_name + ".weight"], w[hf_name + ".bias"] = weight(param_name + ".weight", D), param(param_name + ".bias", D)


class Layer:
    """Switchyard's parameters of one layer, in the shapes of nn.Linear."""

    def __init__(self, i, kv=KV, gated=True):
        self.p, self.kv, self.gated = f"layers.{i}.", kv, gated

    def norm(self, name):
        return param(self.p + name, D)

    def q(self): return param(self.p + "attention.q.weight", HEADS * HD, D)
    def k(self): return param(self.p + "attention.k.weight", self.kv * HD, D)
    def v(self): return param(self.p + "attention.v.weight", self.kv * HD, D)
    def bias(self, of, n): return param(self.p + of + ".bias", n)
    def out(self): return param(self.p + "attention.out.weight", D, HEADS * HD)
    def up(self): return param(self.p + "mlp.up.weight", (2 if self.gated else 1) * F, D)
    def down(self): return param(self.p + "mlp.down.weight", D, F)


def llama_like(layer, prefix, biased=False):
    """Parameters of one layer by the names that most families share."""
    out = {prefix + "self_attn.q_proj.weight": layer.q(), prefix + "self_attn.k_proj.weight": layer.k(),
           prefix + "self_attn.v_proj.weight": layer.v(), prefix + "self_attn.o_proj.weight": layer.out(),
           prefix + "mlp.gate_proj.weight": layer.up()[:F], prefix + "mlp.up_proj.weight": layer.up()[F:],
           prefix + "mlp.down_proj.weight": layer.down()}
    if biased:
        for of, n in (("q", HEADS * HD), ("k", KV * HD), ("v", KV * HD)):
            out[f"{prefix}self_attn.{of}_proj.bias"] = layer.bias("attention." + of, n)
    return out


def last_logits(model):
    return model(torch.tensor([IDS])).logits[0, -1]


def run(name, settings, model, weights, logits_of=last_logits, unused=("masked_bias", "attn.bias", "inv_freq")):
    missing = model.load_state_dict(weights, strict=False)
    lost = [m for m in missing.missing_keys if not any(x in m for x in unused)]
    assert not missing.unexpected_keys and (lost in ([], ["lm_head.weight"])), missing
    model.tie_weights()
    model.eval()
    with torch.no_grad():
        logits = logits_of(model)
    settings = [s if s.startswith("--") else f"--model.{s}" for s in settings]
    return {"name": name, "settings": settings, "vocab": V, "ids": IDS,
            "logits": [float(f"{x:.9g}") for x in logits.tolist()]}


def common(kv=KV):
    return dict(hidden_size=D, num_attention_heads=HEADS, num_key_value_heads=kv, head_dim=HD, intermediate_size=F,
                num_hidden_layers=LAYERS, vocab_size=V, max_position_embeddings=64, attn_implementation="eager",
                bos_token_id=0, eos_token_id=0, pad_token_id=0,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def gpt2():
    w = {"transformer.wte.weight": param("embedding.weight", V, D),
         "transformer.wpe.weight": param("position.weight", 64, D),
         "transformer.ln_f.weight": param("final_norm.weight", D), "transformer.ln_f.bias": param("final_norm.bias", D)}
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"transformer.h.{i}."
        for hf_name, param_name in (("ln_1", "attention_norm"), ("ln_2", "ffn_norm")):
            w[p + hf_name + ".weight"], w[p + hf_name + ".bias"] = l.norm(param_name + ".weight"), l.norm(param_name + ".bias")
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
    w = {"transformer.wte.weight": param("embedding.weight", V, D), "lm_head.weight": param("output.weight", V, D),
         "lm_head.bias": param("output.bias", V), "transformer.ln_f.weight": param("final_norm.weight", D),
         "transformer.ln_f.bias": param("final_norm.bias", D)}
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
                        "rope_pairs=interleaved", "rope_fraction=0.5", "ffn=gelu_tanh", "kv_heads=4",
                        "output_bias=true"], model, w)


def neox():
    w = {"gpt_neox.embed_in.weight": param("embedding.weight", V, D),
         "gpt_neox.final_layer_norm.weight": param("final_norm.weight", D),
         "gpt_neox.final_layer_norm.bias": param("final_norm.bias", D)}
    by_head = lambda projections, *tail: torch.stack([x.reshape(HEADS, HD, *tail) for x in projections], 1).reshape(3 * D, *tail)
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"gpt_neox.layers.{i}."
        for hf_name, param_name in (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm")):
            w[p + hf_name + ".weight"], w[p + hf_name + ".bias"] = l.norm(param_name + ".weight"), l.norm(param_name + ".bias")
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
    w[head] = param("output.weight", V, D)
    return run("gpt_neox", ["norm=layernorm", "bias=all", "parallel_block=true", "parallel_norms=2",
                            "rope_fraction=0.5", "ffn=gelu", "kv_heads=4"], model, w)


def family(name, settings, model, norms, biased=False, tied=False, weight=param, qk=None):
    """Runs a model with the names of llama_like.

    norms: Switchyard's norms of a layer by transformers' names. qk: the norm of queries and keys covers the
    whole projection ("whole"), each head with one weight ("head"), or each head with its own weight ("each").
    """
    w = {"model.embed_tokens.weight": param("embedding.weight", V, D),
         "model.norm.weight": weight("final_norm.weight", D)}
    if not tied:
        w["lm_head.weight"] = param("output.weight", V, D)
    for i in range(LAYERS):
        l, p = Layer(i), f"model.layers.{i}."
        w.update(llama_like(l, p, biased))
        for hf_name, param_name in norms.items():
            w[f"{p}{hf_name}.weight"] = weight(l.p + param_name + ".weight", D)
        if qk:
            for of, heads in (("q", HEADS), ("k", KV)):
                shape = {"whole": (heads * HD,), "head": (HD,), "each": (heads, HD)}[qk]
                w[f"{p}self_attn.{of}_norm.weight"] = weight(f"{l.p}attention.{of}_norm.weight", *shape)
    return run(name, settings, model, w)


def bloom(heads):
    """Runs Bloom with `heads` heads of width 4. The slopes differ if `heads` is not a power of two."""
    global D, HEADS, F
    sizes, (D, HEADS, F) = (D, HEADS, F), (heads * HD, heads, 4 * heads * HD)
    w = {"transformer.word_embeddings.weight": param("embedding.weight", V, D)}
    with_bias(w, "transformer.word_embeddings_layernorm", "embedding_norm")
    with_bias(w, "transformer.ln_f", "final_norm")
    by_head = lambda projections, *tail: torch.stack([x.reshape(HEADS, HD, *tail) for x in projections], 1).reshape(3 * D, *tail)
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"transformer.h.{i}."
        with_bias(w, p + "input_layernorm", l.p + "attention_norm")
        with_bias(w, p + "post_attention_layernorm", l.p + "ffn_norm")
        w[p + "self_attention.query_key_value.weight"] = by_head([l.q(), l.k(), l.v()], D)
        w[p + "self_attention.query_key_value.bias"] = by_head([l.bias("attention." + of, D) for of in "qkv"])
        w[p + "self_attention.dense.weight"], w[p + "self_attention.dense.bias"] = l.out(), l.bias("attention.out", D)
        w[p + "mlp.dense_h_to_4h.weight"], w[p + "mlp.dense_h_to_4h.bias"] = l.up(), l.bias("mlp.up", F)
        w[p + "mlp.dense_4h_to_h.weight"], w[p + "mlp.dense_4h_to_h.bias"] = l.down(), l.bias("mlp.down", D)
    config = hf.BloomConfig(hidden_size=D, n_head=HEADS, n_layer=LAYERS, vocab_size=V, bos_token_id=0, eos_token_id=0,
                            pad_token_id=0, attn_implementation="eager")
    case = run(f"bloom_{heads}_heads", ["norm=layernorm", "bias=all", "position=alibi", "embedding_norm=true",
                                        "ffn=gelu_tanh", "tie_embeddings=true", f"d_model={D}", f"heads={heads}",
                                        f"kv_heads={heads}", f"d_ff={F}"], hf.BloomForCausalLM(config), w)
    D, HEADS, F = sizes
    return case


def falcon2():
    w = {"transformer.word_embeddings.weight": param("embedding.weight", V, D),
         "lm_head.weight": param("output.weight", V, D)}
    with_bias(w, "transformer.ln_f", "final_norm")
    for i in range(LAYERS):
        l, p = Layer(i, gated=False), f"transformer.h.{i}."
        with_bias(w, p + "input_layernorm", l.p + "attention_norm")
        groups = [l.q().reshape(KV, HEADS // KV * HD, D), l.k().reshape(KV, HD, D), l.v().reshape(KV, HD, D)]
        w[p + "self_attention.query_key_value.weight"] = torch.cat(groups, 1).reshape(-1, D)
        w[p + "self_attention.dense.weight"] = l.out()
        w[p + "mlp.dense_h_to_4h.weight"], w[p + "mlp.dense_4h_to_h.weight"] = l.up(), l.down()
    config = hf.FalconConfig(hidden_size=D, num_attention_heads=HEADS, num_kv_heads=KV, num_hidden_layers=LAYERS,
                             vocab_size=V, ffn_hidden_size=F, new_decoder_architecture=True, num_ln_in_parallel_attn=1,
                             max_position_embeddings=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
                             attn_implementation="eager")
    return run("falcon2", ["norm=layernorm", "norm_bias=true", "parallel_block=true", "ffn=gelu"],
               hf.FalconForCausalLM(config), w)


def opt():
    w = {"model.decoder.embed_tokens.weight": param("embedding.weight", V, D),
         "model.decoder.embed_positions.weight": torch.cat([torch.zeros(2, D), param("position.weight", 64, D)])}
    with_bias(w, "model.decoder.final_layer_norm", "final_norm")
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"model.decoder.layers.{i}."
        with_bias(w, p + "self_attn_layer_norm", l.p + "attention_norm")
        with_bias(w, p + "final_layer_norm", l.p + "ffn_norm")
        for of, x in (("q", l.q()), ("k", l.k()), ("v", l.v()), ("out", l.out())):
            w[f"{p}self_attn.{of}_proj.weight"], w[f"{p}self_attn.{of}_proj.bias"] = x, l.bias("attention." + of, D)
        w[p + "fc1.weight"], w[p + "fc1.bias"] = l.up(), l.bias("mlp.up", F)
        w[p + "fc2.weight"], w[p + "fc2.bias"] = l.down(), l.bias("mlp.down", D)
    config = hf.OPTConfig(hidden_size=D, num_attention_heads=HEADS, num_hidden_layers=LAYERS, ffn_dim=F, vocab_size=V,
                          max_position_embeddings=64, word_embed_proj_dim=D, bos_token_id=0, eos_token_id=0,
                          pad_token_id=0, attn_implementation="eager")
    return run("opt", ["norm=layernorm", "bias=all", "position=learned", "ffn=relu", "tie_embeddings=true",
                       "kv_heads=4"], hf.OPTForCausalLM(config), w)


def phi2():
    w = {"model.embed_tokens.weight": param("embedding.weight", V, D), "lm_head.weight": param("output.weight", V, D),
         "lm_head.bias": param("output.bias", V)}
    with_bias(w, "model.final_layernorm", "final_norm")
    for i in range(LAYERS):
        l, p = Layer(i, gated=False), f"model.layers.{i}."
        with_bias(w, p + "input_layernorm", l.p + "attention_norm")
        for of, x, n in (("q", l.q(), D), ("k", l.k(), KV * HD), ("v", l.v(), KV * HD)):
            w[f"{p}self_attn.{of}_proj.weight"], w[f"{p}self_attn.{of}_proj.bias"] = x, l.bias("attention." + of, n)
        w[p + "self_attn.dense.weight"], w[p + "self_attn.dense.bias"] = l.out(), l.bias("attention.out", D)
        w[p + "mlp.fc1.weight"], w[p + "mlp.fc1.bias"] = l.up(), l.bias("mlp.up", F)
        w[p + "mlp.fc2.weight"], w[p + "mlp.fc2.bias"] = l.down(), l.bias("mlp.down", D)
    settings = common()
    settings.pop("head_dim")
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return run("phi2", ["norm=layernorm", "bias=all", "parallel_block=true", "rope_fraction=0.5", "ffn=gelu_tanh",
                        "output_bias=true"], hf.PhiForCausalLM(hf.PhiConfig(**settings)), w)


def phi3():
    w = {"model.embed_tokens.weight": param("embedding.weight", V, D), "lm_head.weight": param("output.weight", V, D),
         "model.norm.weight": param("final_norm.weight", D)}
    for i in range(LAYERS):
        l, p = Layer(i), f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = l.norm("attention_norm.weight")
        w[p + "post_attention_layernorm.weight"] = l.norm("ffn_norm.weight")
        w[p + "self_attn.qkv_proj.weight"] = torch.cat([l.q(), l.k(), l.v()])
        w[p + "self_attn.o_proj.weight"] = l.out()
        w[p + "mlp.gate_up_proj.weight"], w[p + "mlp.down_proj.weight"] = l.up(), l.down()
    settings = common()
    settings.pop("head_dim")
    return run("phi3", ["window=4"], hf.Phi3ForCausalLM(hf.Phi3Config(**settings, sliding_window=4)), w)


def nemotron():
    w = {"model.embed_tokens.weight": param("embedding.weight", V, D), "lm_head.weight": param("output.weight", V, D)}
    with_bias(w, "model.norm", "final_norm", around_zero)
    for i in range(LAYERS):
        l, p = Layer(i, gated=False), f"model.layers.{i}."
        with_bias(w, p + "input_layernorm", l.p + "attention_norm", around_zero)
        with_bias(w, p + "post_attention_layernorm", l.p + "ffn_norm", around_zero)
        for of, x in (("q", l.q()), ("k", l.k()), ("v", l.v()), ("o", l.out())):
            w[f"{p}self_attn.{of}_proj.weight"] = x
        w[p + "mlp.up_proj.weight"], w[p + "mlp.down_proj.weight"] = l.up(), l.down()
    settings = common()
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return run("nemotron", ["norm=layernorm", "norm_bias=true", "norm_offset=true", "rope_fraction=0.5", "ffn=relu2"],
               hf.NemotronForCausalLM(hf.NemotronConfig(**settings, partial_rotary_factor=0.5)), w)


def t5():
    """Runs the decoder without an encoder, which skips cross-attention. Buckets hold several distances."""
    w = {"embed_tokens.weight": param("embedding.weight", V, D), "final_layer_norm.weight": param("final_norm.weight", D),
         "block.0.layer.0.SelfAttention.relative_attention_bias.weight": param("relative_bias.weight", HEADS, 6).T}
    for i in range(LAYERS):
        l, p = Layer(i, HEADS, False), f"block.{i}.layer."
        w[p + "0.layer_norm.weight"] = l.norm("attention_norm.weight")
        w[p + "2.layer_norm.weight"] = l.norm("ffn_norm.weight")
        for of, x in (("q", l.q()), ("k", l.k()), ("v", l.v()), ("o", l.out())):
            w[f"{p}0.SelfAttention.{of}.weight"] = x
        w[p + "2.DenseReluDense.wi.weight"], w[p + "2.DenseReluDense.wo.weight"] = l.up(), l.down()
    config = hf.T5Config(d_model=D, d_kv=HD, d_ff=F, num_layers=LAYERS, num_heads=HEADS, vocab_size=V,
                         relative_attention_num_buckets=6, relative_attention_max_distance=8, layer_norm_epsilon=1e-5,
                         feed_forward_proj="relu", is_decoder=True, is_encoder_decoder=False, use_cache=False)
    model = hf.models.t5.modeling_t5.T5Stack(config)
    logits = lambda m: m(torch.tensor([IDS])).last_hidden_state[0, -1] * D**-0.5 @ m.embed_tokens.weight.T
    return run("t5", ["position=t5", "t5_buckets=6", "t5_max_distance=8", "attention_scale=1", "logit_scale=0.25",
                      "tie_embeddings=true", "ffn=relu", "kv_heads=4"], model, w, logits,
               ("EncDecAttention", "layer.1.layer_norm"))


def gpt_oss():
    E, TOP = 5, 2
    w = {"model.embed_tokens.weight": param("embedding.weight", V, D), "lm_head.weight": param("output.weight", V, D),
         "model.norm.weight": param("final_norm.weight", D)}
    for i in range(LAYERS):
        l, p = Layer(i), f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = l.norm("attention_norm.weight")
        w[p + "post_attention_layernorm.weight"] = l.norm("ffn_norm.weight")
        for of, x, n in (("q", l.q(), D), ("k", l.k(), KV * HD), ("v", l.v(), KV * HD)):
            w[f"{p}self_attn.{of}_proj.weight"], w[f"{p}self_attn.{of}_proj.bias"] = x, l.bias("attention." + of, n)
        w[p + "self_attn.o_proj.weight"], w[p + "self_attn.o_proj.bias"] = l.out(), l.bias("attention.out", D)
        w[p + "self_attn.sinks"] = param(l.p + "attention.sinks", HEADS)
        w[p + "mlp.router.weight"] = param(l.p + "moe.router.weight", E, D)
        w[p + "mlp.router.bias"] = l.bias("moe.router", E)
        up, bias = param(l.p + "moe.experts.up.weight", E, 2, F, D), param(l.p + "moe.experts.up.bias", E, 2, F)
        # Columns of the gate and of the up projection are interleaved.
        w[p + "mlp.experts.gate_up_proj"] = up.permute(0, 3, 2, 1).reshape(E, D, 2 * F)
        w[p + "mlp.experts.gate_up_proj_bias"] = bias.transpose(1, 2).reshape(E, 2 * F)
        w[p + "mlp.experts.down_proj"] = param(l.p + "moe.experts.down.weight", E, D, F).transpose(1, 2)
        w[p + "mlp.experts.down_proj_bias"] = param(l.p + "moe.experts.down.bias", E, D)
    settings = common()
    settings["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
                                   "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 16}
    config = hf.GptOssConfig(**settings, num_local_experts=E, num_experts_per_tok=TOP, sliding_window=3,
                             swiglu_limit=1.0, rms_norm_eps=1e-5, tie_word_embeddings=False)
    model = hf.GptOssForCausalLM(config)
    assert model.model.layers[0].mlp.experts.limit == 1.0
    return run("gpt_oss", ["ffn=swiglu_clamped", "ffn_clamp=1", "bias=all", "attention_sinks=true",
                           "rope_scaling=yarn", "rope_factor=4", "rope_original_length=16",
                           "rope_whole_dimensions=false", "pattern=local,global", "--attention.local.window=3",
                           f"--moe.experts={E}", f"--moe.top_k={TOP}", "--moe.bias=true", "--moe.router_bias=true"],
               model, w)


cases = [
    gpt2(), gptj(), neox(),
    family("qwen2", ["bias=qkv"], hf.Qwen2ForCausalLM(hf.Qwen2Config(**common(), rms_norm_eps=1e-5,
                                                                     tie_word_embeddings=False)),
           {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}, biased=True),
    family("olmo2", ["norm_position=output", "qk_norm=whole"],
           hf.Olmo2ForCausalLM(hf.Olmo2Config(**common(), rms_norm_eps=1e-5, tie_word_embeddings=False)),
           {"post_attention_layernorm": "attention_out_norm", "post_feedforward_layernorm": "ffn_out_norm"},
           qk="whole"),
    family("gemma2", ["norm_position=both", "scale_embedding=true", "tie_embeddings=true", "ffn=geglu_tanh",
                      "attention_softcap=5", "output_softcap=3", "norm_offset=true", "pattern=local,global"],
           hf.Gemma2ForCausalLM(hf.Gemma2Config(**common(), rms_norm_eps=1e-5, query_pre_attn_scalar=HD,
                                                sliding_window=3, attn_logit_softcapping=5.0,
                                                final_logit_softcapping=3.0)),
           {"input_layernorm": "attention_norm", "post_attention_layernorm": "attention_out_norm",
            "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "ffn_out_norm"}, tied=True,
           weight=around_zero),
    family("cohere", ["norm=layernorm", "parallel_block=true", "rope_pairs=interleaved", "logit_scale=0.3",
                      "tie_embeddings=true"],
           hf.CohereForCausalLM(hf.CohereConfig(**{k: v for k, v in common().items() if k != "head_dim"},
                                                layer_norm_eps=1e-5, logit_scale=0.3)),
           {"input_layernorm": "attention_norm"}, tied=True),
    family("command_r_plus", ["norm=layernorm", "parallel_block=true", "rope_pairs=interleaved", "logit_scale=0.3",
                              "tie_embeddings=true", "qk_norm=head_layernorm"],
           hf.CohereForCausalLM(hf.CohereConfig(**{k: v for k, v in common().items() if k != "head_dim"},
                                                layer_norm_eps=1e-5, logit_scale=0.3, use_qk_norm=True)),
           {"input_layernorm": "attention_norm"}, tied=True, qk="each"),
    family("cohere2", ["norm=layernorm", "parallel_block=true", "rope_pairs=interleaved", "logit_scale=0.3",
                       "tie_embeddings=true", "pattern=local,global", "--attention.local.window=3",
                       "--attention.global.position=none"],
           hf.Cohere2ForCausalLM(hf.Cohere2Config(**common(), layer_norm_eps=1e-5, logit_scale=0.3, sliding_window=3,
                                                  layer_types=["sliding_attention", "full_attention"])),
           {"input_layernorm": "attention_norm"}, tied=True),
    family("gemma3", ["norm_position=both", "scale_embedding=true", "tie_embeddings=true", "ffn=geglu_tanh",
                      "norm_offset=true", "qk_norm=head", f"attention_scale={6**-0.5:.9f}", "pattern=local,global",
                      "--attention.local.window=3", "--attention.local.rope_theta=100",
                      "--attention.global.rope_scaling=linear", "--attention.global.rope_factor=8"],
           hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(
               **{**common(), "rope_parameters": {
                   "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                   "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}}},
               rms_norm_eps=1e-5, query_pre_attn_scalar=6, sliding_window=3,
               layer_types=["sliding_attention", "full_attention"])),
           {"input_layernorm": "attention_norm", "post_attention_layernorm": "attention_out_norm",
            "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "ffn_out_norm"}, tied=True,
           weight=around_zero, qk="head"),
    bloom(4), bloom(6), falcon2(), opt(), phi2(), phi3(), nemotron(), t5(), gpt_oss(),
]
cases[5]["settings"].append("--attention.local.window=3")
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
