// Expert load from the history of a checkpoint, and how differently domains use the experts.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/io/checkpoint.h"

namespace sy {

struct ExpertLoad {
  Index routed = 0, dropped = 0;
  double share = 0;        // of the layer's assignments, before dropping
  double drop_rate = 0;    // dropped / routed; 0 if nothing was routed
  double probability = 0;  // mean probability; NaN if unknown
  // Share of the layer's probability minus share of its assignments.
  // Above 0, the router likes the expert more than its choices show. For example, a selection bias
  // or the other choices of the top k keep tokens away.
  double probability_gap = 0;
};

constexpr double dead_share = 0.01, overloaded_share = 2;

// Load of one layer. A layer to which nothing was routed counts as balanced.
struct LayerLoad {
  Index layer = 0;  // index of the block
  std::vector<ExpertLoad> experts;
  Index routed = 0, dropped = 0;
  double drop_rate = 0;
  // Load of the busiest expert / mean load: 1 at perfect balance, E at worst.
  double max_over_mean = 1;
  // MaxVio (Wang et al., 2024, arXiv 2408.15664).
  double max_vio() const { return max_over_mean - 1; }
  Index dead = 0;         // experts with less than dead_share of an even share
  Index overloaded = 0;   // experts with more than overloaded_share of an even share
  double cv = 0;          // coefficient of variation: standard deviation / mean of the loads
  double entropy = 1;     // entropy of the shares / log E: 1 at perfect balance and if E = 1
  Index busiest() const;  // ties go to the lower index
  Index idlest() const;
};

// Sums the windows [first, last) of the history. Probabilities are means weighted by the routed
// assignments.
std::vector<LayerLoad> layer_loads(const ExpertHistory& history, Index first, Index last);

// Returns the history in at most `max_windows` windows of about equal length; sums neighbours.
// A window shorter than half of an even one, as a run's last one may be, is summed with a
// neighbour.
ExpertHistory coarsen(const ExpertHistory& history, Index max_windows);
// Returns the first window of the last tenth of the history's steps.
// The windows from there on hold at least a tenth of the steps, and at least as many steps as the
// longest window.
Index last_tenth(const ExpertHistory& history);
// Returns the history of one MoE block.
ExpertHistory select_block(const ExpertHistory& history, Index block);
// Returns the first step of a window: the step after the previous window.
std::int64_t first_step(const ExpertHistory& history, Index window);

// Jensen-Shannon divergence, in bits, of two distributions given as counts. It is 0 for equal
// shares and 1 if no expert is in both. It is NaN if either distribution is empty.
double js_divergence(std::span<const std::int64_t> p, std::span<const std::int64_t> q);

// One domain in RUN/evaluation.json, which `switchyard evaluate` writes.
struct DomainUse {
  std::string name;
  Index tokens = 0, bytes = 0;                         // bytes: -1 if unknown
  double loss = 0, perplexity = 0, bits_per_byte = 0;  // NaN if unknown
  std::vector<std::vector<std::int64_t>> experts;      // [MoE layer][expert] assignments
};
struct Evaluation {
  Index step = 0, tokens = 0;
  double loss = 0, perplexity = 0, bits_per_byte = 0;
  std::vector<DomainUse> domains;
  std::vector<std::int64_t> layers;  // [MoE layer] index of the block
  Index windows = 0, of = 0;         // evaluated windows, and windows of the split
  bool masked = false;               // the loss is that of masked tokens alone
};
// Throws InputError, which names the file and says what is wrong with it.
Evaluation read_evaluation(const std::filesystem::path& file);
// The same of the text of a file. Reads no file.
Evaluation parse_evaluation(std::string_view text, const std::filesystem::path& file);
// Returns the evaluation of the experts of one of its blocks.
Evaluation select_block(const Evaluation& evaluation, Index block);

// Distance between the domains' expert distributions in one layer.
struct Specialisation {
  Index layer = 0;  // index of the block
  // Jensen-Shannon divergence over all pairs of domains with assignments in the layer, bits. NaN if
  // there is no such pair.
  double mean = 0, max = 0;
  // The pair with the largest divergence; empty if there is none.
  std::string domain_a, domain_b;
};
std::vector<Specialisation> specialisation(const Evaluation& evaluation);

}  // namespace sy
