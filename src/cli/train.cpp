#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>

#include "dist/file_readers.h"
#include "dist/rank_settings.h"
#include "kernels/environment.h"
#include "src/cli/plan_options.h"
#include "src/cli/trained.h"
#include "src/config.h"
#include "src/config/layout.h"
#include "src/data/dataset.h"
#include "src/plan/automatic_layout.h"
#include "src/plan/machine.h"
#include "src/train/trainer.h"

namespace sy {
namespace {

// Configuration of a training and machines of its prediction, and the machines' files.
struct TrainFiles {
  Config config;
  std::optional<Machine> machine;  // of run.machine
  MachineFile machine_file, plan_machine_file;
};

// Returns whether all ranks name the same files: their arguments, working directories and home
// folders are equal. Collective.
bool name_same_files(const CommandLine& line) {
  std::error_code error;  // the working directory may be gone
  const char* const home = environment("HOME");
  std::string text = std::filesystem::current_path(error).string() + '\0' + (home ? home : "");
  for (const std::string& argument : line.args) text += '\0' + argument;
  return equal_on_all_ranks(line.world, text);
}

// Copies the files of rank 0, and their values, to the other ranks. Collective.
void copy_from_rank_0(Comm& world, TrainFiles& files, PlanOptions& plan, const std::string& config_file) {
  const std::string config = broadcast_text(world, world.rank() == 0 ? to_ini(files.config) : "", 0);
  for (MachineFile* file : {&files.machine_file, &files.plan_machine_file}) {
    file->path = broadcast_text(world, file->path, 0);
    file->text = broadcast_text(world, file->text, 0);
  }
  const auto parse = [](const MachineFile& file, std::optional<Machine>& machine) {
    if (!file.path.empty()) machine = parse_machine(file.text, file.path);
  };
  agree_on_errors(world, [&] {
    if (world.rank() == 0) return;
    files.config = parse_config(config, config_file);
    parse(files.machine_file, files.machine);
    parse(files.plan_machine_file, plan.machine);
  });
}

}  // namespace

int train_command(CommandLine& line) {
  po::options_description options(
      "Trains alone, or under mpirun or srun with one process per rank. `switchyard help config` lists the keys;\n"
      "configs/ holds examples. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 ask for a checkpoint and a clean stop, which has\n"
      "exit code 3; a second Ctrl-C, SIGTERM or SIGHUP ends the run at once.\n\nOptions");
  RunOptions run_options;
  run_options.provenance = line.provenance;
  // clang-format off
  options.add_options()
      ("quiet", po::bool_switch(&run_options.quiet), "no progress: only the last step, its performance, warnings and errors")
      ("dry-run", po::bool_switch(&run_options.dry_run), "check configuration, layout, data and memory; write nothing")
      ("ranks", po::value(&run_options.ranks), "with --dry-run: as on this many ranks");
  // clang-format on
  po::options_description plan_only;
  add_plan_options(plan_only, "with --dry-run: ");
  options.add(plan_only);
  TrainFiles files;
  Config& config = files.config;
  std::optional<Machine>& machine = files.machine;
  std::vector<std::string> warnings;
  PlanOptions plan;
  std::string config_file;
  bool go = true;
  // If all ranks name the same files, rank 0 reads them for all ranks.
  const bool same_files = name_same_files(line), reads = !same_files || line.world.rank() == 0;
  agree_on_errors(line.world, [&] {
    std::vector<std::string> settings;
    ErrorList errors("train");
    po::variables_map arguments;
    go = parse_options(line, "train", options, {"config"}, arguments, errors, &settings);
    if (!go) return;
    bool ranks_known = true;
    if (arguments.count("ranks")) {
      const bool read = has_value(arguments, "ranks");
      ranks_known = read && run_options.ranks >= 1 && run_options.ranks <= 1 << 20;
      if (read && !ranks_known) errors.add("train: --ranks {}: give a number from 1 to {}", run_options.ranks, 1 << 20);
      if (!run_options.dry_run) errors.add("train: --ranks goes with --dry-run: start that many ranks");
    }
    for (const char* option : {"machine", "load"})
      if (arguments.count(option) && !run_options.dry_run) errors.add("train: --{} goes with --dry-run", option);
    std::vector<ConfigCheck> checks{{check_data_path}, {check_run_dir}};
    const int ranks = run_options.ranks > 0 ? run_options.ranks : line.world.size();
    if (ranks_known)
      checks.push_back({[&](const Config& c) {
                          if (!has_automatic_layout(c)) check_config_for_layout(c, c.layout(ranks));
                        },
                        true});
    if (has_value(arguments, "config")) config_file = arguments["config"].as<std::string>();
    if (reads && run_options.dry_run) files.plan_machine_file = read_plan_options(arguments, plan, checks, errors);
    if (reads && has_value(arguments, "config")) {
      checks.push_back({[&](const Config& c) {
        if (c.run.machine.empty()) return;
        files.machine_file = read_machine_file(c.run.machine, config_file, "run.machine =");
        machine = parse_machine(files.machine_file.text, files.machine_file.path);
      }});
      errors.run([&] { config = read_config(config_file, settings, checks, nullptr, &warnings); });
    }
    errors.raise();
  });
  if (go && same_files) copy_from_rank_0(line.world, files, plan, config_file);
  std::vector<RankSetting> same = go ? rank_settings(config) : std::vector<RankSetting>{};
  for (const auto& [option, value] :
       {std::pair{"--help", int{!go}}, {"--dry-run", int{run_options.dry_run}}, {"--ranks", run_options.ranks}})
    same.push_back({option, std::to_string(value)});
  same.push_back({"--machine", plan.machine ? plan.machine->name : ""});
  check_rank_settings(line.world, same, "start all ranks with the same command line and configuration");
  if (!go) return 0;
  if (machine)
    run_options.peak = {config.run.machine, machine->backend, machine->peak(config.dtype()), machine->shared};
  const int ranks = run_options.ranks > 0 ? run_options.ranks : line.world.size();
  if (has_automatic_layout(config)) {
    Index vocab = 0;  // rank 0 alone needs it, since it chooses the layout
    agree_on_errors(line.world, [&] {
      if (line.world.rank() == 0) vocab = vocab_of(config, config_file);
    });
    config = resolve_automatic_layout(line.world, config, vocab, ranks, plan.machine ? plan.machine : machine);
    if (line.world.rank() == 0 && !run_options.quiet)
      std::cout << fmt::format("auto      {}, train.micro_batch = {}\n", config.layout(ranks).short_name(),
                               config.train.micro_batch)
                << std::flush;
  }
  plan.layouts = {config.layout(ranks)};
  // A checkpoint that training resumes from has the same warnings.
  if (line.world.rank() == 0 && !config.run.resume)
    for (const std::string& text : warnings) warn(text);
  std::optional<Plan> planned;
  if (plan.machine) {
    run_options.machine = plan.machine->name;
    run_options.machine_memory = [&](Index vocab) {
      planned = make_plan(config, vocab, ranks, plan);
      if (planned->fitting.empty())
        refuse_memory(config, planned->too_large.front().memory, static_cast<Index>(planned->memory), 0,
                      run_options.machine, plan.machine->backend == "cuda");
      return planned->fitting.front().memory;
    };
  }
  const int code = run_training(line.world, config, run_options);
  if (!run_options.dry_run || code != 0 || line.world.rank() != 0) return code;
  // Prints compute and traffic of such a step and, on a named machine, its time.
  if (!planned) planned = make_plan(config, vocab_of(config, config.data.path), ranks, plan);
  std::cout << "\n" << plan_text(*planned, 1) << std::flush;
  return 0;
}

}  // namespace sy
