#include "src/cli/trained.h"

#include <algorithm>

#include "dist/node_groups.h"
#include "src/config/layout.h"
#include "src/data/masking.h"
#include "src/data/run_tokenizer.h"
#include "src/families/export.h"
#include "src/io/manifest.h"
#include "src/system/files.h"
#include "src/text/strings.h"

namespace sy {

namespace fs = std::filesystem;

fs::path find_checkpoint(const fs::path& name) {
  std::vector<std::string> warnings;
  const fs::path step_dir = resolve_checkpoint(name, &warnings);
  for (const std::string& warning : warnings) warn(warning);
  return step_dir;
}

Trained open_checkpoint(Comm& world, const std::string& name) {
  Trained out;
  std::vector<std::string> warnings, renamed;
  out.folder = resolve_checkpoint(world, name, &warnings);
  for (const std::string& w : warnings) warn(w);
  agree_on_errors(world, [&] {
    out.state = read_state(out.folder);
    out.config = parse_config(out.state.config, out.step_dir().string(), {}, &renamed);
    check_parameters(out.folder, param_specs(out.config, out.state.vocab));
  });
  if (world.rank() == 0)
    for (const std::string& w : renamed) warn(w);
  return out;
}

fs::path dataset_of(const Trained& trained, const po::variables_map& arguments) {
  if (arguments.count("data")) return arguments["data"].as<std::string>();
  const auto& [folder, state, config] = trained;
  const fs::path& step_dir = folder.path();
  if (state.dataset.empty())
    bad_input("{} was imported, and no data set belongs to it: give one with --data", step_dir.string());
  const fs::path recorded = state.dataset, data = config.data.path;
  // Training was started in the folder relative to which data.path is the recorded path.
  fs::path started;
  if (!data.is_absolute() && state.dataset.ends_with("/" + data.string()))
    started = state.dataset.substr(0, state.dataset.size() - data.string().size());
  const fs::path run_then = (started / config.run.dir).lexically_normal();
  std::vector<std::string> candidates{recorded};
  if (const auto run_now = run_of(step_dir); run_now && run_then.is_absolute()) {
    const fs::path beside = *run_now / recorded.lexically_normal().lexically_relative(run_then);
    candidates.insert(data.is_absolute() ? candidates.end() : candidates.begin(), beside.lexically_normal());
  }
  std::string problems;  // of look-ups
  for (const fs::path candidate : candidates) {
    try {
      if (file_exists(candidate / "dataset.ini")) return candidate;
    } catch (const InputError& e) {
      problems += fmt::format(" ({})", e.what());
    }
  }
  bad_input("the data set that {} was trained on is not at {}{}: give its folder with --data", step_dir.string(),
            join(candidates, " nor at "), problems);
}

bool forces_data(const po::variables_map& arguments) {
  return arguments.count("force-data") > 0 && arguments["force-data"].as<bool>();
}

void add_force_data(po::options_description& options) {
  options.add_options()("force-data", po::bool_switch(),
                        "take data of another tokenizer than the checkpoint was trained with, with a warning");
}

Dataset open_validation(const Trained& trained, const fs::path& dir, const po::variables_map& arguments, bool lead,
                        bool trained_on) {
  const TrainState& state = trained.state;
  Dataset dataset(dir);
  if (model_vocab(trained.config, dataset.vocab()) != state.vocab)
    bad_input(
        "{} has a vocabulary of {}, the checkpoint one of {}: give the data set that it was trained on, or one "
        "prepared with the same tokenizer",
        dir.string(), dataset.vocab(), state.vocab);
  const std::string warning =
      check_tokenizer(dataset, trained.step_dir(), state, forces_data(arguments), force_data_advice);
  if (lead && !warning.empty()) warn(warning);
  if (lead && trained_on && !state.dataset_digest.empty() && state.dataset_digest != dataset.digest())
    warn(fmt::format("{} is not as it was when the checkpoint was trained on it: its digest differs", dir.string()));
  if (dataset.valid_tokens() == 0)
    bad_input("{} has no validation text: prepare it with a --valid-fraction above 0", dir.string());
  return dataset;
}

void fit_positions(Config& config, const Dataset& dataset) {
  if (!config.stacks.empty() || config.model.position == Position::learned) return;
  Index longest = 0;
  for (const Domain& domain : dataset.domains()) longest = std::max(longest, domain.valid_tokens);
  config.model.seq_len = std::min(config.model.seq_len, longest);
}

std::unique_ptr<Tokenizer> tokenizer_of(const Trained& trained, const po::variables_map& arguments, bool lead) {
  const auto run = run_of(trained.step_dir());
  if (!arguments.count("data") && run && trained.state.dataset.empty()) {
    const std::string warning = check_imported(*run, {std::begin(tokenizer_files), std::end(tokenizer_files)});
    if (lead && !warning.empty()) warn(warning);
  }
  if (!arguments.count("data"))
    if (const auto tokenizer =
            find_stored_tokenizer(trained.step_dir(), tokenizers_of(trained.step_dir(), trained.state))) {
      const std::string newer = check_unicode(trained.step_dir().string(), trained.state.unicode_versions);
      if (lead && !newer.empty()) warn(newer);
      return tokenizer->kind->open(tokenizer->model);
    }
  const fs::path dir = dataset_of(trained, arguments);
  const DatasetDescription description = read_dataset_ini(dir);
  for (const std::string& warning : {check_tokenizer(dir, tokenizers_of(description), trained.step_dir(), trained.state,
                                                     forces_data(arguments), force_data_advice),
                                     check_unicode(dir.string(), description.unicode_versions)})
    if (lead && !warning.empty()) warn(warning);
  return open_tokenizer(dir);
}

Index vocab_of(const Config& config, const fs::path& file) {
  Index known = 0;
  if (!config.data.path.empty() && file_exists(fs::path(config.data.path) / "dataset.ini"))
    known = training_vocab(config);
  const Index vocab = known > 0 ? known : model_vocab(config, 0);
  if (vocab == 0)
    bad_input("{}: the vocabulary is not known: set model.vocab, or data.path to a prepared data set", file.string());
  return vocab;
}

void check_positions(const Config& config, Index positions, Index source) {
  const auto check = [](const char* owner, const Config::Model& m, Index asked) {
    const double learned = m.position == Position::learned ? static_cast<double>(m.seq_len)
                           : m.position == Position::axial ? m.axial_shape[0] * m.axial_shape[1]
                                                           : std::numeric_limits<double>::infinity();
    if (static_cast<double>(asked) > learned)
      bad_input("the {} has learned {} positions, and {} are asked for: lower --tokens, or shorten the prompt", owner,
                learned, asked);
  };
  if (config.stacks.empty()) return check("model", config.model, positions);
  check("encoder", config.stacks[0].model, source);
  check("decoder", config.stacks[1].model, positions);
}

std::unique_ptr<Engine> load_model(Comm& world, const Trained& trained, Layout layout, const std::string& backend,
                                   Index positions) {
  // The hosts may differ from those of the training.
  if (!check_nodes(world, layout.ranks_per_node).problem.empty()) layout.ranks_per_node = 1;
  Config config = trained.config;
  std::unique_ptr<Device> device;
  const int local = local_rank(world);
  agree_on_errors(world, [&] {
    device = open_device("--backend", backend, local);
    check_config_for_device("--backend", config, *device);
  });
  agree_on_devices(world, *device);
  auto engine = std::make_unique<Engine>(config, trained.state.vocab, std::move(device), make_mesh(world, layout),
                                         false, ArenaSizes{}, 1, positions);
  agree_on_errors(world, [&] {
    load_checkpoint(trained.folder, engine->store(), Load::all, WeightRanges::owned);
    engine->set_router_bias(trained.state.router_bias);
    engine->set_batch_norm_averages(trained.state.batch_norm_averages);
  });
  gather_weights(engine->mesh(), engine->store());
  return engine;
}

}  // namespace sy
