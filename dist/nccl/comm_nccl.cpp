// Collectives over NCCL, on buffers of the cuda device.
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <map>
#include <numeric>

#include "dist/device_comm.h"
#include "dist/watchdog.h"
#include "kernels/cuda/context.h"
#include "kernels/environment.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/heads.h"

namespace sy {
namespace {

using cuda::check;
using cuda::make_event;
using cuda::Owned;

class CommNccl;

int loaded_version() {
  int version = 0;
  ncclGetVersion(&version);
  return version;
}

// Returns the number of streams for collectives.
// It is 1 before NCCL 2.26, whose communicators may deadlock if two are in use at once.
// It is also 1 if the user sets NCCL_LAUNCH_ORDER_IMPLICIT = 0.
//
// NCCL_LAUNCH_ORDER_IMPLICIT exists since NCCL 2.26 (22600 in ncclGetVersion). Older versions
// ignore it silently. The NCCL user guide has it in "Environment variables". Its section "Using
// multiple NCCL communicators concurrently" requires one order on all ranks.
// set_library_defaults() sets the variable if the user has not.
int num_streams() {
  const char* const setting = environment("NCCL_LAUNCH_ORDER_IMPLICIT");
  const bool in_order = loaded_version() >= 22600 && (!setting || std::strtol(setting, nullptr, 0) != 0);
  return in_order ? num_comm_streams : 1;
}

std::string version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

// Limit of the channels of a communicator, and of the channels between two ranks.
// Each channel has buffers in device memory for each connection. NCCL would open up to 64 and 32
// channels, which can take 3 GB for eight ranks (NCCL issue 1685).
// The user can override the limit by NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS and NCCL_MAX_P2P_NCHANNELS.
// The value was chosen without a GPU.
constexpr int max_channels = 16;

void check_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  if (result == ncclSuccess) return;
  const std::string detail = ncclGetLastError(comm);
  fail("NCCL failed in {}: {}{}{}: see NCCL's own messages with NCCL_DEBUG=WARN; each rank needs a GPU of its own",
       what, ncclGetErrorString(result), detail.empty() ? "" : ": ", detail);
}

// NCCL's communicator of a group of ranks. Communicators of equal groups share it.
using Connection = std::shared_ptr<std::remove_pointer_t<ncclComm_t>>;

Connection own(ncclComm_t comm) {
  // Destroying waits for peers and for collectives in flight. After an error it may never return;
  // the process is about to end.
  return {comm, [](ncclComm_t c) {
            if (std::uncaught_exceptions() == 0) ncclCommDestroy(c);
          }};
}

ncclConfig_t connection_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (!environment("NCCL_MAX_CTAS") && !environment("NCCL_MAX_NCHANNELS")) config.maxCTAs = max_channels;
  return config;
}

// Connects the ranks of `host`, by an id that its rank 0 makes. Collective over `host`.
Connection connect_by_id(Comm& host) {
  ncclUniqueId id{};
  if (host.rank() == 0) check_nccl(ncclGetUniqueId(&id), nullptr, "making an id");
  host.broadcast(view_of(reinterpret_cast<std::uint8_t*>(&id), {static_cast<Index>(sizeof id)}), 0);
  ncclComm_t made = nullptr;
  ncclConfig_t config = connection_config();
  check_nccl(ncclCommInitRankConfig(&made, host.size(), id, host.rank(), &config), nullptr, "joining");
  return own(made);
}

// Connects the ranks of `parent` with equal colors, in the order of `key`. Collective over
// `parent`.
Connection split_connection(ncclComm_t parent, int color, int key) {
  ncclComm_t made = nullptr;
  ncclConfig_t config = connection_config();
  check_nccl(ncclCommSplit(parent, color, key, &made, &config), parent, "splitting");
  return own(made);
}

// State that the communicators of one device share.
struct SharedState {
  Device& device;
  cuda::Context& context;
  int rank;
  RankContext& rank_context;
  const bool one_stream = num_streams() == 1;
  std::array<Owned<cudaStream_t>, num_comm_streams> streams;
  std::vector<CommNccl*> members;
  // The connection of the first group, which has all ranks.
  Connection::weak_type of_all;
  // Connections by peers (Comm::peer_names) and stream.
  std::map<std::pair<std::string_view, CommStream>, Connection::weak_type> connections;

  SharedState(Device& d, int r, RankContext& c) : device(d), context(cuda::context_of(d)), rank(r), rank_context(c) {
    int lowest = 0, highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    // Other ranks wait for the collectives.
    for (Owned<cudaStream_t>& stream : streams) stream = cuda::make_stream(highest);
  }
  ~SharedState() { context.stream.wait_hook = {}; }
  // Polls the communicators while the host waits for the device,
  // and publishes the oldest collective.
  // Throws Failure if a communicator has failed. No communicator is aborted: an abort may wait for
  // peers, and the process is about to end (abort_job_on_error).
  void poll();
  void check_errors() const;
  // Returns the connection of the ranks of `host`, shared with communicators of the same ranks and
  // stream: collectives of one connection run one after the other. Collective over all ranks.
  Connection connect(Comm& host, CommStream stream);
  Index started = 0;           // number of collectives started on all communicators
  Index oldest_published = 0;  // number of the oldest collective in flight at the latest poll()
};

// A collective in flight.
struct InFlight {
  Owned<cudaEvent_t> ended = make_event();
  Collective kind{};
  RowsMoved rows;
  Phase phase;
  Index number = 0;  // among all collectives, from 1
};

ncclDataType_t type_of(DType type) {
  switch (type) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    default:
      SY_ASSERT(false, "no reduction of {}", info(type).name);
  }
}

class CommNccl final : public Comm {
 public:
  // connection: of the ranks of `host`; nullptr if there is one
  CommNccl(std::shared_ptr<SharedState> shared, std::unique_ptr<Comm> host, CommStream stream, Connection connection)
      : Comm(host->shared_context()),
        shared_(std::move(shared)),
        host_(std::move(host)),
        kind_(stream),
        connection_(std::move(connection)),
        nccl_(connection_.get()) {
    if (nccl_) shared_->members.push_back(this);
  }
  ~CommNccl() override { std::erase(shared_->members, this); }

  int size() const override { return host_->size(); }
  int rank() const override { return host_->rank(); }
  const char* peer_names() const override { return host_->peer_names(); }
  bool host_all_gather(std::span<const Index> mine, std::span<Index> all) override {
    return host_->host_all_gather(mine, all);
  }

  bool asynchronous() const override { return size() > 1; }
  ComputePoint compute_point() override {
    if (!asynchronous()) return {};
    const cuda::EnqueueScope enqueue_scope(shared_->context.stream.blocked());
    const ComputePoint point{next_point_};
    next_point_ = (next_point_ + 1) % points_.size();
    check(cudaEventRecord(points_[point.slot].passed.get(), shared_->context.stream.end_capture()), "cudaEventRecord");
    return point;
  }

  // Returns the asynchronous error of NCCL; ncclSuccess if there is none.
  ncclResult_t state() const {
    ncclResult_t result = ncclSuccess;
    return ncclCommGetAsyncError(nccl_, &result) == ncclSuccess ? result : ncclSystemError;
  }
  // Returns the oldest collective in flight; nullptr if there is none.
  const InFlight* oldest_in_flight() const {
    for (std::size_t i = 0; i < in_flight_.size(); ++i) {
      const InFlight& s = in_flight_[(next_ + i) % in_flight_.size()];
      if (cudaEventQuery(s.ended.get()) != cudaErrorNotReady) continue;
      cudaGetLastError();  // clears cudaErrorNotReady
      return &s;
    }
    return nullptr;
  }
  std::string describe(const InFlight* s) const {
    if (!s) return "NCCL";
    return fmt::format("{} of rank {} {}{}", name_of(s->kind), shared_->rank, peer_names(), s->phase.describe());
  }
  void publish(const InFlight& s) const {
    rank_context().device_collective.write({display_name(s.kind), peer_names(), s.rows, s.phase});
  }

 private:
  // If the slot has a later collective by now, that one ends after the one that is waited for.
  void wait_for(std::size_t slot) override {
    const cuda::EnqueueScope enqueue_scope(shared_->context.stream.blocked());
    check(cudaStreamWaitEvent(shared_->context.stream.end_capture(), in_flight_[slot].ended.get(), 0),
          "cudaStreamWaitEvent");
  }

  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) override {
    std::unique_ptr<Comm> host = host_->split(color);
    if (size() == 1) return std::make_unique<CommNccl>(shared_, std::move(host), kind_, nullptr);
    const ScopedBlock block(rank_context().blocked, "NCCL to connect", peer_names());
    Connection connection = split_connection(nccl_, color(rank()), rank());
    if (host->size() == 1) connection.reset();
    return std::make_unique<CommNccl>(shared_, std::move(host), kind_, std::move(connection));
  }
  void do_barrier() override {
    shared_->device.synchronize();
    host_->barrier();
  }
  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint after) override {
    return launch_rooted(Collective::broadcast, buffers, after, [&](View x, int root, cudaStream_t on) {
      return ncclBroadcast(x.bytes(), x.bytes(), x.size_bytes(), ncclUint8, root, nccl_, on);
    });
  }
  void do_all_reduce(View x, Reduce op) override {
    launch(Collective::all_reduce, x.elements(), {}, compute_point(), [&](cudaStream_t on) {
      return ncclAllReduce(x.bytes(), x.bytes(), x.elements(), type_of(x.dtype()),
                           op == Reduce::sum ? ncclSum : ncclMax, nccl_, on);
    }).wait();
  }
  Work do_reduce(std::span<const RootedBuffer> buffers, ComputePoint after) override {
    return launch_rooted(Collective::reduce, buffers, after, [&](View x, int root, cudaStream_t on) {
      return ncclReduce(x.bytes(), x.bytes(), x.elements(), type_of(x.dtype()), ncclSum, root, nccl_, on);
    });
  }
  void do_reduce_scatter(ConstView in, View out, View scratch) override {
    if (size() == 1) return copy(in, out);
    if (reduces_in_scratch(in.dtype())) return gather_and_sum(in, out, scratch);
    launch(Collective::reduce_scatter, out.elements(), {}, compute_point(), [&](cudaStream_t on) {
      return ncclReduceScatter(in.bytes(), out.bytes(), out.elements(), type_of(in.dtype()), ncclSum, nccl_, on);
    }).wait();
  }
  void do_all_gather(ConstView in, View out) override {
    if (size() == 1) return copy(in, out);
    launch(Collective::all_gather, in.elements(), {}, compute_point(), [&](cudaStream_t on) {
      return ncclAllGather(in.bytes(), out.bytes(), in.size_bytes(), ncclUint8, nccl_, on);
    }).wait();
  }
  Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    if (size() == 1) {
      for (const auto& [in, out] : buffers) copy(in, out);
      return {};
    }
    Index row = 0;
    for (const SendReceive& buffer : buffers) row += row_bytes(buffer.in);
    const auto rows_of_peers = [&](std::span<const Index> rows) {
      return std::accumulate(rows.begin(), rows.end(), Index{0}) - rows[rank()];
    };
    const RowsMoved rows{rows_of_peers(send), rows_of_peers(receive)};
    return launch(Collective::all_to_all, row, rows, compute_point(),
                  [&](cudaStream_t on) { return send_and_receive(buffers, send, receive, on); });
  }

  // Sends send[r] rows of each buffer to rank r, and receives receive[r] rows from it.
  ncclResult_t send_and_receive(std::span<const SendReceive> buffers, std::span<const Index> send,
                                std::span<const Index> receive, cudaStream_t on) const {
    return in_one_group([&](auto add) {
      for (const auto& [in, out] : buffers) {
        const std::byte* from = in.bytes();
        std::byte* to = out.bytes();
        for (int peer = 0; peer < size(); ++peer) {
          const Index send_bytes = send[peer] * row_bytes(in), receive_bytes = receive[peer] * row_bytes(in);
          if (peer == rank()) {
            if (send_bytes > 0 && from != to)
              check(cudaMemcpyAsync(to, from, send_bytes, cudaMemcpyDeviceToDevice, on), "cudaMemcpyAsync");
          } else {
            if (send_bytes > 0) add(ncclSend(from, send_bytes, ncclUint8, peer, nccl_, on));
            if (receive_bytes > 0) add(ncclRecv(to, receive_bytes, ncclUint8, peer, nccl_, on));
          }
          from += send_bytes;
          to += receive_bytes;
        }
      }
    });
  }
  // Sends block r of `in` to each rank r, and receives a block of equal size from it.
  void exchange_blocks(Collective kind, ConstView in, View out) {
    const SendReceive buffer{in.reshape({in.elements()}), out.reshape({in.elements()})};
    const std::vector<Index> rows(size(), in.elements() / size());
    launch(kind, in.elements(), {}, compute_point(), [&](cudaStream_t on) {
      return send_and_receive({&buffer, 1}, rows, rows, on);
    }).wait();
  }
  std::vector<std::string> do_gather(std::string_view mine, int root) override { return host_->gather(mine, root); }
  void do_all_to_all(ConstView in, View out) override {
    size() == 1 ? copy(in, out) : exchange_blocks(Collective::all_to_all, in, out);
  }
  // Reduce-scatter of bf16: receives this rank's block of all ranks, and sums them in f32. It sends
  // as many bytes as ncclReduceScatter.
  void gather_and_sum(ConstView in, View out, View blocks) {
    exchange_blocks(Collective::reduce_scatter, in, blocks);
    const Index n = out.elements();
    if (n == 0) return;
    const Index width = out.dim(out.shape().size() - 1);
    ConstHeads x(ConstView(blocks).reshape({1, n / width, size(), width}));
    x.token_stride = width;
    x.head_stride = n;
    run(shared_->device, ops::ReduceHeads{.x = x, .y = out.reshape({1, n / width, 1, width})});
  }

  cudaStream_t stream() const {
    return shared_->streams[static_cast<std::size_t>(shared_->one_stream ? CommStream::tokens : kind_)].get();
  }
  // Runs calls(add) as one NCCL group, a single launch. Returns the first error passed to add().
  template <class Calls>
  static ncclResult_t in_one_group(Calls calls) {
    ncclResult_t result = ncclGroupStart();
    const auto add = [&](ncclResult_t r) { result = result == ncclSuccess ? r : result; };
    calls(add);
    add(ncclGroupEnd());
    return result;
  }
  // Runs call(x, root, stream) for each non-empty buffer in one launch.
  template <class Call>
  Work launch_rooted(Collective kind, std::span<const RootedBuffer> buffers, ComputePoint after, Call call) {
    Index elements = 0;
    for (const RootedBuffer& buffer : buffers) elements += buffer.x.elements();
    return launch(kind, elements, {}, after, [&](cudaStream_t on) {
      return in_one_group([&](auto add) {
        for (const auto& [x, root] : buffers)
          if (x.elements() > 0) add(call(x, root, on));
      });
    });
  }
  void copy(ConstView in, View out) const {
    if (in.bytes() != out.bytes() && in.elements() > 0) run(shared_->device, ops::Copy{.x = in, .y = out});
  }
  // Starts a collective on this communicator's stream. It waits for `after`.
  template <class Enqueue>
  Work launch(Collective kind, Index elements, RowsMoved rows, ComputePoint after, Enqueue enqueue) {
    if (size() == 1 || elements == 0) return {};
    // NCCL may allocate memory, which a capture does not allow.
    shared_->context.stream.end_capture();
    const cudaStream_t on = stream();
    check(cudaStreamWaitEvent(on, points_[after.slot].passed.get(), 0), "cudaStreamWaitEvent");
    const std::size_t slot = next_;
    InFlight& s = in_flight_[slot];
    next_ = (next_ + 1) % in_flight_.size();
    s.kind = kind;
    s.rows = rows;
    s.phase = rank_context().phase.current();
    s.number = ++shared_->started;
    publish(s);
    const ncclResult_t result = enqueue(on);
    if (result != ncclSuccess) check_nccl(result, nccl_, describe(&s));
    check(cudaEventRecord(s.ended.get(), on), "cudaEventRecord");
    return Work(*this, slot);
  }
  std::shared_ptr<SharedState> shared_;
  std::unique_ptr<Comm> host_;
  CommStream kind_;
  Connection connection_;
  ncclComm_t nccl_;  // of the connection; nullptr if the group has one rank
  // A ring of compute points: more than are held at a time.
  struct Point {
    Owned<cudaEvent_t> passed = make_event();
  };
  std::array<Point, 8> points_;
  std::size_t next_point_ = 0;
  std::array<InFlight, 32> in_flight_;
  std::size_t next_ = 0;  // index of the oldest entry, to be overwritten next
};

Connection SharedState::connect(Comm& host, CommStream stream) {
  if (host.size() == 1) return nullptr;
  Connection::weak_type& known = connections[{host.peer_names(), stream}];
  if (Connection shared = known.lock()) return shared;
  const ScopedBlock block(rank_context.blocked, "NCCL to connect", host.peer_names());
  const Connection all = of_all.lock();
  Connection made;
  if (all) {
    Index first = rank;  // names the group
    host.broadcast(view_of(&first, {1}), 0);
    made = split_connection(all.get(), static_cast<int>(first), rank);
  } else {
    of_all = made = connect_by_id(host);
  }
  known = made;
  return made;
}

void SharedState::poll() {
  check_errors();
  const CommNccl* member = nullptr;
  const InFlight* oldest = nullptr;
  for (const CommNccl* m : members)
    if (const InFlight* const s = m->oldest_in_flight(); s && (!oldest || s->number < oldest->number))
      member = m, oldest = s;
  const Index number = oldest ? oldest->number : started + 1;
  if (number == std::exchange(oldest_published, number)) return;
  if (member)
    member->publish(*oldest);
  else
    rank_context.device_collective.write({});
  rank_context.blocked.progress();
}

void SharedState::check_errors() const {
  std::vector<CommNccl*> failed;
  std::copy_if(members.begin(), members.end(), std::back_inserter(failed),
               [](const CommNccl* m) { return m->state() != ncclSuccess && m->state() != ncclInProgress; });
  if (failed.empty()) return;
  // A lost rank fails all its communicators.
  // One with a collective in flight gives the best message.
  const auto best = std::find_if(failed.begin(), failed.end(), [](const CommNccl* m) { return m->oldest_in_flight(); });
  const CommNccl& member = best != failed.end() ? **best : *failed.front();
  fail("{} failed: {}: a peer may have died; its own message says why", member.describe(member.oldest_in_flight()),
       ncclGetErrorString(member.state()));
}

MakeDeviceComm make_nccl_comm(Device& device, int rank, RankContext& context) {
  const auto shared = std::make_shared<SharedState>(device, rank, context);
  shared->context.stream.wait_hook = [s = std::weak_ptr(shared)] {
    if (const auto alive = s.lock()) alive->poll();
  };
  return [shared](std::unique_ptr<Comm> host, CommStream stream) {
    Connection connection = shared->connect(*host, stream);
    return std::make_unique<CommNccl>(shared, std::move(host), stream, std::move(connection));
  };
}

}  // namespace

DeviceCollectives nccl_collectives() {
  return {.name = "NCCL",
          .version = version_text(loaded_version()),
          .built_version = version_text(NCCL_VERSION_CODE),
          .streams = num_streams(),
          .all_streams_if = "from NCCL 2.26 on, unless NCCL_LAUNCH_ORDER_IMPLICIT is 0",
          // NCCL treats ranks with different host ids as if they were on different machines.
          .shares_devices = environment("NCCL_HOSTID") != nullptr,
          .make = make_nccl_comm};
}

}  // namespace sy
