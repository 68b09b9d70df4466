// What `switchyard experts` finds by running a checkpoint: --replay and --ablate.
#pragma once

#include "src/analyse/figures.h"
#include "src/cli/options.h"

namespace sy {

// The options of both; add them to those of the command.
void add_replay_options(po::options_description& options);
// Whether any of them asks for a run. Throws InputError where one is given that needs another.
bool wants_replay(const po::variables_map& given);
// Runs the checkpoint on one rank. Throws InputError where the data set is not of the model's vocabulary or tokenizer, or where
// the other checkpoint of --against has other layers or experts.
std::vector<Section> replay_sections(Comm& world, const po::variables_map& given);

}  // namespace sy
