// Attention as data: sizes, positions, scores and mask, and its parameters and costs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "src/params/param_list.h"

namespace sy {

// Rotary position embedding (Su et al., "RoFormer", 2021) with frequencies theta^(-2i / rotated).
// A scaling changes the frequencies for sequences longer than those of an earlier training.
// rope_table in src/model/rope.h has the formulas.
struct RopeSpec {
  double theta;   // base of the frequencies
  Index rotated;  // number of leading elements of each head that are rotated; even
  RopePairs pairs = RopePairs::half;
  RopeScaling scaling = RopeScaling::none;
  // Each scaling uses some of the following values.
  double factor = 1;                             // ratio of the new length to the original one
  Index original_length = 0, length = 0;         // positions: earlier and this training
  double low_frequency = 1, high_frequency = 4;  // llama3: rotations over original_length
  double beta_fast = 32, beta_slow = 1;          // yarn: rotations over original_length
  bool whole_dimensions = true;                  // yarn: rounds the ends of its ramp to integers
  double attention_factor = 1;                   // multiplies cos and sin
  // longrope: [rotated / 2] divisors of the frequencies, for texts of up to original_length tokens
  // and for longer ones. If one is empty, the other is for all texts.
  std::vector<double> short_factors{}, long_factors{};
  bool operator==(const RopeSpec&) const = default;
};

// Bias of attention scores by the distance from query to key (src/model/relative_bias.h).
struct RelativeSpec {
  Position kind;                // alibi or t5
  Index buckets, max_distance;  // t5
  bool shared;                  // t5: all layers of a stack with such a bias read one table
  double scale = 1;             // alibi: factor of the slopes
  std::string stack = {};       // prefix of the shared table's name: "encoder."
};

// Lightning indexer of sparse attention (src/model/indexer.h).
struct IndexerSpec {
  Index heads, head_dim;
  Index topk;         // number of keys that a query attends to; 0: all
  float loss_weight;  // of its loss
};

// Heads, positions, scores and mask: the members that every kind of attention has.
struct CoreAttentionSpec {
  Index heads, kv_heads;
  Index key_width, value_width;  // of one head
  Index window;                  // AttentionMask::window
  std::optional<RopeSpec> rope;
  float scale;                                // of the scores
  float softcap;                              // of the scores; 0: no cap
  SparsePattern sparse = {};                  // empty: all tokens; otherwise window is 0
  std::optional<RelativeSpec> relative = {};  // bias of the scores
  // True: each head has a learned logit in its softmax, without a value.
  bool sinks = false;
  // True: a query sees keys up to its own position. False: it sees keys on both sides.
  bool causal = true;
  std::optional<IndexerSpec> indexer = {};  // selects the keys of a query
  // True: the first tokens of a document see each other, too (AttentionMask::prefix_end).
  bool visible_prefix = false;
  bool qkv_bias = false, out_bias = false;  // of the projections

  AttentionMask mask() const { return {.causal = causal, .window = window, .sparse = sparse}; }
};

// Norm of queries and keys (kernels/ops/qk_norm.h).
enum class QkNormScope : std::uint8_t { head, projection };  // each head by itself, or all together
struct QkNormSpec {
  QkNormScope scope;
  NormKind kind;  // rmsnorm; or layernorm, if the scope is head
  float eps;
  float offset = 0;         // added to the weights, whose initial value is 1 - offset
  bool after_rope = false;  // true: the norm follows RoPE, and its scope is head
  // True: each head has a weight. False: all query heads share one, and all key heads.
  bool weight_per_head() const { return scope == QkNormScope::projection || kind == NormKind::layernorm; }
  bool operator==(const QkNormSpec&) const = default;
};

// Grouped-query attention.
struct AttentionSpec : CoreAttentionSpec {
  std::optional<QkNormSpec> qk_norm = {};
  // limit of the absolute elements of queries, keys and values, before RoPE; 0 means unlimited
  float clip_qkv = 0;
  // True: the first sparse.global tokens have projections of their own
  // (src/model/global_attention.h).
  bool global_projections = false;
};

void add_params(ParamList& list, const std::string& name, const AttentionSpec& a);
SublayerCosts costs(const AttentionSpec& a, Index seq_len);
inline NamedSizes sizes_of(const CoreAttentionSpec& a) {
  return {{"K", a.kv_heads}};
}  // K: kv heads

// Appends the parameters that every kind of attention has: those of its scores, then those of its
// output.
void add_core_params(ParamList& list, const std::string& name, const CoreAttentionSpec& a);
// Appends projections of queries, keys and values. Each head is a matrix. Keys and values are
// adjacent in memory, so that one GEMM computes both.
// fuses_queries: so are queries, which the same tokens have
void add_projections(ParamList& list, const std::string& name, const CoreAttentionSpec& a, bool fuses_queries);
// Name of global attention within the parameters of its attention: "attention.global.q.weight".
constexpr const char* global_attention_name = "global";

// Appends the parameters of the indexer, if there is one. query_input: width of the input of its
// queries. Every rank of tp computes all of its heads for the rank's own tokens.
void add_indexer_params(ParamList& list, const std::string& name, const CoreAttentionSpec& a, Index query_input);
// Returns true if a parameter of this name belongs to an indexer.
bool is_of_indexer(std::string_view name);
// Appends the parameters that several layers share, if the list does not have them yet.
void add_shared_params(ParamList& list, const CoreAttentionSpec& a);
// Returns the training FLOPs of one token for scores and weighted sums of values.
// They are 6 (key width + value width) per head and visible key: 2 in forward, 4 in backward.
// (Chowdhery et al., "PaLM", 2022, appendix B, also counts later keys.) An indexer adds 2 per index
// head, element and visible key, and 4 per selected key.
double core_flops_per_token(const CoreAttentionSpec& a, Index seq_len);

// Returns the number of elements that an indexer adds to the cache of a token.
Index index_cache_elements(const CoreAttentionSpec& a);

// Returns the mean number of keys that a token sees in a sequence of `tokens`, including its own.
// most: maximum number of keys of a token; 0 means unlimited
double mean_visible_keys(Index tokens, const AttentionMask& mask, Index most = 0);

}  // namespace sy
