// The one table of configuration keys.
#include "src/config/keys.h"

#include <tuple>
#include <utility>

#include "src/config/values.h"
#include "src/text/json.h"
#include "src/text/strings.h"

namespace sy {
namespace {

template <class T>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  if constexpr (std::is_same_v<T, bool>) names = {"true", "false"};
  if constexpr (std::is_enum_v<T>)
    for (const auto& entry : EnumNames<T>::table) names.emplace_back(entry.name);
  return names;
}

template <class T>
std::string accepted_by() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_integral_v<T>) return "a whole number";
  if constexpr (std::is_floating_point_v<T>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, std::vector<double>>) return "numbers with commas between them";
  if constexpr (std::is_same_v<T, Pattern>)
    return "names of kinds, each with how many layers of it follow one another, up to 10000 in all: local*5, global";
  return "one of " + join(names_of<T>(), ", ");
}

template <class T>
constexpr ValueType value_type{
    .accepts = accepted_by<T>,
    .names = names_of<T>,
    .show = [](const void* value) { return show(*static_cast<const T*>(value)); },
    .read =
        [](const std::string& text, void* value) {
          T parsed{};
          if (!read(text, parsed)) return false;
          *static_cast<T*>(value) = std::move(parsed);
          return true;
        },
    .json =
        [](const void* value) {
          if constexpr (std::is_arithmetic_v<T>) return Json(*static_cast<const T*>(value));
          return Json(show(*static_cast<const T*>(value)));
        },
};

template <class S, class T>
struct MemberTypes {
  using Section = S;
  using Value = T;
};
template <class S, class T>
MemberTypes<S, T> types_of(T S::*);

// A row of the table. The section and the type of the value follow from the pointer to the member.
template <auto member>
constexpr Key row(std::string_view name, Bounds bounds, ResumePolicy on_resume, std::string_view summary,
                  std::span<const std::string_view> values = {}) {
  using Types = decltype(types_of(member));
  const auto address = [](const Config& c, const Config::Model& model) -> const void* {
    const auto sections = std::tie(model, c.moe, c.parallel, c.train, c.data, c.run, c.log);
    return &(std::get<const typename Types::Section&>(sections).*member);
  };
  return {name, value_type<typename Types::Value>, address, bounds, on_resume, summary, values};
}

// A row of [model] whose value a kind of layer may replace.
template <auto member>
constexpr Key kind_row(std::string_view name, Bounds bounds, ResumePolicy on_resume, std::string_view summary) {
  Key key = row<member>(name, bounds, on_resume, summary);
  key.by_kind = true;
  return key;
}

}  // namespace

std::span<const Key> key_table() {
  using Model = Config::Model;
  using Moe = Config::Moe;
  using Parallel = Config::Parallel;
  using Train = Config::Train;
  using Data = Config::Data;
  using Run = Config::Run;
  using Log = Config::Log;
  using enum ResumePolicy;
  static constexpr Key table[] = {
      row<&Model::layers>("model.layers", {1, 10000}, must_match, "the number of layers (blocks)"),
      row<&Model::pattern>(
          "model.pattern", {}, ignore,
          "the kinds of the layers in their order, as in local*5, global, which is repeated over the layers and cut "
          "where they end"),
      row<&Model::d_model>("model.d_model", {1, 1 << 20}, must_match, "the width of the residual stream"),
      row<&Model::heads>("model.heads", {1, 1 << 16}, must_match, "the number of query heads"),
      row<&Model::kv_heads>("model.kv_heads", {0, 1 << 16}, must_match, "the number of key and value heads"),
      row<&Model::head_dim>("model.head_dim", {0, 1 << 16}, must_match, "the width of a head"),
      row<&Model::kv_lora_rank>(
          "model.kv_lora_rank", {0, 1 << 16}, must_match,
          "the width of the latent that all heads' keys and values are made of, in multi-head latent attention "
          "(DeepSeek-V2, 2024): generation keeps this latent and the rotated key alone"),
      row<&Model::q_lora_rank>("model.q_lora_rank", {0, 1 << 16}, must_match,
                               "with model.kv_lora_rank, the width of the latent that queries are made of"),
      row<&Model::qk_rope_head_dim>(
          "model.qk_rope_head_dim", {0, 1 << 16}, must_match,
          "with model.kv_lora_rank, the elements of each query, and of a key that all heads share, that rope "
          "rotates"),
      row<&Model::v_head_dim>("model.v_head_dim", {0, 1 << 16}, must_match,
                              "with model.kv_lora_rank, the width of a head's values"),
      row<&Model::latent_norm_eps>("model.latent_norm_eps", {0, 1}, must_match,
                                   "with model.kv_lora_rank, what the rmsnorms of the latents add to the mean square"),
      row<&Model::vocab>(
          "model.vocab", {0, 1 << 24}, report,
          "the number of rows of the embedding and of the output, at least the token ids that the data set knows; "
          "the others are never a target"),
      row<&Model::d_ff>("model.d_ff", {0, 1 << 24}, must_match, "the inner width of a dense FFN"),
      row<&Model::seq_len>("model.seq_len", {1, 1 << 28}, reorders_samples,
                           "the number of positions in a training sequence"),
      row<&Model::norm>("model.norm", {}, must_match, "the kind of normalisation"),
      row<&Model::norm_eps>("model.norm_eps", {0, 1}, must_match,
                            "norms add this to the variance (rmsnorm: to the mean square) before they take its root"),
      row<&Model::norm_offset>(
          "model.norm_offset", {}, must_match,
          "true: norms, those of queries and keys too, multiply by 1 + their weight, which starts at 0 (Gemma, "
          "Nemotron)"),
      row<&Model::norm_position>("model.norm_position", {}, must_match,
                                 "where a block normalises, f being attention or the FFN"),
      row<&Model::parallel_block>("model.parallel_block", {}, must_match,
                                  "true: attention and FFN read the same input, x + attention(norm(x)) + ffn(norm(x))"),
      row<&Model::parallel_norms>(
          "model.parallel_norms", {1, 2}, must_match,
          "with model.parallel_block, 1: attention and FFN read the same norm of the input (GPT-J, PaLM); 2: each "
          "has its own (GPT-NeoX)"),
      row<&Model::ffn>("model.ffn", {}, must_match,
                       "the activation of dense FFNs, and of experts where moe.ffn is empty: relu, gelu, gelu_tanh, "
                       "silu or relu2; or, gated, glu, reglu, geglu, geglu_tanh, swiglu or swiglu_clamped, which is "
                       "(clamp(l, -c, c) + 1) * silu(min(x, c)) of up projection l and gate projection x, with c = "
                       "model.ffn_clamp",
                       ffn_values),
      row<&Model::swish_beta>("model.swish_beta", {0, 1000}, must_match,
                              "in silu, swiglu and swiglu_clamped, silu(x) is x * sigmoid(swish_beta * x)"),
      row<&Model::ffn_clamp>("model.ffn_clamp", {1e-3, no_upper_bound}, must_match,
                             "where swiglu_clamped cuts off what it gets"),
      row<&Model::bias>("model.bias", {}, must_match, "what has biases"),
      row<&Model::norm_bias>("model.norm_bias", {}, must_match, "whether layernorm has a bias"),
      kind_row<&Model::position>("model.position", {}, must_match, "how the model knows where tokens stand"),
      kind_row<&Model::rope_theta>("model.rope_theta", {1e-3, no_upper_bound}, must_match,
                                   "the base of rope's frequencies"),
      kind_row<&Model::rope_fraction>(
          "model.rope_fraction", {1e-6, 1}, must_match,
          "rope rotates this part of each head, or of model.qk_rope_head_dim, above 0 and up to 1"),
      kind_row<&Model::rope_pairs>("model.rope_pairs", {}, must_match,
                                   "which elements of a head rope rotates together"),
      kind_row<&Model::rope_scaling>(
          "model.rope_scaling", {}, report,
          "how rope's frequencies are changed for sequences longer than those of an earlier training, "
          "model.rope_original_length"),
      kind_row<&Model::rope_factor>("model.rope_factor", {1, no_upper_bound}, report,
                                    "how many times as long as before model.rope_scaling makes sequences"),
      kind_row<&Model::rope_original_length>(
          "model.rope_original_length", {0, 1 << 28}, report,
          "the number of positions of the earlier training, which dynamic, llama3, yarn and longrope need"),
      kind_row<&Model::rope_low_frequency>(
          "model.rope_low_frequency", {1e-6, no_upper_bound}, report,
          "llama3 divides frequencies of fewer turns than this over the original length"),
      kind_row<&Model::rope_high_frequency>(
          "model.rope_high_frequency", {1e-6, no_upper_bound}, report,
          "llama3 leaves frequencies of more turns than this over the original length as they are"),
      kind_row<&Model::rope_beta_fast>(
          "model.rope_beta_fast", {1e-6, no_upper_bound}, report,
          "yarn leaves frequencies of more turns than this over the original length as they are"),
      kind_row<&Model::rope_beta_slow>("model.rope_beta_slow", {1e-6, no_upper_bound}, report,
                                       "yarn divides frequencies of fewer turns than this over the original length"),
      kind_row<&Model::rope_whole_dimensions>(
          "model.rope_whole_dimensions", {}, report,
          "true: yarn rounds the first and the last dimension of those between to whole ones"),
      kind_row<&Model::rope_attention_factor>("model.rope_attention_factor", {0, no_upper_bound}, report,
                                              "rotated queries and keys are multiplied by this"),
      kind_row<&Model::rope_short_factors>(
          "model.rope_short_factors", {}, report,
          "what longrope divides each frequency by in texts of up to model.rope_original_length tokens (training: "
          "of model.seq_len)"),
      kind_row<&Model::rope_long_factors>("model.rope_long_factors", {}, report,
                                          "what longrope divides each frequency by in longer texts"),
      kind_row<&Model::alibi_scale>(
          "model.alibi_scale", {0, no_upper_bound}, must_match,
          "with model.position = alibi, the slopes are multiplied by this (Falcon-RW: 1 / sqrt(head_dim))"),
      row<&Model::t5_buckets>("model.t5_buckets", {2, 1 << 16}, must_match, "the number of buckets of position = t5"),
      row<&Model::t5_max_distance>("model.t5_max_distance", {2, 1 << 28}, must_match,
                                   "from this distance on, all are in the last bucket of position = t5"),
      row<&Model::t5_shared>("model.t5_shared", {}, must_match,
                             "true: all layers of position = t5 have the same biases; false: each its own"),
      kind_row<&Model::attention>("model.attention", {}, must_match, "which tokens a token sees"),
      kind_row<&Model::window>("model.window", {0, no_upper_bound}, must_match,
                               "a token sees this many tokens, itself and the latest before it"),
      kind_row<&Model::attention_stride>("model.attention_stride", {1, 1 << 28}, must_match,
                                         "the stride of attention = strided and of attention = fixed"),
      kind_row<&Model::attention_summary>(
          "model.attention_summary", {0, 1 << 28}, must_match,
          "attention = fixed: this many tokens at the end of each run are seen from all later ones"),
      kind_row<&Model::global_tokens>(
          "model.global_tokens", {0, 1 << 28}, must_match,
          "attention = longformer: this many tokens at the start are seen from all later ones"),
      kind_row<&Model::attention_sinks>(
          "model.attention_sinks", {}, must_match,
          "true: each head has a learned logit that takes part in its softmax and has no value, so that it may "
          "attend to nothing (gpt-oss)"),
      kind_row<&Model::qk_norm>("model.qk_norm", {}, must_match, "norm of queries and keys"),
      kind_row<&Model::clip_qkv>(
          "model.clip_qkv", {0, no_upper_bound}, must_match,
          "queries, keys and values are limited to [-c, c] with c = model.clip_qkv, after qk_norm and before RoPE "
          "(OLMo, MPT)"),
      kind_row<&Model::attention_scale>("model.attention_scale", {0, 1e6}, must_match,
                                        "attention's scores are the products of queries and keys times this"),
      kind_row<&Model::attention_softcap>("model.attention_softcap", {0, no_upper_bound}, report,
                                          "attention's scores s become cap * tanh(s / cap) with this cap"),
      row<&Model::output_softcap>("model.output_softcap", {0, no_upper_bound}, report,
                                  "the logits z become cap * tanh(z / cap) with this cap"),
      row<&Model::logit_scale>("model.logit_scale", {1e-6, 1e6}, must_match,
                               "the logits, model.output_bias included, are multiplied by this before they are capped"),
      row<&Model::output_bias>("model.output_bias", {}, must_match,
                               "true: the logits have a learned bias, which model.logit_scale multiplies, too (GPT-J)"),
      row<&Model::tie_embeddings>("model.tie_embeddings", {}, must_match,
                                  "true: the output uses the embedding's weights"),
      row<&Model::scale_embedding>(
          "model.scale_embedding", {}, must_match,
          "true: the embedding is multiplied by the root of d_model (Vaswani et al., 2017; Gemma)"),
      row<&Model::embedding_norm>("model.embedding_norm", {}, must_match,
                                  "true: a norm follows the sum of the embedding and its position vectors (BLOOM)"),
      row<&Moe::experts>("moe.experts", {0, 1 << 20}, must_match, "the number of experts of each MoE layer"),
      row<&Moe::top_k>("moe.top_k", {1, 1 << 20}, report, "the number of experts that the router sends each token to"),
      row<&Moe::every>(
          "moe.every", {1, 10000}, must_match,
          "layers first_dense, first_dense + every, first_dense + 2 every and so on, counted from 0, have experts; "
          "the others have a dense FFN"),
      row<&Moe::first_dense>("moe.first_dense", {0, 10000}, must_match,
                             "this many layers at the start have a dense FFN"),
      row<&Moe::dense_layers>("moe.dense_layers", {}, must_match,
                              "numbers of more layers with a dense FFN, counted from 0, with commas between them"),
      row<&Moe::d_ff>("moe.d_ff", {0, 1 << 24}, must_match, "the inner width of an expert"),
      row<&Moe::ffn>("moe.ffn", {}, must_match, "the activation of experts, the shared ones too, as model.ffn",
                     ffn_values),
      row<&Moe::shared_experts>("moe.shared_experts", {0, 1 << 16}, must_match,
                                "the number of experts, of width moe.d_ff each, that every token passes"),
      row<&Moe::shared_d_ff>("moe.shared_d_ff", {0, 1 << 24}, must_match,
                             "the inner width of all shared experts together"),
      row<&Moe::shared_gate>(
          "moe.shared_gate", {}, must_match,
          "true: what the shared experts give is multiplied by sigmoid(w x), with a learned vector w"),
      row<&Moe::bias>("moe.bias", {}, must_match, "true: the experts have biases, but for the shared ones"),
      row<&Moe::router_bias>("moe.router_bias", {}, must_match, "true: the router's logits have a learned bias"),
      row<&Moe::score>("moe.score", {}, report, "the function that makes scores of the router's logits"),
      row<&Moe::renormalize>("moe.renormalize", {}, report,
                             "true: the weights of a token's experts are divided by their sum"),
      row<&Moe::scale>("moe.scale", {1e-30, no_upper_bound}, report,
                       "the weights of a token's experts are multiplied by this"),
      row<&Moe::capacity_factor>(
          "moe.capacity_factor", {0, 1 << 20}, report,
          "an expert takes up to ceil(capacity_factor * top_k * tokens / experts) of the tokens that share a "
          "capacity; what is over is dropped"),
      row<&Moe::capacity_scope>(
          "moe.capacity_scope", {}, report,
          "the tokens that share a capacity: those of a sequence, or those of a rank's micro-batch, of which each "
          "tensor-parallel rank has 1 / parallel.tp"),
      row<&Moe::drop_order>("moe.drop_order", {}, report, "the assignments that a full expert keeps"),
      row<&Moe::aux_loss>("moe.aux_loss", {0, no_upper_bound}, report, "the factor of the load-balance loss"),
      row<&Moe::aux_scope>(
          "moe.aux_scope", {}, report,
          "the tokens over which the load-balance loss is taken: those of a sequence; micro_batch: those of a "
          "rank's micro-batch, of which each tensor-parallel rank has 1 / parallel.tp; or those that all ranks "
          "compute at once (dp * train.micro_batch sequences)"),
      row<&Moe::aux_layers>(
          "moe.aux_layers", {}, report,
          "each: every MoE layer has a load-balance loss of its own; joint: all have one together, of the means "
          "over the layers of what an expert number gets and of its probability, as transformers defines it for "
          "Mixtral, OLMoE and Qwen's"),
      row<&Moe::aux_probability>("moe.aux_probability", {}, report,
                                 "what the load-balance loss takes for the probabilities of a token's experts"),
      row<&Moe::z_loss>("moe.z_loss", {0, no_upper_bound}, report, "the factor of the router z-loss"),
      row<&Moe::bias_update_rate>(
          "moe.bias_update_rate", {0, no_upper_bound}, report,
          "after a step, an expert's selection bias rises by this where it had less than its share, and falls by it "
          "where it had more"),
      row<&Moe::groups>("moe.groups", {1, 1 << 20}, report, "the experts form this many groups"),
      row<&Moe::topk_groups>(
          "moe.topk_groups", {1, 1 << 20}, report,
          "a token chooses its experts within this many groups, those of the largest moe.group_score"),
      row<&Moe::group_score>(
          "moe.group_score", {}, report,
          "the score of a group, selection biases included: the sum of its two best experts' scores, or the best "
          "one's"),
      row<&Moe::choice>("moe.choice", {}, report, "how a token chooses its experts"),
      row<&Moe::noise>("moe.noise", {0, no_upper_bound}, report,
                       "the standard deviation of the noise of moe.choice = noisy"),
      row<&Moe::learned_noise>(
          "moe.learned_noise", {}, must_match,
          "true: moe.noise is multiplied by softplus(w x) of each expert, with learned w, and the noise is added to "
          "the logits themselves (Shazeer et al., \"Outrageously large neural networks\", 2017)"),
      row<&Moe::jitter>(
          "moe.jitter", {0, 1}, report,
          "training multiplies each element of what the router reads by a number between 1 - jitter and 1 + jitter "
          "(Fedus et al., \"Switch Transformers\", 2022)"),
      row<&Moe::expert_map>(
          "moe.expert_map", {}, ignore,
          "a file that `switchyard experts --placement ep=N --placement-file` wrote: training puts the experts "
          "where it says, so that the ranks are loaded evenly"),
      row<&Parallel::tp>("parallel.tp", {1, 1 << 15}, ignore,
                         "the number of tensor-parallel ranks, which split attention, dense FFNs and the vocabulary"),
      row<&Parallel::ep>("parallel.ep", {1, 1 << 15}, ignore,
                         "the number of expert-parallel ranks, which hold the experts between them"),
      row<&Parallel::etp>("parallel.etp", {1, 1 << 15}, ignore, "the number of ranks that split each expert"),
      row<&Parallel::ranks_per_node>(
          "parallel.ranks_per_node", {1, 1 << 15}, ignore,
          "the number of consecutive ranks on each machine, where experts are on several: a token then travels once "
          "to each machine that has any of its experts, is spread there, and comes back as one sum"),
      row<&Train::steps>("train.steps", {1, no_upper_bound}, report, "the number of optimizer steps"),
      row<&Train::global_batch>("train.global_batch", {1, 1 << 28}, report,
                                "the number of sequences in a step, over all ranks"),
      row<&Train::micro_batch>("train.micro_batch", {1, 1 << 28}, report,
                               "the number of sequences that a data-parallel rank computes at a time"),
      row<&Train::seed>("train.seed", {}, reorders_samples,
                        "the initial weights and the order of the samples follow from this number"),
      row<&Train::lr>("train.lr", {0, no_upper_bound}, report, "the highest learning rate, after the warm-up"),
      row<&Train::min_lr>("train.min_lr", {0, no_upper_bound}, report,
                          "the learning rate at the last step, unless train.schedule is constant"),
      row<&Train::warmup>("train.warmup", {0, no_upper_bound}, report,
                          "the learning rate rises from 0 over this many steps"),
      row<&Train::schedule>("train.schedule", {}, report, "how the learning rate goes from train.lr to train.min_lr"),
      row<&Train::optimizer>("train.optimizer", {}, report, "the rule that updates the weights"),
      row<&Train::momentum>("train.momentum", {0, 1 - 1e-6}, report,
                            "the factor of the last step's momentum in that of sgd and muon"),
      row<&Train::weight_decay>(
          "train.weight_decay", {0, no_upper_bound}, report,
          "the decoupled weight decay, of the embedding, of learned positions and of the weights of all products, routers "
          "and gates included"),
      row<&Train::beta1>("train.beta1", {0, 1 - 1e-6}, report, "AdamW's decay of the first moment"),
      row<&Train::beta2>("train.beta2", {0, 1 - 1e-6}, report, "AdamW's decay of the second moment"),
      row<&Train::eps>("train.eps", {0, 1}, report, "AdamW adds this to the root of the second moment"),
      row<&Train::clip>("train.clip", {0, no_upper_bound}, report,
                        "a gradient with a larger norm than this is scaled down to it"),
      row<&Train::validate_every>(
          "train.validate_every",
          {0, no_upper_bound}, report,
          "the number of steps between validations, which tell the loss by domain on the data set's validation "
          "text, dropless; there is one after the last step, too"),
      row<&Train::validate_windows>(
          "train.validate_windows",
          {0, no_upper_bound}, report,
          "a validation takes this many windows of model.seq_len tokens of each domain, evenly spread"),
      row<&Train::patience>(
          "train.patience",
          {0, no_upper_bound}, report,
          "training stops early, with exit code 0, after this many validations in a row that did not lower the "
          "validation loss"),
      row<&Train::recompute>(
          "train.recompute",
          {}, report,
          "true: the backward pass computes each block's activations again, which takes time and saves memory"),
      row<&Train::z_loss>("train.z_loss", {0, no_upper_bound}, report,
                          "the factor of the output z-loss, the mean of log^2 Z"),
      row<&Data::path>("data.path", {}, reorders_samples, "the folder that `switchyard prepare` wrote"),
      row<&Data::force>(
          "data.force",
          {}, ignore,
          "true: data of another tokenizer than the one that the checkpoint was trained with are taken, with a "
          "warning; otherwise run.init_from and run.resume refuse them"),
      row<&Run::dir>("run.dir", {}, ignore, "the folder of the run, with its configuration, metrics and checkpoints"),
      row<&Run::backend>("run.backend", {}, report,
                         "what computes: cpu, cuda, or auto, which is a GPU where there is one", backend_values),
      row<&Run::dtype>("run.dtype", {}, report,
                       "the type of weights and activations: f32, or bf16 with sums and optimizer in f32",
                       dtype_values),
      row<&Run::log_every>("run.log_every", {1, no_upper_bound}, report,
                           "the number of steps between log lines, and between counts of the experts' tokens"),
      row<&Run::checkpoint_every>("run.checkpoint_every", {0, no_upper_bound}, report,
                                  "the number of steps between checkpoints"),
      row<&Run::checkpoint_first>(
          "run.checkpoint_first",
          {}, report, "true: a checkpoint of the initial weights, step 0, is written, too; run.keep counts it"),
      row<&Run::keep>(
          "run.keep",
          {0, no_upper_bound}, report,
          "the number of checkpoints that are kept, the newest ones, beside the newest before the loss rose"),
      row<&Run::keep_best>(
          "run.keep_best",
          {0, 1000}, report,
          "the number of checkpoints with the lowest validation losses that are kept, whatever run.keep says"),
      row<&Run::keep_every>("run.keep_every", {0, no_upper_bound}, report,
                            "checkpoints of steps that are multiples of this are kept, whatever run.keep says"),
      row<&Run::resume>(
          "run.resume",
          {}, ignore,
          "true: training goes on from the newest whole checkpoint of run.dir, or starts where there is none"),
      row<&Run::resume_step>("run.resume_step", {-1, no_upper_bound}, ignore,
                             "with run.resume, training goes on from the checkpoint of this step"),
      row<&Run::max_hours>(
          "run.max_hours",
          {0, no_upper_bound}, ignore,
          "a checkpoint is written, and the run stops with exit code 3, before this many hours since the "
          "start of the program are over"),
      row<&Run::init_from>("run.init_from", {}, ignore,
                           "a checkpoint, or a run, whose weights a new run starts from in place of random ones"),
      row<&Log::csv>(
          "log.csv",
          {}, ignore,
          "true: RUN/metrics.csv has a line a step, with the numbers of metrics.jsonl and, every run.log_every "
          "steps, each MoE layer's load imbalance (the busiest expert's load / the mean load) and drop rate"),
      row<&Log::tensorboard>("log.tensorboard", {}, ignore,
                             "true: RUN/tensorboard has the same numbers, for TensorBoard"),
      row<&Log::prometheus>(
          "log.prometheus",
          {}, ignore,
          "true: RUN/metrics.prom has the latest of these numbers, as node_exporter's textfile collector reads them"),
      row<&Log::trace_first>(
          "log.trace_first",
          {0, no_upper_bound}, ignore,
          "from this step on, each rank records when it did what, and writes RUN/trace/rank-NNNN.json, which "
          "Perfetto (ui.perfetto.dev) opens"),
      row<&Log::trace_steps>("log.trace_steps", {1, 10000}, ignore, "the number of steps that are recorded"),
  };
  return table;
}

KeyEntry::KeyEntry(const Config& config, const Key& key_row, const Config::Kind* of_kind)
    : key(&key_row), kind(of_kind), name(key->name), value(key->address(config, kind ? kind->model : config.model)) {
  if (kind) name = fmt::format("{}.{}.{}", attention_section, kind->name, name.substr(name.find('.') + 1));
}

std::vector<LayerKind> layer_kinds(const Config& config) {
  std::vector<LayerKind> out{{config, nullptr}};
  for (const Config::Kind& kind : config.kinds) out.push_back({config, &kind});
  return out;
}

std::string LayerKind::key_at(const void* value) const {
  for (const Key& row : key_table())
    if (row.address(config, model()) == value) return KeyEntry(config, row, kind).source_key();
  SY_ASSERT(false, "the member has no key");
}

std::vector<KeyEntry> key_entries(const Config& config) {
  const auto in_model = [](const Key& row) { return row.name.starts_with("model."); };
  std::vector<KeyEntry> out;
  for (const LayerKind& layers : layer_kinds(config))
    for (const Key& row : key_table())
      if (layers.kind ? row.by_kind : in_model(row)) out.emplace_back(config, row, layers.kind);
  for (const Key& row : key_table())
    if (!in_model(row)) out.emplace_back(config, row, nullptr);
  return out;
}

}  // namespace sy
