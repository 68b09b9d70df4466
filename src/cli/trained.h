// A checkpoint that a command opens to compute with: its model, and the data set that it was trained on.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "src/cli/options.h"
#include "src/data/dataset.h"
#include "src/data/tokenizer.h"
#include "src/io/checkpoint.h"
#include "src/model/engine.h"

namespace sy {

struct Trained {
  std::filesystem::path step_dir;
  TrainState state;
  Config config;
};

// The checkpoint that is named, a step folder or a run; all of it is checked and read but for the weights. Collective.
Trained open_checkpoint(Comm& world, const std::string& name);

// The folder of --data, where it is given. Otherwise that of the data set that the checkpoint was trained on: where a relative
// data.path was given, it lies today as far from the run folder as then, so that a run that was copied or moved together with
// its data finds them; else, and where nothing lies there, it is where it was. Throws InputError where there is none.
std::filesystem::path dataset_of(const Trained& trained, const po::variables_map& given);

// The option --force-data of commands that compute with a checkpoint and a data set.
void add_force_data(po::options_description& options);
bool forces_data(const po::variables_map& given);
constexpr const char* force_data_advice = "give --force-data";

// A data set to evaluate on. Throws InputError if its vocabulary or its tokenizer is not the
// model's, or if it has no validation text. Another tokenizer is a warning if --force-data is
// given. The first rank (`lead`) warns. trained_on: the data set that the checkpoint was trained
// on, of which a change is a warning.
std::unique_ptr<Dataset> open_validation(const Trained& trained, const std::filesystem::path& dir,
                                         const po::variables_map& given, bool lead, bool trained_on);

// The tokenizer of --data, if it is given. Otherwise the one that the run keeps, and if it keeps
// none that of the data set that the checkpoint was trained on. Throws InputError if it is not the
// model's, as open_validation does.
std::unique_ptr<Tokenizer> tokenizer_of(const Trained& trained, const po::variables_map& given, bool lead);

// The rows of the embedding of a model that is to be trained, of model.vocab or the data set. Throws InputError where neither says.
Index vocab_of(const Config& config, const std::filesystem::path& file);

// Throws InputError where the model has learned fewer positions.
void check_positions(const Config& config, Index positions);

// The model with its weights, on the backend that --backend names: without gradients. On the host it computes in f32,
// whatever it was trained with. positions: of Engine. If a node of the layout is not on one host, its
// ranks count as nodes of their own. Collective.
std::unique_ptr<Engine> load_model(Comm& world, const Trained& trained, Layout layout, const std::string& backend,
                                   Index positions = 0);

}  // namespace sy
