#include "src/train/memory.h"

#include <algorithm>
#include <array>

#include "dist/device_comm.h"
#include "dist/machine.h"
#include "dist/runtime.h"
#include "src/io/checkpoint_internal.h"
#include "src/model/engine.h"
#include "src/params/matrix_exchange.h"
#include "src/text/strings.h"
#include "src/train/distributed_optimizer.h"

namespace sy {

MemoryPlan plan_parameters(const std::vector<ParamSpec>& specs, DType dtype, const Layout& layout, int rank) {
  const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, rank));
  const Index master = dtype == DType::f32 ? 0 : flat.trained_elements();
  Index optimizer = flat.state_bytes() + master * 4;
  for (std::size_t g = 0; g < flat.groups.size(); ++g)
    if (const UpdateRule& rule = update_rule(flat.groups[g].optimizer); rule.matrix_rule)
      optimizer += matrix_exchange(specs, layout, rank, g).bytes(rule);
  MemoryPlan plan{
      .weights = flat.elements() * size_of(dtype), .gradients = flat.gradient_elements() * 4, .optimizer = optimizer};
  const auto kinds = tensor_kinds(specs);
  for (const OwnedRange& range : shard_ranges(flat, layout, coord_of(layout, rank)))
    plan.checkpoint_copy += 4 * range.flat.size() * std::ranges::count_if(kinds, [&](const auto& kind) {
                              return kind.covers(*range.slice->spec);
                            });
  return plan;
}

MemoryPlan plan_memory(const Config& config, Index vocab, const Layout& layout, int rank, const Device& device,
                       Index slots) {
  const std::unique_ptr<Comm> world = make_comm_dry(layout.ranks, rank, !device.on_host());
  Engine engine(config, vocab, make_dry(&device), make_mesh(*world, layout), true);

  const Index B = config.train.micro_batch, S = config.decoder_length(), tokens = B * S;
  std::vector<std::int32_t> ids(tokens, 0), encoder_ids(B * config.encoder_length(), 0), document_start;
  if (config.data.documents != Documents::join) document_start = ids;
  if (config.data.documents == Documents::pack) ids.back() = -1;  // padding
  if (!encoder_ids.empty()) ids.back() = encoder_ids.back() = -1;
  const std::vector<std::int32_t> prefix_end(config.has_visible_prefix() ? ids.size() : 0, 1);
  engine.forward_backward(
      {B, S, ids, ids, tokens, 1, 1, 0, document_start, config.encoder_length(), encoder_ids, prefix_end});
  DistributedOptimizer(engine.mesh(), engine.store(), engine.max_logits()).step(config.train, config.train.lr, 1);

  MemoryPlan plan = plan_parameters(engine.store().specs(), config.dtype(), layout, rank);
  plan.saved = slots * engine.saved().peak();  // micro-batches are equal
  plan.scratch = engine.scratch().peak();
  plan.weights += engine.store().packed_weights().bytes();
  return plan;
}

namespace {

// Returns the settings that reduce the memory of activations.
std::vector<std::string> activation_advice(const Config& config) {
  std::vector<std::string> advice;
  if (config.train.micro_batch > 1) advice.push_back("lower train.micro_batch");
  if (config.train.recompute != Recompute::block && !config.train.reversible)
    advice.push_back("set train.recompute = block");
  return advice;
}

std::string gigabytes(Index bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e9);
}

// Divides bytes among the arenas in the ratio of the plan. Each has at least its planned bytes.
ArenaSizes divide(Index bytes, const MemoryPlan& plan, Index slots) {
  const Index planned = plan.saved / slots, spare = bytes - plan.activations();
  const double share = static_cast<double>(planned) / static_cast<double>(plan.activations());
  const Index saved =
      planned + static_cast<Index>(share * static_cast<double>(spare)) / Arena::alignment * Arena::alignment;
  return {saved, (bytes - slots * saved) / Arena::alignment * Arena::alignment};
}

}  // namespace

std::string memory_advice(const Config& config) {
  std::vector<std::string> advice = activation_advice(config);
  if (config.moe.experts > 0 && config.moe.capacity_factor == 0)
    advice.push_back("set moe.capacity_factor, as some experts may get many more tokens than others");
  advice.push_back("use more ranks");
  return join(advice, ", or ");
}

void refuse_memory(const Config& config, const MemoryPlan& plan, Index available, Index reserve,
                   const std::string& machine, bool device) {
  if (plan.total() <= available)
    bad_input(
        "the copy of a checkpoint needs {} GB on each rank besides {} GB for training, and {}: set "
        "run.async_checkpoint = false",
        gigabytes(plan.checkpoint_copy), gigabytes(plan.total()),
        machine.empty() ? fmt::format("{} GB are there", gigabytes(available))
                        : fmt::format("a rank of {} has {} GB", machine, gigabytes(available)));
  std::vector<std::string> advice;
  if (plan.activations() > plan.parameters() / 2) advice = activation_advice(config);
  if (device && config.dtype() == DType::f32 && !config.train.reversible) advice.push_back("set run.dtype = bf16");
  advice.push_back("use more ranks with a larger parallel.tp or parallel.ep, or a smaller model");
  // If the parameters alone do not fit, activations are not planned.
  const std::string activations = gigabytes(plan.activations());
  const bool planned = activations != "0.0";
  bad_input("training needs {} GB on each rank{} (weights {}, gradients {}, optimizer {}{}), and {}: {}",
            gigabytes(plan.total()), planned ? "" : " for its parameters alone", gigabytes(plan.weights),
            gigabytes(plan.gradients), gigabytes(plan.optimizer),
            planned ? ", activations at least " + activations : "; activations come on top",
            machine.empty() ? fmt::format("{} GB are there{}", gigabytes(available),
                                          reserve > 0 ? fmt::format(", without {} GB for {} and the driver",
                                                                    gigabytes(reserve), device_collectives().name)
                                                      : "")
                            : fmt::format("a rank of {} has {} GB", machine, gigabytes(available)),
            fmt::join(advice, ", or "));
}

ArenaSizes arena_sizes(const Config& config, Index vocab, const Layout& layout, int rank, const Device& device,
                       int ranks_on_device, bool warmed_up, Index slots) {
  // a host has other uses for its memory, and its arenas may grow
  const bool fixed = !device.on_host();
  const Index free = device.free_bytes();
  // On a device the driver allocates memory at run time: for stacks, graphs, and kernels if they
  // are loaded lazily. With several ranks, collectives allocate buffers, or, if warmed_up, memory
  // for sizes that were not tried.
  const Index megabytes = layout.ranks == 1 ? 512 : warmed_up ? 1024 : 4096;
  const Index reserve = fixed ? std::max<Index>(megabytes << 20, free / 32) : 0;
  const Index per_rank = std::max<Index>(0, free - reserve) / ranks_on_device;
  MemoryPlan plan = plan_parameters(param_specs(config, vocab), config.dtype(), layout, rank);
  // A lower bound: one row for each token between two blocks. Planning itself needs memory per
  // token, so it runs only if this fits.
  plan.saved = slots * config.train.micro_batch * config.tokens_per_sample() / layout.tp * config.model.d_model *
               size_of(config.dtype());
  if (plan.total() <= per_rank) plan = plan_memory(config, vocab, layout, rank, device, slots);
  // The copy of a checkpoint is in the host's memory.
  const Index copy = fixed || !config.run.async_checkpoint ? 0 : plan.checkpoint_copy;
  if (plan.total() + copy <= per_rank)
    return fixed ? divide(per_rank - plan.parameters(), plan, slots) : ArenaSizes{plan.saved / slots, plan.scratch};

  refuse_memory(config, plan, per_rank, reserve, "", fixed);
}

namespace {

// Needs of the ranks that share `available` bytes of host memory.
struct MemoryShare {
  Index available, ranks, training, copies;
  const char* allowed;  // ends a message after the available bytes
  const char* remedy;   // the last advice

  // Throws an InputError if the memory is too small.
  void check(const Config& config, const MemoryPlan& needs) const {
    const std::string sharers = ranks == 1 ? "one rank of a host" : fmt::format("{} ranks of a host together", ranks);
    if (training > available) {
      std::vector<std::string> advice;
      if (needs.activations() > needs.parameters() / 2) advice = activation_advice(config);
      advice.push_back(fmt::format("{}, or a smaller model", remedy));
      bad_input("training needs {} GB on the {}, and {} GB are {}: {}", gigabytes(training), sharers,
                gigabytes(available), allowed, join(advice, ", or "));
    }
    if (copies > 0 && training + copies > available)
      bad_input(
          "the copies of a checkpoint need {} GB on the {}, besides {} GB for training, and {} GB are {}: set "
          "run.async_checkpoint = false, or {}",
          gigabytes(copies), sharers, gigabytes(training), gigabytes(available), allowed, remedy);
  }
};

}  // namespace

void check_host_memory(Comm& world, const Config& config, const MemoryPlan& needs, const HostMemory& host) {
  std::vector<std::string> keys;
  for (const HostMemory::Group& group : host.groups) keys.push_back(group.id);
  const auto sums = sums_on_machine(world, std::array{Index{1}, needs.total(), needs.checkpoint_copy}, keys);
  agree_on_errors(world, [&] {
    const auto check = [&](Index available, const std::vector<Index>& sum, const char* allowed, const char* remedy) {
      MemoryShare{available, sum[0], sum[1], sum[2], allowed, remedy}.check(config, needs);
    };
    for (std::size_t i = 0; i < host.groups.size(); ++i)
      check(host.groups[i].limit, sums[i + 1], "allowed by the limit of their control group",
            "raise this limit (Slurm: --mem), or use more hosts");
    check(host.bytes, sums[0], "there", "use more hosts");
  });
}

}  // namespace sy
