// Routing measures of OLMoE (Muennighoff et al., 2024, arXiv 2409.02060, section 5), and the drops
// that a capacity would cause. Counts are summed batch by batch, so memory does not grow with the
// tokens.
//
// E_t: the set of the k experts that a layer chose for token t. N: number of tokens.
//   router saturation          mean over t of |E_t of one checkpoint and of the other| / k;
//                              k/E by chance
//   co-activation of i with j  N(i and j in E_t) / N(i in E_t)
//   domain specialisation      N(t of domain D, i in E_t) / N(t of D);
//                              k/E if the domain does not matter
//   vocabulary specialisation  N(t of token id x, i in E_t) / N(t of x);
//                              x is the input id or the predicted one
//   path from i to j           N(first choice is i, and j in the next MoE layer)
//                              / N(first choice is i)
#pragma once

#include <functional>
#include <unordered_map>

#include "src/analyse/figures.h"
#include "src/config.h"
#include "src/evaluate/replay.h"

namespace sy {

struct RoutingShape {
  std::vector<Index> layers;            // the measured ones of the MoE layers
  std::vector<std::int64_t> layer_ids;  // their block indices
  Index experts = 0, top_k = 0, seq_len = 0;
  std::vector<std::string> domains;
  // Ids with fewer occurrences have no vocabulary specialisation.
  Index least_count = 8;
  // Capacity factors for drops: these, and the configured one (0 means dropless).
  std::vector<double> factors;
  double configured_factor = 0;
  CapacityScope scope = CapacityScope::sequence;  // rank: the windows of a pass
};

// Number of assignments of one scope that find their expert full. experts: [T, k]. Capacity 0 means
// unlimited.
// The drop order decides which tokens lose an expert, but not how many: an expert with n
// assignments drops max(0, n - capacity).
Index count_drops(std::span<const std::int32_t> experts, Index num_experts, Index capacity);

class RoutingMeasures {
 public:
  // Throws InputError if the counts of pairs of experts would exceed pair_bytes.
  explicit RoutingMeasures(RoutingShape shape);
  void add(const ReplayBatch& batch, const ReplayResult& found);
  // Adds the same tokens in another checkpoint, for saturation.
  void add_other(const ReplayResult& found, const ReplayResult& other);
  // decode: returns the text of an id.
  Section section(const std::function<std::string(std::int32_t)>& decode) const;

  static constexpr Index pair_bytes = Index{1} << 30, vocabulary_bytes = Index{256} << 20;

 private:
  // Expert counts of each token id. New ids are skipped when the table is full.
  struct Vocabulary {
    std::unordered_map<std::int32_t, std::size_t> row;
    std::vector<std::int32_t> ids;
    std::vector<Index> seen;            // [row]
    std::vector<std::uint32_t> counts;  // [row, layer, expert]
    Index skipped_tokens = 0;           // tokens of skipped ids
  };
  void count_id(Vocabulary& vocabulary, std::int32_t id, Index token, const ReplayResult& found);
  void add_vocabulary(Section& section, const Vocabulary& vocabulary, const std::string& which,
                      const std::function<std::string(std::int32_t)>& decode) const;
  Index layers() const { return std::ssize(shape_.layers); }
  double chance() const { return static_cast<double>(shape_.top_k) / static_cast<double>(shape_.experts); }

  RoutingShape shape_;
  Index position_ranges_;                               // number of position ranges of a sequence
  std::vector<Index> tokens_, targets_, range_tokens_;  // [domain], [domain], [position range]
  std::vector<double> nats_;                            // [domain]
  // [layer, domain, expert], [layer, expert, expert], [layer, position range, expert]
  std::vector<Index> domain_, pairs_, position_;
  std::vector<Index> paths_;  // [layer, expert, expert]; zero for the last layer
  Vocabulary input_, predicted_;
  std::vector<Index> factor_drops_, domain_drops_;  // [layer, factor], [layer, domain]
  std::vector<Index> same_;                         // [layer] choices that both checkpoints made
  Index compared_ = 0;                              // tokens
};

}  // namespace sy
