// The parts of `switchyard experts` that run a checkpoint: --replay and --ablate.
#pragma once

#include <optional>

#include "src/analyse/figures.h"
#include "src/cli/options.h"

namespace sy {

// Adds the options of both to those of the command.
void add_replay_options(po::options_description& options);
// Returns true if an option requests a run. Throws InputError if an option lacks another one that
// it needs.
bool wants_replay(const po::variables_map& arguments);
// Runs the checkpoint on one rank. layer: the block of --layer; empty means all.
// Throws InputError if the data set has another vocabulary or tokenizer than the model, or if the
// checkpoint of --against has other layers or experts.
std::vector<Section> replay_sections(Comm& world, const po::variables_map& arguments, std::optional<Index> layer);

}  // namespace sy
