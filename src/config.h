// A run's configuration: INI file, overrides, defaults, checks.
// One table (config/model_keys.cpp, config/run_keys.cpp) names every key once. Parsing, `help
// config`, RUN/config.ini and the comparison of two runs read it.
// The file config/read.cpp reads, config/check.cpp checks and fills in defaults. config/layout.h
// checks layouts and devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/layout.h"
#include "dist/rank_settings.h"
#include "kernels/dtype.h"
#include "kernels/types.h"
#include "src/config/types.h"
#include "src/optimizers/optimizer.h"

namespace sy {

class Json;  // src/text/json.h

// Each field of a section is the key [section] field. `switchyard help config` describes all keys.
// A comment after a default says what 0 or an empty text means.
struct Config {
  struct Model {
    ModelKind kind = ModelKind::decoder;
    Index layers = 4, mtp_depth = 0 /* 0: no multi-token prediction */;
    Pattern pattern;
    Index d_model = 256, heads = 8, kv_heads = 0 /* = heads */, head_dim = 0 /* = d_model / heads */;
    // Latent attention, used if kv_lora_rank > 0. head_dim is then the unrotated part of a head's
    // keys.
    Index kv_lora_rank = 0, q_lora_rank = 0, qk_rope_head_dim = 0, v_head_dim = 0 /* = head_dim */;
    double latent_norm_eps = 0 /* = norm_eps */;
    Index key_width() const { return head_dim + (kv_lora_rank > 0 ? qk_rope_head_dim : 0); }
    Index value_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
    Index vocab = 0 /* = the ids of the data set's tokenizer */;
    // Id of a hidden token. -1: with_mask_token finds it (src/data/masking.h).
    Index mask_token = -1;
    // Ids of encoder-decoders: of <extra_id_0>, whose successors have descending ids, and that with
    // which decoders begin. -1: with_special_tokens finds them (src/data/sequence_pairs.h).
    Index sentinels = 0 /* 0: those of the tokenizer */, sentinel_token = -1, start_token = -1;
    Index d_ff = 0 /* gated: 8/3 d_model rounded up to 64; otherwise 4 d_model */, seq_len = 256;
    NormKind norm = NormKind::rmsnorm;
    double norm_eps = 1e-5;
    bool norm_offset = false;
    NormPosition norm_position = NormPosition::pre;
    bool parallel_block = false;
    Index parallel_norms = 1;
    std::string ffn = "swiglu";
    double swish_beta = 0 /* 1; swiglu_clamped: 1.702 */, ffn_clamp = 7;
    Biases bias = Biases::none;
    NormBias norm_bias = NormBias::automatic;
    Position position = Position::rope;
    std::vector<double> axial_shape, axial_widths;  // of both axes
    double rope_theta = 10000, rope_fraction = 1;
    RopePairs rope_pairs = RopePairs::half;
    RopeScaling rope_scaling = RopeScaling::none;
    double rope_factor = 1;
    Index rope_original_length = 0;
    double rope_low_frequency = 1, rope_high_frequency = 4, rope_beta_fast = 32, rope_beta_slow = 1;
    bool rope_whole_dimensions = true;
    double rope_attention_factor = 0;
    std::vector<double> rope_short_factors, rope_long_factors;
    double alibi_scale = 1;
    Index t5_buckets = 32, t5_max_distance = 128;
    bool t5_shared = true;
    // read_config resolves causal to full in encoders.
    AttentionPattern attention = AttentionPattern::causal;
    Index local_chunk_length = 64, local_chunks_before = 1;  // attention = local
    Index lsh_chunk_length = 64, lsh_chunks_before = 1, lsh_chunks_after = 0, lsh_rounds = 1;
    std::vector<double> lsh_buckets;  // factors of the number; empty: complete_buckets()
    Index window = 0, attention_stride = 128, attention_summary = 8, global_tokens = 1;
    Index index_n_heads = 64, index_head_dim = 128, index_topk = 2048;  // attention = indexed
    bool global_projections = false, attention_sinks = false;
    QkNormKind qk_norm = QkNormKind::none;
    bool qk_norm_after_rope = false;
    double clip_qkv = 0 /* 0: no limit */;
    double attention_scale = 0 /* = 1 / sqrt(key_width()) */, attention_softcap = 0, output_softcap = 0,
           logit_scale = 1;
    bool output_bias = false, output_transform = false, tie_embeddings = false;
    bool scale_embedding = false, embedding_norm = false, first_norm = true;
    double embedding_scale = 1, residual_scale = 1;
    ReversibleOutput reversible_output = ReversibleOutput::mean;  // sets the width of the output
    Index output_width() const { return reversible_output == ReversibleOutput::concat ? 2 * d_model : d_model; }
    Index segments = 0 /* 0: no segment vectors */;
    Index segment_token = -1 /* -1: all tokens have the first segment */;
    double init_std = 0.02, init_residual_scale = 0 /* = 1 / sqrt(2 * layers) */;
    bool mup = false;
    Index mup_base_width = 0;
    // d_model / mup_base_width; 1 without muP.
    double width_ratio() const {
      return mup ? static_cast<double>(d_model) / static_cast<double>(mup_base_width) : 1.0;
    }
  } model;

  struct Moe {
    Index experts = 0 /* 0: a dense model */, top_k = 2, every = 1, first_dense = 0, d_ff = 0 /* = model.d_ff */;
    std::vector<double> dense_layers;  // numbers of further layers without experts
    Index shared_experts = 0, shared_d_ff = 0 /* = shared_experts * d_ff */;
    std::string ffn /* empty: = model.ffn */;
    bool shared_gate = false, bias = false, router_bias = false;
    Score score = Score::softmax;
    Renormalize renormalize = Renormalize::automatic;  // read_config resolves it to on or off
    double scale = 1, capacity_factor = 1.25;
    CapacityScope capacity_scope = CapacityScope::sequence;
    DropOrder drop_order = DropOrder::token;
    double aux_loss = 0.01;
    AuxScope aux_scope = AuxScope::sequence;
    AuxLayers aux_layers = AuxLayers::each;
    AuxProbability aux_probability = AuxProbability::softmax;
    double z_loss = 0.001, bias_update_rate = 0;
    Index groups = 1, topk_groups = 1;
    GroupScore group_score = GroupScore::top2;
    Choice choice = Choice::top;
    double noise = 0, jitter = 0;
    bool learned_noise = false;
    // If true, the weights of a token's experts are divided by their sum.
    bool renormalizes() const {
      return renormalize == Renormalize::automatic ? top_k > 1 : renormalize == Renormalize::on;
    }
    std::string expert_map;
    // Not a key: [MoE layers][E], the logical expert of each physical expert (read_expert_map).
    // Each rank holds an equal, consecutive range of physical experts. Empty if physical experts
    // are the logical ones.
    std::vector<std::vector<Index>> physical_to_logical;
  } moe;

  struct Parallel {
    Index tp = 1, ep = 1, etp = 1, ranks_per_node = 1;  // 0: auto (src/plan/automatic_layout.h)
  } parallel;

  struct Train : Hyperparameters {
    Objective objective = Objective::automatic;  // read_config resolves it by model.kind
    double mask_rate = 0.15, mask_token_share = 0.8, mask_random_share = 0.1;
    bool mask_whole_words = false;
    Index span_length = 3;  // mean number of tokens of a span that span_corruption hides
    Index steps = 1000, global_batch = 16, micro_batch = 4;
    std::uint64_t seed = 1;
    double lr = 1e-3, min_lr = 1e-4;
    Index warmup = 50;
    Schedule schedule = Schedule::cosine;
    Index decay_steps = 0 /* = a tenth of steps, rounded up */;
    DecayShape decay_shape = DecayShape::linear;
    Index decay_length() const { return decay_steps > 0 ? decay_steps : (steps + 9) / 10; }
    Index rewarmup = 0;
    BatchRamp batch_ramp;
    // The number of sequences of step 1, 2, ...
    Index batch_of(Index step) const;
    Index largest_batch() const;
    // The number of sequences of the steps before this one, at most 2^61. Exact below 2^53.
    Index samples_before(Index step) const;
    Optimizer optimizer = Optimizer::adamw;
    std::string moment_dtype = "f32";
    double clip = 1.0, z_loss = 0, mtp_loss_weight = 0.3, indexer_loss_weight = 1;
    IndexerStage indexer = IndexerStage::sparse;
    bool decay_embeddings = true;
    // LoRA (src/params/lora.h), used if lora_rank > 0.
    Index lora_rank = 0 /* 0: all parameters are trained */;
    double lora_alpha = 0 /* = lora_rank */;
    std::string lora_targets /* empty: all */;
    // The factor of B A.
    double lora_scale() const { return lora_alpha / static_cast<double>(lora_rank); }
    Recompute recompute = Recompute::none;
    bool reversible = false;
    Index validate_every = 0, validate_windows = 64, patience = 0;
    double target_loss = 0 /* 0: no target */;
    double spike_sigma = 0 /* 0: no update is skipped */;
    Index max_skipped = 5;
  } train;

  struct Data {
    std::string path;
    bool force = false, mask_eod_loss = false;
    Documents documents = Documents::join;
    BlendSchedule blend_schedule;
    // Whether no loss counts the first tokens of documents.
    bool ignores_document_begins() const { return mask_eod_loss || documents != Documents::join; }
  } data;

  struct Run {
    std::string dir, backend = "auto", dtype = "f32";
    Index log_every = 10, checkpoint_every = 200, keep = 3, keep_best = 0, keep_every = 0;
    bool resume = false, checkpoint_first = false, async_checkpoint = true;
    Index resume_step = -1;
    Index check_every = 0, replay_step = 0 /* 0: neither is done */;
    MemoryCheck memory_check = MemoryCheck::off;
    double max_hours = 0;
    std::string init_from, machine;
  } run;

  struct Log {
    bool csv = false, tensorboard = false, prometheus = false, mllog = false, energy = false;
    std::string mllog_benchmark = "gpt_oss_20b", mllog_division = "open", mllog_org = "unknown",
                mllog_platform = "unknown";
    Index trace_first = 0, trace_steps = 1;
  } log;

  // The layers to which model.pattern gives one name, or those of a stack.
  // `model` is [model] with the values of the kind's section, such as [attention.local] or
  // [encoder], in place of its own. `own_keys`: the keys that the section sets.
  struct Kind {
    std::string name;
    Model model;
    std::vector<std::string> own_keys;
    bool is_stack = false;
    Moe moe = {};  // of a stack: [moe] with the values of its section
  };
  std::vector<Kind> kinds;  // each kind of the pattern once
  // The encoder and the decoder if model.kind = encoder_decoder; otherwise empty. The layers of the
  // decoder follow those of the encoder. read_config makes model.layers the number of both.
  std::vector<Kind> stacks;

  // Returns the configuration of the encoder (0) or the decoder (1) as a model of its own.
  Config of_stack(std::size_t stack) const;
  // Number of the encoder's layers in an encoder-decoder, otherwise 0.
  Index encoder_layers() const { return stacks.empty() ? 0 : stacks[0].model.layers; }
  // Numbers of tokens of a training sample in the encoder, which may be absent, and in the decoder.
  Index encoder_length() const { return stacks.empty() ? 0 : stacks[0].model.seq_len; }
  Index decoder_length() const { return stacks.empty() ? model.seq_len : stacks[1].model.seq_len; }
  // Returns true if the first tokens of each sequence of a decoder see each other
  // (train.objective = prefix).
  bool has_visible_prefix() const { return model.kind == ModelKind::decoder && train.objective == Objective::prefix; }
  Index tokens_per_sample() const { return encoder_length() + decoder_length(); }
  // Maximum number of tokens of a sequence.
  Index longest_sequence() const { return std::max(encoder_length(), decoder_length()); }
  // Returns the prefix of the names of a layer's parameters: "layers.3.", "encoder.layers.3."
  std::string layer_prefix(Index layer) const;
  // Returns the name of a block for display: "layer 3", "encoder layer 3", "module 1".
  std::string layer_name(Index layer) const;

  const Kind* kind_of(Index layer) const;  // nullptr if all layers have one kind
  // The values of [model] for this layer.
  const Model& model_of(Index layer) const;
  // Returns true if the routers need token numbers while training: for random draws, or for
  // moe.choice = balanced.
  bool draws() const { return moe.choice != Choice::top || moe.jitter > 0; }
  bool is_moe(Index layer) const;
  // Number of blocks with this attention.
  Index blocks_with(AttentionPattern attention) const;
  Index num_indexers() const { return blocks_with(AttentionPattern::indexed); }
  // True: the indexers alone are trained.
  bool trains_indexers_alone() const { return num_indexers() > 0 && train.indexer == IndexerStage::warmup; }
  Index num_lsh_layers() const { return blocks_with(AttentionPattern::lsh); }
  // Not a key: the hash of a layer in place of random numbers (LshAttentionSpec::rotations).
  std::map<Index, std::vector<float>> lsh_rotations;
  // Number of all blocks. The first model.layers are the decoder's. The others belong to the
  // modules of multi-token prediction, and each is like the layer that would come there.
  Index num_blocks() const { return model.layers + model.mtp_depth; }
  // The activation of this name, with the numbers of [model]; that of dense FFNs; and that of
  // experts, including the shared ones.
  FfnActivation activation_of(std::string_view ffn) const;
  FfnActivation ffn_activation() const { return activation_of(model.ffn); }
  FfnActivation expert_activation() const { return activation_of(moe.ffn); }
  // The type of weights and activations, and that of optimizer state.
  DType dtype() const { return run.dtype == "bf16" ? DType::bf16 : DType::f32; }
  DType moment_dtype() const { return train.moment_dtype == "bf16" ? DType::bf16 : DType::f32; }
  // The layout of [parallel] on this many ranks. It may be invalid: see config/layout.h.
  Layout layout(int ranks) const;
};

// A key of the table, for display. The keys of a kind of layer appear once, with NAME as the kind.
struct ConfigKey {
  std::string name, type, default_value, help;
  std::string range;                // "from 1 to 65536"; empty if the value is not a bounded number
  std::vector<std::string> values;  // the only valid values; empty if there is no such list
};
const std::vector<ConfigKey>& config_keys();
// The key of this name. A name of any kind of layer stands for NAME. nullptr if there is none.
const ConfigKey* find_config_key(std::string_view name);

// A check of something outside the configuration, such as its data set. `run` throws InputError.
struct ConfigCheck {
  std::function<void(const Config&)> run;
  // skipped if a value of the model, its batch or its layout is wrong by itself
  bool needs_sizes = false;
};

// The origin of each value that was set, by key: "run.ini:12" or "command line". A key that is
// absent has its default.
using ConfigOrigins = std::map<std::string, std::string>;

// Reads `file`, applies overrides ("--section.key=value"), completes and checks the values.
// Defaults that depend on other keys are filled in. A line `base = FILE` before the first section
// names a configuration, relative to the file. Its settings apply if the file does not set them.
// Paths are relative to the working directory. If a file's data.path is no folder there, it is
// relative to the file that sets it.
// `checks` receive the values as well; their errors are reported with the others.
// Throws InputError with all errors, each with its line and the expected value. An error about an
// unknown key suggests the nearest one.
// A file that the program wrote, RUN/config.ini, may have former names of keys.
// `warnings` gets one text for each such file, with the former and the present names.
Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const std::vector<ConfigCheck>& checks = {}, ConfigOrigins* origins = nullptr,
                   std::vector<std::string>* warnings = nullptr);
// Does the same with a text that the program wrote, such as a checkpoint's. `origin` names the text
// in errors. A line `base = FILE` is an unknown key, and data.path stays as it is.
Config parse_config(const std::string& ini_text, const std::string& origin,
                    const std::vector<std::string>& overrides = {}, std::vector<std::string>* warnings = nullptr);
// Returns the settings that must be equal on all ranks (dist/rank_settings.h).
// These are all keys but data.path, since each host may have the data in another folder.
std::vector<RankSetting> rank_settings(const Config& config);
// Returns every key with its value, as INI. parse_config(to_ini(c)) == c. If `origins` is not
// nullptr, a comment of each value says its origin.
std::string to_ini(const Config& config, const ConfigOrigins* origins = nullptr);
// Returns {"value", "origin"} by key.
Json to_json(const Config& config, const ConfigOrigins& origins);
// The value of one key, such as "model.d_model" or "attention.local.window", as to_ini writes it.
// The key must exist.
std::string value_of(const Config& config, std::string_view key);

// How resuming a checkpoint treats a key whose value differs from the checkpoint's.
enum class ResumePolicy {
  report,            // training continues with the new value, and reports it
  reorders_samples,  // training continues with another order of samples
  must_match,        // the checkpoint belongs to another model
  ignore,            // paths, launch options, initial values, and the layout (reported as a whole)
};
struct KeyDifference {
  std::string key, here, there;
};
// The keys with this policy whose values differ. Keys that kinds of layer may set are compared
// layer by layer, so the names of the kinds do not matter. KeyDifference::key is then "KEY of layer
// N" if two different keys set the value.
std::vector<KeyDifference> differences(const Config& here, const Config& there, ResumePolicy policy);

// Warnings about valid but probably unintended settings, each with the key to set. The layout must
// fit the configuration.
std::vector<std::string> config_warnings(const Config& config, const Layout& layout);

}  // namespace sy
