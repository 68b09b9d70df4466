#include "src/train/device_reservation.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "dist/device_comm.h"
#include "dist/phase.h"
#include "dist/runtime.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "src/model/core_attention.h"
#include "src/params/block_specs.h"
#include "src/params/store.h"
#include "src/system/host.h"
#include "src/train/memory.h"

namespace sy {
namespace {

// Device collectives connect for each of their algorithms, which they choose by message size.
constexpr Index collective_bytes[] = {Index{4} << 10, Index{8} << 20};

// Buffers of a collective: twice those of all ranks, and that of one rank.
struct Buffers {
  View all, received, shard;
  const std::vector<Index>& rows;  // of each rank
};
using Call = void (*)(Comm& comm, const Buffers& b);
constexpr Call broadcast = [](Comm& comm, const Buffers& b) { comm.broadcast(b.all, 0); };
constexpr Call all_reduce = [](Comm& comm, const Buffers& b) { comm.all_reduce(b.all); };
constexpr Call reduce = [](Comm& comm, const Buffers& b) { comm.start_reduce(b.all, 0).wait(); };
constexpr Call reduce_scatter = [](Comm& comm, const Buffers& b) { comm.reduce_scatter(b.all, b.shard); };
constexpr Call all_gather = [](Comm& comm, const Buffers& b) { comm.all_gather(b.shard, b.all); };
constexpr Call all_to_all = [](Comm& comm, const Buffers& b) { comm.all_to_all_v(b.all, b.rows, b.received, b.rows); };

// Runs each of some collectives in each size.
void warm_up(Comm& comm, Device& device, std::initializer_list<Call> collectives) {
  if (!comm.asynchronous()) return;
  for (const Index bytes : collective_bytes) {
    const Index ranks = comm.size(), n = std::max<Index>(1, bytes / 4 / ranks);
    const Tensor all = device.tensor({ranks * n}), received = device.tensor({ranks * n}), shard = device.tensor({n});
    const std::vector<Index> rows(static_cast<std::size_t>(ranks), n);
    for (const Call call : collectives) call(comm, {all, received, shard, rows});
    device.synchronize();  // before the buffers are freed
  }
}

void warm_up_collectives(const Config& config, Index vocab, const Mesh& mesh, Device& device) {
  const std::vector<ParamSpec> specs = param_specs(config, vocab);
  // the gradient norm, and load balancing over all ranks
  warm_up(mesh.world(), device, {all_reduce, all_gather});
  warm_up(*mesh.tp, device, {all_gather, reduce_scatter, all_reduce});
  // A reduce-scatter of bf16 sends from rank to rank.
  if (mesh.tp->reduces_in_scratch(config.dtype())) warm_up(*mesh.tp, device, {all_to_all});
  if (mesh.kv_replicas) warm_up(*mesh.kv_replicas, device, {all_reduce});
  if (count_moe(block_specs(config)) > 0) {
    warm_up(*mesh.expert_group, device, {all_gather, all_to_all});
    for (Comm* const hop : {mesh.inter_node.get(), mesh.intra_node.get()})
      if (hop) warm_up(*hop, device, {all_to_all});
  }
  for (const GroupLayout& group : flat_layout(specs, mesh.layout, mesh.coord).groups)
    if (group.shards > 1 && !group.frozen) warm_up(mesh.over(group.axes), device, {reduce, reduce_scatter, broadcast});
}

// Runs the GEMMs of a layer, of a router or head (f32 result), of the residual stream (with an
// addend), and of experts.
void warm_up_gemms(Device& device, DType dtype) {
  constexpr Index n = 256, experts = 2;
  const std::int32_t rows[] = {0, n / 2, n};
  const Tensor offsets = device.tensor({experts + 1}, DType::i32);
  device.to_device(rows, offsets);
  const GroupOffsets groups{offsets, rows};
  for (const DType type : {DType::f32, dtype}) {
    const Tensor x = device.tensor({n, n}, type), w = device.tensor({n, n}, type), y = device.tensor({n, n}, type),
                 sum = device.tensor({n, n}), stack = device.tensor({experts, n, n}, type),
                 sums = device.tensor({experts, n, n});
    for (const View to : {y.view(), sum.view()}) {
      run(device, ops::Gemm{.a = x, .b = w.view(), .transpose_b = true, .c = to});
      run(device, ops::Gemm{.a = x, .b = w.view(), .c = to});
      run(device, ops::Gemm{.a = x, .b = w.view(), .transpose_a = true, .accumulate = true, .c = to});
    }
    run(device, ops::Gemm{.a = x, .b = w.view(), .addend = x, .transpose_b = true, .c = y});
    run(device, ops::GroupedGemm{.x = x.view(), .w = stack.view(), .groups = groups, .y = y});
    run(device, ops::GroupedGemmDgrad{.dy = x.view(), .w = stack.view(), .groups = groups, .dx = y});
    run(device, ops::GroupedGemmWgrad{.dy = x.view(), .x = y.view(), .groups = groups, .dw = sums});
  }
  device.synchronize();
}

// Runs attention of a micro-batch, if the device allocates memory in it.
void warm_up_attention(const Config& config, const Layout& layout, Device& device) {
  const Config::Model& m = config.model;
  if (!device.allocates_in_attention() || m.key_width() != m.value_width()) return;
  const Index B = config.train.micro_batch, S = m.seq_len, H = m.heads / layout.tp,
              K = std::max<Index>(1, m.kv_heads / layout.tp), width = m.key_width();
  const DType dtype = config.dtype();
  const Tensor qkv = device.tensor({B, S, H + 2 * K, width}, dtype), out = device.tensor({B, S, H, width}, dtype),
               dqkv = device.tensor({B, S, H + 2 * K, width}, dtype), lse = device.tensor({B, H, S});
  const auto [q, k, v] = split_heads(qkv.view(), H, K, K);
  const auto [dq, dk, dv] = split_heads(dqkv.view(), H, K, K);
  const AttentionDesc desc{.mask = {.causal = m.kind == ModelKind::decoder}};
  run(device, ops::AttentionForward{.q = q, .k = k, .v = v, .desc = desc, .out = out, .lse = lse});
  run(device,
      ops::AttentionBackward{
          .dout = out, .q = q, .k = k, .v = v, .out = out, .lse = lse, .desc = desc, .dq = dq, .dk = dk, .dv = dv});
  device.synchronize();
}

}  // namespace

DeviceReservation warm_up_and_reserve(Comm& world, const Config& config, Index vocab, const Layout& layout,
                                      Device& device, int ranks_on_device, Index slots) {
  DeviceReservation reservation{.mesh = make_mesh(world, layout), .slots = slots};
  if (!device.on_host()) {
    const ScopedPhase phase(world.rank_context(),
                            intern(fmt::format("first use of {} and cuBLAS", device_collectives().name)));
    const Index before = device.free_bytes();
    reservation.mesh = on_device(std::move(reservation.mesh), device);
    join_replicas(reservation.mesh, param_specs(config, vocab), config.model_of(config.model.layers - 1).kv_heads);
    warm_up_collectives(config, vocab, reservation.mesh, device);
    warm_up_gemms(device, config.dtype());
    warm_up_attention(config, layout, device);
    reservation.mesh.world().barrier();
    reservation.library_bytes = std::max<Index>(0, before - device.free_bytes());
  }
  agree_on_errors(world, [&] {
    reservation.arenas = arena_sizes(config, vocab, layout, world.rank(), device, ranks_on_device, true, slots);
  });
  MemoryPlan needs = plan_parameters(param_specs(config, vocab), config.dtype(), layout, world.rank());
  if (device.on_host()) {  // without packed weights
    needs.saved = slots * reservation.arenas.saved;
    needs.scratch = reservation.arenas.scratch;
  } else {
    needs = {.checkpoint_copy = needs.checkpoint_copy};
  }
  if (!config.run.async_checkpoint) needs.checkpoint_copy = 0;
  check_host_memory(world, config, needs, host_memory());
  return reservation;
}

}  // namespace sy
