#include "tests/bench/gpu/trip.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <cstring>

#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/permute.h"

namespace sy::bench {
namespace {

// A batch of messages to and from other ranks.
class Messages {
 public:
  void send(ConstView rows, int to, int tag) {
    if (rows.elements() > 0)
      MPI_Isend(rows.bytes(), size_of(rows), MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests_.emplace_back());
  }
  void receive(View rows, int from, int tag) {
    if (rows.elements() > 0)
      MPI_Irecv(rows.bytes(), size_of(rows), MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests_.emplace_back());
  }
  void finish() { MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE); }

 private:
  static int size_of(ConstView rows) { return static_cast<int>(rows.size_bytes()); }
  std::vector<MPI_Request> requests_;
};

}  // namespace

Trip::Trip(Device& device, const Mesh& mesh, const ModelShape& shape, DType dtype, const Load& load)
    : device_(device),
      mesh_(mesh),
      group_(*mesh.expert_group),
      placement_(mesh.layout, {}),
      T_(shape.sequences * shape.seq_len),
      k_(shape.top_k),
      E_(shape.experts),
      arena_([this](Index bytes) { return device_.allocate(bytes); }),
      chosen_(device_.tensor({T_, k_}, DType::i32)),
      dispatch_mask_(device_.tensor({T_, k_}, DType::i32)),
      x_(device_.tensor({T_, shape.d_model}, dtype)),
      y_(device_.tensor({T_, shape.d_model}, dtype)),
      weights_(device_.tensor({T_, k_})) {
  const std::vector<std::int32_t> experts = load.experts(T_, group_.rank()), all(T_ * k_, 1);
  SY_ASSERT(experts.size() == all.size(), "{} choices of {} tokens, {} of each", experts.size(), T_, k_);
  device_.to_device(experts.data(), chosen_);
  device_.to_device(all.data(), dispatch_mask_);
  fill_normal(device_, x_, 1, fmt::format("x of rank {}", group_.rank()));
  fill_normal(device_, weights_, 1, "weights");
  dispatch_layout_ = DispatchLayout(placement_, T_, k_, arena_.i32({E_}), arena_, arena_);
  build_layout();
  device_.synchronize();
}

void Trip::build_layout() {
  const Arena::Scope scope(arena_);
  dispatch_layout_.build(device_, placement_, chosen_, dispatch_mask_, arena_);
}

// Sets received_, first_column_, received_weights_ and physical_experts_.
DispatchHandle Trip::receive() {
  TokenDispatcher dispatcher(device_, mesh_, placement_);
  const CountExchange exchange = dispatcher.exchange_counts(dispatch_layout_);
  const PackedTokens packed = dispatcher.pack(dispatch_layout_, x_, weights_, arena_);
  DispatchHandle handle = dispatcher.finalize(exchange, arena_, arena_);
  PendingDispatch dispatched = handle.dispatch(packed, arena_, arena_);
  dispatched.wait();
  received_ = dispatched.received(), received_weights_ = dispatched.weights();
  first_column_ = dispatched.first_column(), physical_experts_ = dispatched.physical_experts();
  return handle;
}

void Trip::dispatch() {
  const Arena::Scope scope(arena_);
  receive();
}

void Trip::dispatch_combine() {
  const Arena::Scope scope(arena_);
  DispatchHandle handle = receive();
  // Treats every received token as one row: the sum of the rows of its experts is not part of
  // combine here.
  const Index A = received_.dim(0);
  const View tokens = arena_.take({A, x_.view().dim(1)}, x_.view().dtype());
  const ConstView each = identity(A);
  run(device_, ops::Permute{.x = received_, .index = each.reshape({A}), .first_column = first_column_, .y = tokens});
  handle.combine({{tokens, each, {}, y_}}, arena_).wait();
}

void Trip::all_to_all(Index each) {
  const Arena::Scope scope(arena_);
  const Index P = group_.size();
  const std::vector<Index> rows(P, each);
  const Shape shape{P * each, x_.view().dim(1)};
  if (!plain_.view() || plain_.view().shape() != shape) {
    plain_ = device_.tensor(shape, x_.view().dtype());
    run(device_, ops::Fill{.x = plain_, .value = 0});
  }
  group_.all_to_all_v(plain_, rows, arena_.take(shape, x_.view().dtype()), rows);
}

void Trip::to_experts(Way way, bool back) {
  way == Way::by_expert ? once_to_each_expert(back) : once_to_each_rank(way == Way::copied, back);
}

void Trip::once_to_each_rank(bool copied, bool back) {
  const Arena::Scope scope(arena_);
  build_layout();  // the other way also sorts its rows
  DispatchHandle handle = receive();
  const Index R = handle.rows(), D = x_.view().dim(1);
  const View assignments = arena_.i32({R}), tokens = arena_.i32({R}),
             row_id_map = arena_.i32(physical_experts_.shape()), offsets = arena_.i32({std::ssize(handle.offsets())});
  run(device_, ops::BuildPermutation{.physical_experts = physical_experts_,
                                     .first_expert = handle.first_physical_expert(),
                                     .assignments = assignments,
                                     .tokens = tokens,
                                     .row_id_map = row_id_map,
                                     .offsets = offsets});
  rows_ = arena_.take({R, D}, x_.view().dtype());
  row_weights_ = arena_.f32({R, 1});
  if (copied) run(device_, ops::Permute{.x = received_, .index = tokens, .first_column = first_column_, .y = rows_});
  run(device_,
      ops::Permute{
          .x = received_weights_.reshape({received_weights_.elements(), 1}), .index = assignments, .y = row_weights_});
  if (!back) return;
  if (doubles_) run(device_, ops::Scale{.x = rows_, .factor = 2});
  handle.combine({{rows_, row_id_map, {}, y_}}, arena_).wait();
}

void Trip::once_to_each_expert(bool back) {
  const Arena::Scope scope(arena_);
  const Index P = group_.size(), n = T_ * k_, D = x_.view().dim(1), here = E_ / P;
  const int rank = group_.rank();
  const View assignments = arena_.i32({n}), tokens = arena_.i32({n}), row_id_map = arena_.i32({T_, k_}),
             offsets = arena_.i32({E_ + 1}), all = arena_.i32({P, E_ + 1}),
             send_rows = arena_.take({n, D}, x_.view().dtype()), send_weights = arena_.f32({n, 1});
  run(device_, ops::BuildPermutation{.physical_experts = chosen_,
                                     .assignments = assignments,
                                     .tokens = tokens,
                                     .row_id_map = row_id_map,
                                     .offsets = offsets});
  run(device_, ops::Permute{.x = x_, .index = tokens, .y = send_rows});
  run(device_, ops::Permute{.x = weights_.view().reshape({n, 1}), .index = assignments, .y = send_weights});
  group_.all_gather(offsets, all);

  // [P, E + 1]: the first row of each expert among those that a rank sends.
  const std::int32_t* const at = all.i32();
  const auto begins = [&](Index p, Index e) -> Index { return at[p * (E_ + 1) + e]; };
  const auto count = [&](Index p, Index e) { return begins(p, e + 1) - begins(p, e); };
  Index R = 0;
  for (Index p = 0; p < P; ++p) R += begins(p, (rank + 1) * here) - begins(p, rank * here);
  rows_ = arena_.take({R, D}, x_.view().dtype());
  row_weights_ = arena_.f32({R, 1});
  // there: rows go from `send_rows` to `rows_`. Otherwise they return.
  const auto travel = [&](bool there) {
    Messages messages;
    const std::pair<View, View> all_buffers[] = {{send_rows, rows_}, {send_weights, row_weights_}};
    const std::span buffers(all_buffers, there ? 2 : 1);
    Index to = 0;
    for (Index j = 0; j < here; ++j)
      for (Index p = 0; p < P; ++p) {
        const Index incoming = count(p, rank * here + j), outgoing = count(rank, p * here + j);
        int tag = static_cast<int>(2 * j);
        for (const auto& [source, target] : buffers) {
          const View own = source.rows(begins(rank, p * here + j), outgoing), received = target.rows(to, incoming);
          if (p == rank)
            std::memcpy(there ? received.bytes() : own.bytes(), there ? own.bytes() : received.bytes(),
                        own.size_bytes());
          else if (there)
            messages.receive(received, static_cast<int>(p), tag), messages.send(own, static_cast<int>(p), tag);
          else
            messages.receive(own, static_cast<int>(p), tag), messages.send(received, static_cast<int>(p), tag);
          ++tag;
        }
        to += incoming;
      }
    messages.finish();
  };
  travel(true);
  if (!back) return;
  if (doubles_) run(device_, ops::Scale{.x = rows_, .factor = 2});
  travel(false);
  run(device_, ops::Unpermute{.x = send_rows, .row_id_map = row_id_map, .y = y_});
}

// Rows and weights of the latest way, valid until the next one takes their memory.
std::vector<std::byte> Trip::found() const {
  std::vector<std::byte> all;
  for (const ConstView x : {ConstView(rows_), ConstView(row_weights_)})
    all.insert(all.end(), x.bytes(), x.bytes() + x.size_bytes());
  return all;
}

void Trip::compare_ways() {
  std::vector<std::vector<std::byte>> rows;
  std::vector<std::vector<float>> sums;
  const Tensor y = device_.tensor(y_.view().shape());
  doubles_ = true;
  for (const Way way : {Way::copied, Way::by_expert}) {
    to_experts(way, false);
    rows.push_back(found());
    run(device_, ops::Fill{.x = y_, .value = 0});
    to_experts(way, true);
    run(device_, ops::Convert{.x = y_, .y = y});
    device_.to_host(y, sums.emplace_back(y.view().elements()).data());
  }
  doubles_ = false;
  if (rows[0] != rows[1]) fail("a message for each expert leaves other rows than an index of what has arrived");
  for (std::size_t i = 0; i < sums[0].size(); ++i)
    if (!(std::abs(sums[0][i] - sums[1][i]) <= 1e-5f * std::abs(sums[0][i])))
      fail("element {} of the sums that return is {}, and {} by a message for each expert", i, sums[0][i], sums[1][i]);
}

Index Trip::sent_rows() {
  if (sent_ >= 0) return sent_;
  const View to_ranks = DispatchCounts(placement_, E_, dispatch_layout_.counts).to_ranks;
  std::vector<std::int32_t> counts(to_ranks.elements());
  device_.to_host(to_ranks, counts.data());
  sent_ = 0;
  for (int r = 0; r < group_.size(); ++r)
    if (r != group_.rank()) sent_ += counts[r * to_ranks.dim(1)];
  return sent_;
}

ConstView Trip::identity(Index n) {
  if (!identity_.view() || identity_.view().elements() < n) {
    std::vector<std::int32_t> rows(n);
    for (Index i = 0; i < n; ++i) rows[i] = static_cast<std::int32_t>(i);
    identity_ = device_.tensor({n, 1}, DType::i32);
    device_.to_device(rows.data(), identity_);
  }
  return identity_.view().rows(0, n);
}

}  // namespace sy::bench
