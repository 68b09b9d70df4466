"""Makes moe_layers.json: MoE layers of known families, forward and backward, by Hugging Face transformers.

Needs torch and transformers (5.23 made the file): python3 moe_layers.py > moe_layers.json
"""

import json

import torch
from transformers import DeepseekV2Config, DeepseekV3Config, GptOssConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig
from transformers import Qwen3MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

T, D, F, E, K = 7, 4, 3, 6, 2
SIZES = dict(hidden_size=D, moe_intermediate_size=F, intermediate_size=F, num_experts_per_tok=K, hidden_act="silu",
             num_hidden_layers=1, num_attention_heads=1, experts_implementation="eager")


def short(tensor):  # with the digits of f32
    return [float(f"{x:.9g}") for x in tensor.detach().double().flatten().tolist()]


# Functions that arrange the elements of transformers' parameters as in Switchyard's.
def halves(w):  # [E, 2 F, D] -> [E, 2, F, D]
    return w.reshape(E, 2, F, -1)


def interleaved(w):  # [E, D, 2 F] with interleaved columns -> [E, 2, F, D]
    return w.reshape(E, -1, F, 2).permute(0, 3, 2, 1)


def same(w):
    return w


NAMES = {
    "gate.weight": ("router.weight", same),
    "experts.gate_up_proj": ("experts.up.weight", halves),
    "experts.down_proj": ("experts.down.weight", same),
    "shared_expert_gate.weight": ("shared_gate.weight", same),
}
OSS_NAMES = {
    "router.weight": ("router.weight", same),
    "router.bias": ("router.bias", same),
    "experts.gate_up_proj": ("experts.up.weight", interleaved),
    "experts.gate_up_proj_bias": ("experts.up.bias", lambda b: b.reshape(E, F, 2).permute(0, 2, 1)),
    "experts.down_proj": ("experts.down.weight", lambda w: w.permute(0, 2, 1)),
    "experts.down_proj_bias": ("experts.down.bias", same),
}


def case(name, layer, settings, scale=0.5, bias=None):
    layer = layer.double()
    draw = torch.Generator().manual_seed(len(name))
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw).double() * scale
        parameter.data = parameter.data.float().double()
    if bias is not None:
        layer.gate.e_score_correction_bias.copy_(torch.tensor(bias))
    x = torch.randn((1, T, D), generator=draw).double().requires_grad_()
    dy = torch.randn((1, T, D), generator=draw).double()
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    y.backward(dy)

    values, gradients = {}, {}

    def put(param_name, value, gradient):
        values[param_name] = short(value)
        gradients[param_name] = short(gradient)

    parameters = dict(layer.named_parameters())
    shared = "shared_expert." if "shared_expert.up_proj.weight" in parameters else "shared_experts."
    if shared + "up_proj.weight" in parameters:  # rows of the gate, then of the up projection
        up, gate = (parameters.pop(shared + projection + "_proj.weight") for projection in ("up", "gate"))
        down = parameters.pop(shared + "down_proj.weight")
        put("shared.up.weight", torch.stack([gate, up]), torch.stack([gate.grad, up.grad]))
        put("shared.down.weight", down, down.grad)
    for hf_name, parameter in parameters.items():
        param_name, arrange = (OSS_NAMES if name == "gpt_oss" else NAMES)[hf_name]
        put(param_name, arrange(parameter.data), arrange(parameter.grad))
    return {
        "name": name,
        "settings": [f"--{key}={value}" for key, value in settings.items()],
        "selection_bias": bias or [],
        "values": values,
        "gradients": gradients,
        "x": short(x),
        "y": short(y),
        "dy": short(dy),
        "dx": short(x.grad),
    }


CASES = [
    case("mixtral", MixtralSparseMoeBlock(MixtralConfig(num_local_experts=E, **SIZES)), {}),
    case("qwen2_moe",
         Qwen2MoeSparseMoeBlock(Qwen2MoeConfig(num_experts=E, shared_expert_intermediate_size=5, norm_topk_prob=False,
                                               **SIZES)),
         {"moe.shared_experts": 1, "moe.shared_d_ff": 5, "moe.shared_gate": "true", "moe.renormalize": "false"}),
    case("qwen3_moe", Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(num_experts=E, norm_topk_prob=True, **SIZES)), {}),
    case("olmoe", OlmoeSparseMoeBlock(OlmoeConfig(num_experts=E, norm_topk_prob=False, **SIZES)),
         {"moe.renormalize": "false"}),
    case("deepseek_v2",
         DeepseekV2Moe(DeepseekV2Config(n_routed_experts=E, n_shared_experts=2, n_group=3, topk_group=2,
                                        topk_method="group_limited_greedy", routed_scaling_factor=1.5, **SIZES)),
         {"moe.shared_experts": 2, "moe.groups": 3, "moe.topk_groups": 2, "moe.group_score": "max", "moe.scale": 1.5,
          "moe.renormalize": "false"}),
    case("deepseek_v3",
         DeepseekV3MoE(DeepseekV3Config(n_routed_experts=E, n_shared_experts=1, n_group=3, topk_group=2,
                                        norm_topk_prob=True, routed_scaling_factor=2.5, **SIZES)),
         {"moe.shared_experts": 1, "moe.groups": 3, "moe.topk_groups": 2, "moe.scale": 2.5, "moe.score": "sigmoid",
          "moe.bias_update_rate": 0.001},
         bias=[0.25, -0.25, 0.0, 0.5, -0.125, 0.125]),
    # The weights are so large that the limit of 7 clamps values.
    case("gpt_oss", GptOssMLP(GptOssConfig(num_local_experts=E, **SIZES)),
         {"moe.bias": "true", "moe.router_bias": "true", "model.ffn": "swiglu_clamped"}, scale=3),
]

print(json.dumps({"tokens": T, "sizes": {"model.d_model": D, "moe.d_ff": F, "moe.experts": E, "moe.top_k": K},
                  "cases": CASES}))
