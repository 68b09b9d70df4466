// switchyard import: makes a run whose first checkpoint has another model's weights.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "src/cli/progress.h"
#include "src/cli/trained.h"
#include "src/config.h"
#include "src/data/run_tokenizer.h"
#include "src/families/export.h"
#include "src/families/import.h"
#include "src/families/upcycle.h"
#include "src/io/lock.h"
#include "src/io/manifest.h"
#include "src/params/block_specs.h"
#include "src/params/lora.h"
#include "src/provenance/provenance.h"
#include "src/system/files.h"
#include "src/system/new_folders.h"
#include "src/text/numbers.h"

namespace sy {
namespace fs = std::filesystem;

namespace {

// An imported model and the source of its values.
struct Imported {
  Config config;
  Index vocab = 0;
  std::vector<ParamSpec> params;
  std::vector<float> biases;    // selection biases of the routers
  std::vector<float> averages;  // TrainState::batch_norm_averages of the upcycled checkpoint
  std::unique_ptr<FamilyValues> files;
  std::unique_ptr<ValueSource> checkpoint, upcycled;
  std::string model_name;  // "llama"
  TokenizerIdentities tokenizers;
  std::optional<StoredTokenizer> tokenizer;  // of the upcycled checkpoint's run
  ValueSource& values() const {
    return upcycled ? *upcycled : checkpoint ? *checkpoint : static_cast<ValueSource&>(*files);
  }
};

// Opens the source. `settings` apply to the final model.
Imported open_source(const fs::path& folder, const std::string& upcycle_option,
                     const std::vector<std::string>& settings) {
  Imported in;
  const std::vector<std::string> none;
  if (file_exists(folder / "config.json")) {
    check_tokenizer_files(folder);
    const FamilyModel model = open_family_model(folder, upcycle_option.empty() ? settings : none);
    in.files = std::make_unique<FamilyValues>(folder, model);
    in.config = model.config;
    in.vocab = model.vocab;
    in.biases = selection_biases(*in.files, in.files->params());
    in.model_name = model.family->name;
    in.tokenizers = tokenizers_in(folder);
  } else if (!upcycle_option.empty()) {
    std::vector<std::string> renamed;
    const fs::path step = find_checkpoint(folder);
    const TrainState state = read_state(step);
    in.config = parse_config(state.config, step.string(), {}, &renamed);
    for (const std::string& warning : renamed) warn(warning);
    in.vocab = state.vocab;
    in.averages = state.batch_norm_averages;
    check_parameters(step, param_specs(in.config, in.vocab));
    in.checkpoint = checkpoint_weights(step);
    in.config = without_lora(std::move(in.config));
    in.model_name = "the checkpoint";
    in.tokenizers = tokenizers_of(step, state);
    in.tokenizer = find_stored_tokenizer(step, in.tokenizers);
  } else {
    bad_input("{} has no config.json: give the folder of a model as Hugging Face keeps it", folder.string());
  }
  in.params = param_specs(in.config, in.vocab);
  if (upcycle_option.empty()) return in;
  const Upcycling upcycling = parse_upcycling(upcycle_option);
  const Config config = upcycled_config(in.config, upcycling, settings);
  in.upcycled = upcycled_values(in.values(), in.params, upcycling, config.train.seed);
  in.config = config;
  in.params = param_specs(config, in.vocab);
  return in;
}

TrainState first_state(const Imported& in, int ranks, const Json& provenance) {
  TrainState state;
  state.seed = in.config.train.seed;
  state.config = to_ini(in.config);
  state.vocab = in.vocab;
  state.tokenizer = to_text(in.tokenizers);
  if (!provenance.is_null()) state.provenance = with_inputs(provenance, state.config, "").dump();
  state.layout = Layout{ranks}.str();
  state.experts.experts = in.config.moe.experts;
  for (Index layer = 0; layer < in.config.num_blocks(); ++layer)
    if (in.config.is_moe(layer)) state.experts.layer_ids.push_back(layer);
  state.experts.layers = std::ssize(state.experts.layer_ids);
  state.router_bias = in.biases;
  state.batch_norm_averages = in.averages;
  state.batch_norms = count_batch_norms(in.params);
  return state;
}

// ---- the run folder ----

// Exists while RUN holds an unfinished import, which the next import may replace.
constexpr const char *unfinished_name = "import.unfinished", *config_name = "config.ini";

// Throws InputError if a run is in the folder, unless it is an import that was killed.
void check_free(const fs::path& run) {
  const std::vector<Index> steps = steps_in(checkpoints_of(run));
  const bool trained = file_exists(run / "metrics.jsonl") || (!steps.empty() && steps.front() > 0);
  if (file_exists(run / unfinished_name) && !trained) return;
  for (const fs::path& made : {checkpoints_of(run), run / config_name, run / "metrics.jsonl"})
    if (file_exists(made)) bad_input("import: {} is a run already: give a new folder", run.string());
  for (const char* name : {huggingface_folder_name, tokenizer_folder_name})
    if (file_exists(run / name))
      bad_input("import: {} holds '{}', which an import would replace, and no run: remove it, or give a new folder",
                run.string(), name);
}

void begin_import(const fs::path& run) {
  for (const char* name : {unfinished_name, config_name}) remove_unfinished(run / name);
  write_file(run / unfinished_name, "This import has not ended. Send the command again, or remove the folder.\n");
  for (const fs::path& made : {checkpoints_of(run) / step_name(0), run / huggingface_folder_name,
                               run / tokenizer_folder_name, run / config_name})
    remove_tree(made);
}

void end_import(const fs::path& run) {
  remove_tree(run / unfinished_name);
  sync_folder(run);
}

}  // namespace

int import_command(CommandLine& line) {
  po::options_description options(
      "Reads config.json and the safetensors of FOLDER, in f32, bf16 or f16, and makes RUN, with its configuration and a\n"
      "checkpoint at step 0. Train from it with --run.init_from=RUN. Settings change the configuration.\n\nOptions");
  std::string upcycle;
  bool quiet = false;
  // clang-format off
  options.add_options()
      ("upcycle", po::value(&upcycle),
       "experts=E,top_k=K[,parts=P]: experts of each FFN of a dense model, which is then FOLDER's or a checkpoint. Each is "
       "a copy of it, or with parts=P one of P parts of it; the first outputs are the dense model's")
      ("quiet", po::bool_switch(&quiet), "no progress");
  // clang-format on
  std::string folder, run;
  Imported in;
  TrainState state;
  bool go = true;
  Comm& world = line.world;
  agree_on_errors(world, [&] {
    std::vector<std::string> settings;
    ErrorList errors("import");
    po::variables_map arguments;
    go = parse_options(line, "import", options, {"folder", "run"}, arguments, errors, &settings);
    if (!go) return;
    if (has_value(arguments, "run")) {
      run = arguments["run"].as<std::string>();
      if (world.rank() == 0) errors.run([&] { check_free(run); });
      settings.push_back("--run.dir=" + run);
    }
    if (has_value(arguments, "folder")) {
      folder = arguments["folder"].as<std::string>();
      errors.run([&] {
        in = open_source(folder, upcycle, settings);
        state = first_state(in, world.size(), line.provenance);
      });
    }
    errors.raise();
  });
  if (!go) return 0;
  const bool lead = world.rank() == 0;
  std::optional<FolderLock> lock;
  agree_on_errors(world, [&] {
    if (!lead) return;
    make_synced_folders(run);
    lock.emplace(run, std::chrono::milliseconds(0), "RUN", "give a new folder");
    check_free(run);
    begin_import(run);
    if (in.files) save_imported_files(folder, *in.files, run);
    if (in.tokenizer) {
      check_imported_tokenizer(*in.tokenizer);
      store_tokenizer(*in.tokenizer, run);
    }
    write_file(fs::path(run) / config_name, state.config);
  });
  {
    Progress progress;
    save_weights(world, run, state, in.params, in.values(), [&](Index done, Index total) {
      const Index bytes = Index{sizeof(float)} * world.size();
      if (lead && !quiet) progress.show("importing", done * bytes, total * bytes);
    });
  }
  agree_on_errors(world, [&] {
    if (lead) end_import(run);
  });
  if (lead && !quiet) {
    const ParamCount count = count_params(in.config, in.vocab);
    fmt::print("{} of {}: {} parameters, {} active per token\n", run,
               upcycle.empty() ? in.model_name : in.model_name + ", upcycled", count_text(count.total),
               count_text(count.active));
  }
  return 0;
}

}  // namespace sy
