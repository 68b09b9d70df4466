// Help of configuration keys: the sentences after those of the table, and the keys for display.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "src/config/keys.h"

namespace sy {
namespace {

// The sentences of a key's help after its summary.
constexpr std::pair<std::string_view, std::string_view> details[] = {
    {"model.pattern",
     "Layers of kind local take the keys of [attention.local] in place of those of [model]. Empty: all layers are as "
     "[model] says"},
    {"model.kv_heads", "0: as many as query heads (multi-head attention); 1: multi-query attention"},
    {"model.head_dim",
     "0: d_model / heads. With model.kv_lora_rank: of what a head's queries and keys have besides "
     "model.qk_rope_head_dim (qk_nope_head_dim)"},
    {"model.kv_lora_rank", "0: there is no latent"},
    {"model.q_lora_rank", "0: they are made of the attention's input"},
    {"model.v_head_dim", "0: model.head_dim"},
    {"model.latent_norm_eps", "0: model.norm_eps"},
    {"model.vocab", "0: as many as these ids"},
    {"model.d_ff", "0: 8/3 d_model rounded up to a multiple of 64 where the FFN is gated, otherwise 4 d_model"},
    {"model.norm_position",
     "pre: x + f(norm(x)); post: norm(x + f(x)), and there is no norm before the output; both: x + norm(f(norm(x))); "
     "output: x + norm(f(x)), with no norm of the input, in a parallel block neither; residual: norm(x) + f(norm(x))"},
    {"model.parallel_block", "false: the FFN reads what attention has added to"},
    {"model.swish_beta", "0: 1, and in swiglu_clamped 1.702"},
    {"model.bias",
     "all: attention, dense FFNs and layernorm; attention: queries, keys, values and the output of attention; qkv: "
     "queries, keys and values alone; mlp: dense FFNs alone. true is all, and false none"},
    {"model.norm_bias", "auto: where model.bias is all"},
    {"model.position",
     "rope: attention rotates queries and keys by their positions; alibi: a score falls by a slope of its head for "
     "each token between (Press et al., 2022); t5: a score has a learned bias by head and bucket of distances (Raffel "
     "et al., 2020); learned: a vector of each position up to model.seq_len is added to the embedding; sinusoidal: "
     "the same with sines and cosines of the position (Vaswani et al., 2017); none: it knows no more than the causal "
     "mask tells"},
    {"model.rope_pairs", "half: i and i + n of the first 2n; interleaved: 2i and 2i + 1"},
    {"model.rope_scaling",
     "linear: all are divided by model.rope_factor; ntk: theta grows instead, so that the lowest frequency is divided "
     "by it; dynamic: the same as far as the length in use asks for it; llama3: low ones are divided; yarn: low ones "
     "are divided, and attention is sharpened; longrope: each is divided by a factor of its own. The length in use is "
     "model.seq_len in training, the window in evaluation and the text so far in generation"},
    {"model.rope_attention_factor",
     "0: by what model.rope_scaling says, which is 0.1 ln(rope_factor) + 1 of yarn, sqrt(1 + ln(rope_factor) / "
     "ln(rope_original_length)) of longrope, otherwise 1"},
    {"model.rope_short_factors", "Empty: the long ones for all texts"},
    {"model.rope_long_factors",
     "Empty: the short ones for all texts. When a generated text passes model.rope_original_length, its keys are "
     "computed again"},
    {"model.t5_buckets", "Half of them are of one distance each, the others of ranges that grow"},
    {"model.attention",
     "causal: itself and earlier ones, as many as model.window says; strided: the latest attention_stride ones, and "
     "before these every attention_stride-th; fixed: those of its own run of attention_stride tokens, and the last "
     "attention_summary ones of every run (Child et al., 2019); longformer: the latest window ones, and the first "
     "global_tokens of the sequence (Beltagy et al., 2020)"},
    {"model.window", "0: all before it"},
    {"model.qk_norm",
     "head: rmsnorm of each head by itself; whole: rmsnorm of the queries of all heads together, and of the keys "
     "(OLMo 2); head_layernorm: layernorm of each head, with a weight of its own and no bias (Command R+). true is "
     "head, and false none"},
    {"model.clip_qkv", "0: no limit"},
    {"model.attention_scale",
     "0: 1 / sqrt(the width of a key). T5 has 1; Gemma 2 and 3 in their largest sizes 1 / sqrt(d_model / heads); "
     "DeepSeek's yarn (0.1 mscale_all_dim ln(rope_factor) + 1)^2 times the usual one, and model.rope_attention_factor "
     "= 1"},
    {"model.attention_softcap", "0: they stay as they are"},
    {"model.output_softcap", "0: they stay as they are"},
    {"moe.experts", "0: a dense model"},
    {"moe.d_ff", "0: model.d_ff"},
    {"moe.ffn", "Empty: that of model.ffn"},
    {"moe.shared_d_ff", "0: shared_experts * d_ff"},
    {"moe.renormalize",
     "auto: true if moe.top_k is greater than 1. With moe.top_k = 1, true makes every weight 1: the router then "
     "learns from the load-balance loss alone"},
    {"moe.capacity_factor", "0: nothing is dropped"},
    {"moe.drop_order",
     "token: those of earlier tokens; choice: first choices, then the second; probability: tokens with larger weights"},
    {"moe.aux_probability",
     "softmax: those of the softmax of the logits; score: the scores of moe.score, divided by their sum over the "
     "experts (DeepSeek-V3)"},
    {"moe.bias_update_rate", "0: there is no such bias"},
    {"moe.choice",
     "top: those of the largest scores; noisy: those of the largest logits, to which training adds normal noise for "
     "the choice alone; sampled: training draws them, one after the other, in proportion to the softmax of the logits "
     "of those that are left; balanced: training sends token n to experts n, n + 1 ... whatever their scores, for "
     "measuring what an even load would cost; if moe.topk_groups is below moe.groups, the token chooses its groups by "
     "the same preference and stays within them, so that the load may be uneven. Evaluation and generation draw "
     "nothing: they take the largest ones"},
    {"moe.expert_map", "Results and checkpoints are those of the experts in order. Empty: in order"},
    {"parallel.tp", "The data-parallel ranks are the rest: ranks / tp"},
    {"parallel.ranks_per_node",
     "1: it travels once to each rank. Sums are taken by machine, so that results with another number agree within "
     "rounding"},
    {"train.micro_batch", "A step's samples go to (micro-batch, rank, sequence) in this order"},
    {"train.schedule", "constant: it stays; wsd: it stays, then falls linearly over the last tenth of the steps"},
    {"train.optimizer",
     "adamw (Loshchilov and Hutter, 2019); sgd: m = momentum * m + g, w -= lr * (m + weight_decay * w); muon (experimental; Jordan et al., 2024): m "
     "of each weight matrix of attention, FFNs and experts is orthogonalised, all other parameters are adamw's. A run resumes "
     "with the optimizer that it began with"},
    {"train.weight_decay",
     "Norms (of queries and keys, too), biases, attention sinks and the table of position = t5 do not decay"},
    {"train.clip", "0: it is not"},
    {"train.validate_every", "0: none"},
    {"train.validate_windows", "0: all"},
    {"train.patience", "0: it does not"},
    {"train.z_loss", "z_loss in the metrics is its sum with that of the routers"},
    {"data.path", "A relative path is looked for in the working directory, then beside the configuration file"},
    {"run.checkpoint_every", "0: there is one after the last step alone"},
    {"run.keep", "0: all"},
    {"run.keep_best", "After a validation whose loss is among the lowest, there is a checkpoint, too. 0: none"},
    {"run.keep_every", "0: none"},
    {"run.resume_step", "-1: from the newest"},
    {"run.max_hours", "0: no limit"},
    {"log.trace_first", "On a GPU, times are those at which the host had the work started. 0: no step"},
};

ConfigKey displayed(const KeyEntry& entry) {
  const Key& key = *entry.key;
  ConfigKey out;
  out.name = entry.name;
  out.type = key.type.accepts();
  out.default_value = entry.kind ? "" : entry.text();
  out.help = entry.kind ? fmt::format("replaces {} in layers of kind {}", key.name, entry.kind->name) : key.summary;
  if (std::isfinite(key.bounds.low))
    out.range = key.bounds.high < no_upper_bound ? fmt::format("from {} to {}", key.bounds.low, key.bounds.high)
                                                 : fmt::format("from {} on", key.bounds.low);
  out.values = key.type.names();
  if (!key.values.empty()) out.values.assign(key.values.begin(), key.values.end());
  return out;
}

std::vector<ConfigKey> make_config_keys() {
  Config defaults;
  defaults.kinds.push_back({"NAME", {}, {}});
  std::vector<ConfigKey> keys;
  for (const KeyEntry& entry : key_entries(defaults)) keys.push_back(displayed(entry));
  for (const auto& [name, text] : details) {
    const auto key = std::ranges::find(keys, name, &ConfigKey::name);
    SY_ASSERT(key != keys.end(), "details of {}, which is no key", name);
    key->help.append(". ").append(text);
  }
  return keys;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_config_keys();
  return keys;
}

const ConfigKey* find_config_key(std::string_view name) {
  std::string known(name);
  if (const auto first = name.find('.'), second = name.find('.', first + 1); second != name.npos && first != name.npos)
    known.replace(first + 1, second - first - 1, "NAME");
  const auto found = std::ranges::find(config_keys(), known, &ConfigKey::name);
  return found == config_keys().end() ? nullptr : &*found;
}

}  // namespace sy
