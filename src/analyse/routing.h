// What routers choose, token by token: the measures of OLMoE (Muennighoff et al., 2024, arXiv 2409.02060, section 5), and what
// capacity would have dropped. Counts are added up as text goes by, so that no more is kept than what the results need.
//
// E_t: the set of the k experts that a layer chose for token t. N: tokens.
//   router saturation          mean over t of |E_t of the one checkpoint and of the other| / k; k/E by chance
//   co-activation of i with j  N(i and j in E_t) / N(i in E_t)
//   domain specialisation      N(t of domain D, i in E_t) / N(t of D); k/E where the domain does not matter
//   vocabulary specialisation  N(t of token id x, i in E_t) / N(t of x), x being the input id or the predicted one
//   path from i to j           N(first choice is i, and j in the next MoE layer) / N(first choice is i)
#pragma once

#include <functional>
#include <unordered_map>

#include "src/analyse/figures.h"
#include "src/config.h"
#include "src/evaluate/replay.h"

namespace sy {

struct RoutingShape {
  std::vector<Index> layers;            // those that are measured, of the MoE layers
  std::vector<std::int64_t> layer_ids;  // their blocks
  Index experts = 0, top_k = 0, seq_len = 0;
  std::vector<std::string> domains;
  Index least_count = 8;  // occurrences of an id, below which its vocabulary specialisation is not told
  // Of drops: by these factors and by the configured one (0: dropless).
  std::vector<double> factors;
  double configured_factor = 0;
  CapacityScope scope = CapacityScope::sequence;  // rank: the windows of a pass
};

// How many assignments of one scope find their expert full. experts: [T, k]; capacity 0: no limit. The drop order decides which
// tokens lose an expert, and not how many: an expert with n assignments drops max(0, n - capacity).
Index count_drops(std::span<const std::int32_t> experts, Index num_experts, Index capacity);

class RoutingMeasures {
 public:
  // Throws InputError where the counts of pairs of experts would take more than pair_bytes.
  explicit RoutingMeasures(RoutingShape shape);
  void add(const ReplayBatch& batch, const Replayed& found);
  // The same tokens in another checkpoint, for saturation.
  void add_other(const Replayed& found, const Replayed& other);
  // decode: an id as text.
  Section section(const std::function<std::string(std::int32_t)>& decode) const;

  static constexpr Index pair_bytes = Index{1} << 30, vocabulary_bytes = Index{256} << 20;

 private:
  // Which experts the occurrences of an id went to. Ids that come when the table is full are passed over.
  struct Vocabulary {
    std::unordered_map<std::int32_t, std::size_t> row;
    std::vector<std::int32_t> ids;
    std::vector<Index> seen;            // [row]
    std::vector<std::uint32_t> counts;  // [row, layer, expert]
    Index passed_over = 0;              // tokens
  };
  void count_id(Vocabulary& vocabulary, std::int32_t id, Index token, const Replayed& found);
  void add_vocabulary(Section& section, const Vocabulary& vocabulary, const std::string& which,
                      const std::function<std::string(std::int32_t)>& decode) const;
  Index layers() const { return std::ssize(shape_.layers); }
  double chance() const { return static_cast<double>(shape_.top_k) / static_cast<double>(shape_.experts); }

  RoutingShape shape_;
  Index parts_;                              // of the positions in a sequence
  std::vector<Index> tokens_, part_tokens_;  // [domain], [part]
  std::vector<double> nats_;                 // [domain]
  std::vector<Index> domain_, pairs_,
      position_;              // [layer, domain, expert], [layer, expert, expert], [layer, part, expert]
  std::vector<Index> paths_;  // [layer, expert, expert]; of the last layer none
  Vocabulary input_, predicted_;
  std::vector<Index> factor_drops_, domain_drops_;  // [layer, factor], [layer, domain]
  std::vector<Index> same_;                         // [layer] choices that both checkpoints made
  Index compared_ = 0;                              // tokens
};

}  // namespace sy
