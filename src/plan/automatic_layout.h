// Choice of the sizes of [parallel] that are `auto`, from the number of ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dist/comm.h"
#include "src/config.h"
#include "src/plan/machine.h"

namespace sy {

// Returns whether a key of [parallel] is `auto`.
bool has_automatic_layout(const Config& config);

// Batch and layout of the checkpoint that a training resumes.
struct EarlierLayout {
  std::string checkpoint;  // path, for messages
  Index dp = 1, micro_batch = 1;
  Config::Parallel parallel{};
};

// Returns the configuration with the sizes of the layout that is predicted to be the fastest.
// Keys of [parallel] that are not `auto` stay.
// - ranks_per_node: number of ranks of a machine, a candidate for parallel.ranks_per_node
// - earlier: on the same number of ranks, its layout and micro-batch are returned if they fit the
//   memory and the keys. The resumed training is then bit for bit equal to an undisturbed one.
//   Otherwise the returned train.micro_batch keeps its dp * train.micro_batch. If no layout has
//   that product, and no result depends on it, train.micro_batch is the largest one below it.
// - machine: computes the predictions
// - check_fits: throws InputError if a configuration does not fit the memory; the next is tried.
//
// Throws InputError if there is no such layout, or if each one would change results:
// moe.capacity_scope and moe.aux_scope may make these depend on dp, tp and train.micro_batch.
Config choose_layout(const Config& config, Index vocab, int ranks, const Machine& machine, int ranks_per_node,
                     const std::optional<EarlierLayout>& earlier, const std::function<void(const Config&)>& check_fits);

// Returns the layout and the batch of the newest checkpoint of run.dir that can be read, or of
// run.resume_step. Empty if there is none, or if run.resume is false.
std::optional<EarlierLayout> earlier_layout(const Config& config);

// Returns a machine with typical speeds of the backend. Only ratios matter for a choice.
Machine typical_machine(const std::string& backend, int ranks_per_node);

// Returns the configuration with sizes in place of `auto`, equal on all ranks. Collective.
// Rank 0 chooses for `ranks` ranks. Other ranks ignore `vocab`. machine: empty means the typical
// one of the backend, and the memory of rank 0's device. If `ranks` exceeds the size of `world`,
// and `machine` is empty, a machine has parallel.ranks_per_node ranks if that is above 1. Otherwise
// one machine has all ranks. Throws CollectiveError in place of InputError.
Config resolve_automatic_layout(Comm& world, const Config& config, Index vocab, int ranks,
                                const std::optional<Machine>& machine);

}  // namespace sy
