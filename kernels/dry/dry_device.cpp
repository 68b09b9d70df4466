#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/dry/dry.h"
#include "kernels/dry/reach.h"
#include "kernels/kernel_table.h"
#include "kernels/ops/all.h"

namespace sy {

namespace {

// Host code may read tensors of at most this size. Larger tensors are not written, because they
// would cost memory.
constexpr Index small_bytes = Index{1} << 20;

// Writes a tensor if it is small, otherwise does nothing.
void write(View x, float value) {
  if (x.size_bytes() > small_bytes) return;
  if (value == 0)
    std::memset(x.bytes(), 0, static_cast<std::size_t>(x.size_bytes()));
  else
    std::fill_n(x.f32(), x.elements(), value);
}

// The size of an allocation is stored in a page before it.
constexpr Index page = 4096;

void release(std::byte* memory) {
  Index size;
  std::memcpy(&size, memory - page, sizeof size);
  munmap(memory - page, static_cast<std::size_t>(size));
}

// Returns the share of the tokens that reach the experts of each expert-parallel rank.
std::vector<double> reached_shares(const DryRouting& routing) {
  const DryReach reach(routing);
  std::vector<double> shares;
  for (Index first = 0; first < std::ssize(routing.tokens_per_expert); first += routing.experts_of_rank)
    shares.push_back(reach(first, routing.experts_of_rank));
  return shares;
}

class DryDevice final : public Device {
 public:
  explicit DryDevice(const Device* planned_device);

  DryCounts counts;
  DryLoad load;
  Index planned_logits = 0;
  // Most layers have the routing of the layer before. Its shares are kept, because they take most
  // of the time of a plan.
  DryRouting last_routing;
  std::vector<double> last_shares;

  std::string_view name() const override { return "dry"; }
  std::string describe() const override { return "dry, computes nothing"; }

  Index free_bytes() const override { return std::numeric_limits<Index>::max(); }
  Index logits_chunk() const override {
    return planned_logits > 0 ? planned_logits
           : planned_device_  ? planned_device_->logits_chunk()
                              : Device::logits_chunk();
  }
  bool supports_gathered_rows(DType type, std::initializer_list<Index> dims) const override {
    return planned_device_ && planned_device_->supports_gathered_rows(type, dims);
  }
  bool supports(WeightFormat format) const override {
    return planned_device_ ? planned_device_->supports(format) : Device::supports(format);
  }
  Index packed_weight_bytes(const Shape& weight, DType dtype, GemmPass pass, WeightFormat format) const override {
    return planned_device_ ? planned_device_->packed_weight_bytes(weight, dtype, pass, format) : 0;
  }
  DeviceMemory allocate(Index bytes) override {
    const Index size = bytes + page;
    void* const memory = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) no_memory("no address space for {} bytes", bytes);
    std::memcpy(memory, &size, sizeof size);
    return {static_cast<std::byte*>(memory) + page, release};
  }

 private:
  const Device* planned_device_;
};

template <class Operation>
void count(DryDevice& device, const Operation& op) {
  const Cost work = op.cost();
  device.counts.flops += work.flops;
  device.counts.bytes += work.bytes();
  ++device.counts.calls[{Operation::name, work.size, work.flops, work.bytes()}];
}

// An operation that devices may run unfused does not count as one call.
template <class Operation>
void execute(DryDevice& device, const Operation& op) {
  if constexpr (requires { ops::run_unfused(device, op); })
    ops::run_unfused(device, op);
  else
    count(device, op);
}

// ---- operations whose results host code reads ----

void execute(DryDevice& device, const ops::Fill& op) {
  count(device, op);
  write(op.x, op.value);
}

void execute(DryDevice& device, const ops::Copy& op) {
  count(device, op);
  if (op.x.size_bytes() <= small_bytes)
    std::memcpy(op.y.bytes(), op.x.bytes(), static_cast<std::size_t>(op.x.size_bytes()));
}

void execute(DryDevice& device, const ops::RouteForward& op) {
  count(device, op);
  write(op.z_squared, 0);
}

void execute(DryDevice& device, const ops::CrossEntropyLoss& op) {
  count(device, op);
  write(op.loss, 0);
}

// Returns the physical expert of a logical one. logical_to_physical: [E] i32; empty: the identity.
Index physical_of(ConstView logical_to_physical, Index e) {
  return logical_to_physical ? Index{logical_to_physical.i32()[e]} : e;
}

// Returns the assignments of each expert in op.tokens_per_expert that the layout dispatches.
std::vector<Index> dispatched_load(const DryDevice& device, const ops::DispatchLayout& op) {
  const Index n = op.experts.elements(), all = op.tokens_per_expert.elements();
  std::vector<Index> load(static_cast<std::size_t>(all));
  for (Index e = 0; e < all; ++e) load[e] = n / all + (e < n % all);
  if (const ConstView known = op.expected.tokens_per_expert) {
    for (Index e = 0; e < known.elements(); ++e) {
      const Index at = physical_of(op.expected.logical_to_physical, e) - op.partition.first_expert;
      if (0 <= at && at < all) load[at] = known.i32()[e];
    }
  } else if (device.load) {
    device.load(n, load);
  }
  return load;
}

void execute(DryDevice& device, const ops::DispatchLayout& op) {
  count(device, op);
  const ExpertPartition& partition = op.partition;
  const ExpectedRouting& expected = op.expected;
  const Index tokens = op.experts.dim(0), all = op.tokens_per_expert.elements(), each = all / partition.ep;
  const std::vector<Index> logical = dispatched_load(device, op);
  DryRouting routing{.tokens_per_expert = std::vector<Index>(logical.size()),
                     .tokens = tokens,
                     .k = op.experts.dim(1),
                     .experts_of_rank = each};
  std::vector<Index>& physical = routing.tokens_per_expert;
  for (Index e = 0; e < all; ++e) physical[physical_of(partition.logical_to_physical, e)] = logical[e];

  // A group limit applies only to a partition of all experts. The hop within a node gets tokens
  // that have already chosen their groups.
  const bool of_all = !expected.tokens_per_expert || expected.tokens_per_expert.elements() == all;
  if (of_all && expected.topk_groups < expected.groups) {
    routing.group_of.resize(physical.size());
    for (Index e = 0; e < all; ++e)
      routing.group_of[physical_of(expected.logical_to_physical, e)] = e * expected.groups / all;
    routing.groups = expected.groups, routing.limit = expected.topk_groups;
  }

  std::int32_t* const counts = op.counts.i32();
  for (Index e = 0; e < all; ++e) op.tokens_per_expert.i32()[e] = static_cast<std::int32_t>(logical[e]);
  if (device.last_routing != routing) {
    device.last_shares = reached_shares(routing);
    device.last_routing = routing;
  }
  for (Index rank = 0; rank < partition.ranks(); ++rank) {
    const Index group = rank / partition.etp, first = group * each;
    std::int32_t* const row = counts + rank * (1 + each);
    row[0] = static_cast<std::int32_t>(std::llround(static_cast<double>(tokens) * device.last_shares[group]));
    for (Index e = 0; e < each; ++e) row[1 + e] = static_cast<std::int32_t>(physical[first + e]);
  }
}

void execute(DryDevice&, const ops::ClipCoefficient&) {}  // one number, which counts as no call

DryDevice::DryDevice(const Device* planned_device)
    : Device(kernel_table<DryDevice>()), planned_device_(planned_device) {}

DryDevice& as_dry(Device& device) {
  auto* const dry = dynamic_cast<DryDevice*>(&device);
  SY_ASSERT(dry, "the {} device counts nothing", device.name());
  return *dry;
}

}  // namespace

std::unique_ptr<Device> make_dry(const Device* planned_device) {
  return std::make_unique<DryDevice>(planned_device);
}

DryCounts& dry_counts(Device& device) {
  return as_dry(device).counts;
}

void set_dry_logits(Device& device, Index logits) {
  as_dry(device).planned_logits = logits;
}

void set_dry_load(Device& device, DryLoad load) {
  as_dry(device).load = std::move(load);
}

}  // namespace sy
