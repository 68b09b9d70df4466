// Expert load, from the history that every checkpoint carries; and how differently domains use the experts.
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
  double drop_rate = 0;    // dropped / routed; 0 where nothing was routed
  double probability = 0;  // mean probability
  // The share of the layer's probability less the share of its assignments: above 0 the router likes the expert more than
  // its choices show, as where a selection bias or the other choices of the top k keep tokens away.
  double probability_gap = 0;
};

constexpr double dead_share = 0.01, overloaded_share = 2;

// A layer to which nothing was routed counts as balanced.
struct LayerLoad {
  Index layer = 0;  // the block
  std::vector<ExpertLoad> experts;
  Index routed = 0, dropped = 0;
  double drop_rate = 0;
  double max_over_mean = 1;  // load of the busiest expert / mean load: 1 at perfect balance, E at worst
  double max_vio() const { return max_over_mean - 1; }  // MaxVio (Wang et al., 2024, arXiv 2408.15664)
  Index dead = 0;         // experts with less than dead_share of an even share, those with no load included
  Index overloaded = 0;   // experts with more than overloaded_share of it
  double cv = 0;          // coefficient of variation: standard deviation / mean of the loads
  double entropy = 1;     // of the shares, divided by log E: 1 at perfect balance; 1 when E = 1
  Index busiest() const;  // ties go to the lower index
  Index idlest() const;
};

// Windows [first, last) of the history summed; probabilities are means weighted by what was routed.
std::vector<LayerLoad> layer_loads(const ExpertHistory& history, Index first, Index last);
std::vector<LayerLoad> layer_loads(const ExpertHistory& history);

// The same history in at most `max_windows` windows of about as many steps each, neighbours summed. A window much shorter than
// the others, as a run's last one may be, is no fair sight beside them and is summed with a neighbour too.
ExpertHistory coarsen(const ExpertHistory& history, Index max_windows);
// From this window on, the history holds the last tenth of its steps, or more.
Index last_tenth(const ExpertHistory& history);
// The history of one block. Throws InputError naming the MoE blocks when `block` is not one.
ExpertHistory select_block(const ExpertHistory& history, Index block);
// The first step of a window: that after the window before.
std::int64_t first_step(const ExpertHistory& history, Index window);

// Jensen-Shannon divergence in bits of two distributions given as counts: 0 for equal shares, 1 when the two
// have no expert in common. 0 where either is empty.
double js_divergence(std::span<const std::int64_t> p, std::span<const std::int64_t> q);

// RUN/evaluation.json, as `switchyard evaluate` writes it.
struct DomainUse {
  std::string name;
  Index tokens = 0, bytes = 0;                         // bytes -1: not known
  double loss = 0, perplexity = 0, bits_per_byte = 0;  // NaN: not known
  std::vector<std::vector<std::int64_t>> experts;      // [MoE layer][expert] assignments
};
struct Evaluation {
  Index step = 0, tokens = 0;
  double loss = 0, perplexity = 0, bits_per_byte = 0;
  std::vector<DomainUse> domains;
  std::vector<std::int64_t> layers;  // [MoE layer] its block
  Index windows = 0, of = 0;         // evaluated, and of the split; equal where all were
};
// Throws InputError naming the file and what is wrong with it.
Evaluation read_evaluation(const std::filesystem::path& file);
// The evaluation of one block's experts. Throws InputError when it has none of that block.
Evaluation select_block(const Evaluation& evaluation, Index block);

// How far apart the domains' expert distributions are in one layer.
struct Specialisation {
  Index layer = 0;                 // the block
  double mean = 0, max = 0;        // Jensen-Shannon divergence over all pairs of domains, bits
  std::string domain_a, domain_b;  // the pair that is furthest apart; empty with fewer than two domains
};
std::vector<Specialisation> specialisation(const Evaluation& evaluation);

}  // namespace sy
