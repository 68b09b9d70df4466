// A checkpoint that a command opens for computing: its model, and the data set of its training.
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
  CheckpointFolder folder = std::filesystem::path();
  TrainState state;
  Config config;

  const std::filesystem::path& step_dir() const { return folder.path(); }
};

// Returns the step folder that the name of a step folder or a run means, and prints the warnings
// about it. Not collective.
std::filesystem::path find_checkpoint(const std::filesystem::path& name);

// Opens a checkpoint by the name of a step folder or a run. Checks and reads everything except the
// weights. Collective.
Trained open_checkpoint(Comm& world, const std::string& name);

// Returns the folder of --data, or otherwise that of the data set that the checkpoint was trained
// on.
// Candidates are the recorded path, and the path relative to the run folder as at the time of
// training. The latter comes first if data.path is relative, so a run that was copied or moved with
// its data finds them.
// Throws InputError if there is no data set.
std::filesystem::path dataset_of(const Trained& trained, const po::variables_map& arguments);

// Adds the option --force-data of commands that compute with a checkpoint and a data set.
void add_force_data(po::options_description& options);
bool forces_data(const po::variables_map& arguments);
constexpr const char* force_data_advice = "give --force-data";

// Opens a data set to evaluate on.
// Throws InputError if its vocabulary or its tokenizer is not the model's, or if it has no
// validation text. With --force-data another tokenizer is a warning. Only the first rank (`lead`)
// warns.
// trained_on: it is the data set of the checkpoint's training, so a change of it is a warning.
Dataset open_validation(const Trained& trained, const std::filesystem::path& dir, const po::variables_map& arguments,
                        bool lead, bool trained_on);

// Lowers model.seq_len to the longest validation text. Tables cover only the positions that are
// computed, except those of an encoder-decoder, and a learned one, which has the checkpoint's size.
void fit_positions(Config& config, const Dataset& dataset);

// Opens the tokenizer of --data, if it is present. Otherwise that of the run folder, otherwise that
// of the data set of the training.
// Throws InputError if it is not the model's, under the conditions of open_validation().
std::unique_ptr<Tokenizer> tokenizer_of(const Trained& trained, const po::variables_map& arguments, bool lead);

// Returns the embedding rows of a model to be trained, from model.vocab or the data set. Throws
// InputError if neither is set.
Index vocab_of(const Config& config, const std::filesystem::path& file);

// Throws InputError if the model has fewer learned positions.
// source: positions of the encoder of an encoder-decoder; `positions` are then those of the decoder
void check_positions(const Config& config, Index positions, Index source = 0);

// Loads the model with its weights, without gradients, on the backend of --backend. On the host it
// computes in f32, whatever the type of training.
// positions: see Engine. If a node of the layout spans hosts, each rank counts as its own node.
// Collective.
std::unique_ptr<Engine> load_model(Comm& world, const Trained& trained, Layout layout, const std::string& backend,
                                   Index positions = 0);

}  // namespace sy
