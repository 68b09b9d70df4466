// `switchyard train`: checks of the configuration, data and machine, and dry runs, before a run.
#include <csignal>

#include "dist/node_groups.h"
#include "dist/runtime.h"
#include "src/config/layout.h"
#include "src/data/sequence_pairs.h"
#include "src/text/table.h"
#include "src/train/device_reservation.h"
#include "src/train/memory.h"
#include "src/train/run_texts.h"
#include "src/train/training_run.h"

namespace sy {

void check_run_dir(const Config& config) {
  if (config.run.dir.empty()) bad_input("run.dir is not set: give a folder for this run");
}

int run_training(Comm& world, const Config& requested, const RunOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe for progress lines must not end the run
  Config config = requested;      // with the special tokens of the data
  const Layout layout = config.layout(options.ranks > 0 ? options.ranks : world.size());
  const int local = local_rank(world);
  std::unique_ptr<Device> device;
  Index vocab = 0;
  agree_on_errors(world, [&] {
    check_config_for_layout(config, layout);
    check_run_dir(config);
  });
  const std::vector<std::vector<Index>> physical_to_logical = read_expert_map(world, config);
  Dataset dataset = open_training_data(world, config);
  agree_on_errors(world, [&] {
    config = with_special_tokens(config, dataset);
    training_samples(dataset, config);
    vocab = model_vocab(config, dataset.vocab());
    if (config.train.validate_every > 0 && dataset.valid_tokens() == 0)
      bad_input(
          "train.validate_every = {}, but {} has no validation text: set it to 0, or prepare the data with a "
          "--valid-fraction above 0",
          config.train.validate_every, config.data.path);
    if (vocab < layout.tp)
      bad_input("a vocabulary of {} cannot be split over parallel.tp = {} ranks: lower parallel.tp", vocab, layout.tp);
    if (options.machine_memory) return;  // this machine's devices do not matter
    device = open_device("run.backend", config.run.backend, local);
    check_config_for_device("run.backend", config, *device);
  });
  // A dry run may be for more ranks than exist.
  const NodeCheck nodes = layout.ranks == world.size() ? check_nodes(world, layout.ranks_per_node) : NodeCheck{};
  if (nodes.order_helps) throw CollectiveError(2, nodes.problem);
  if (!nodes.problem.empty() && world.rank() == 0) warn(nodes.problem);
  const int sharing = device ? agree_on_devices(world, *device) : 1;
  if (options.dry_run) {
    agree_on_errors(world, [&] {
      // throws if training does not fit
      if (!options.machine_memory) arena_sizes(config, vocab, layout, 0, *device, sharing, false);
      if (world.rank() != 0) return;
      const MemoryPlan memory =
          options.machine_memory ? options.machine_memory(vocab) : plan_memory(config, vocab, layout, 0, *device);
      const SampleStream samples = training_samples(dataset, config);
      const Index last_samples = config.train.samples_before(config.train.steps + 1);
      for (const std::string& text : all_config_warnings(config, layout, dataset, samples, last_samples)) warn(text);
      fmt::print("{}\n", visible(training_summary(config, dataset, samples, last_samples, layout, memory,
                                                  device ? device->describe() : options.machine, 0),
                                 "\n"));
    });
    return 0;
  }
  const std::string advice = memory_advice(config);
  const auto run = with_advice(advice, [&] {
    Config run_config = config;
    run_config.moe.physical_to_logical = physical_to_logical;
    DeviceReservation reservation = warm_up_and_reserve(world, config, vocab, layout, *device, sharing);
    return std::make_unique<TrainingRun>(world, run_config, options, layout, std::move(dataset), std::move(device),
                                         std::move(reservation));
  });
  const int code = abort_job_on_error(world, [&] { return with_advice(advice, [&] { return run->execute(); }); });
  // Lost progress lines do not fail a run: its result is its folder.
  if (const std::string why = output_error(); !why.empty())
    warn(fmt::format("some progress lines are lost ({}): {}/metrics.jsonl has every step", why, config.run.dir));
  if (const std::string why = console_log_error(); !why.empty())
    warn(fmt::format("{}/train.log lacks lines ({}): metrics.jsonl has every step", config.run.dir, why));
  return code;
}

}  // namespace sy
