#include "dist/comm.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "dist/fingerprints.h"
#include "dist/phase.h"
#include "dist/shard.h"

namespace sy {
namespace {

// Counts a collective and its time, and publishes the wait, until the end of the scope.
// bytes: sent by this rank to other ranks. No-op in a group of one rank.
class CollectiveScope {
 public:
  CollectiveScope(const Comm& comm, std::array<Traffic, num_collectives>& traffic, Collective kind, Index bytes,
                  RowsMoved rows = {})
      : rank_(comm.rank_context()),
        traffic_(comm.size() > 1 ? &traffic[static_cast<int>(kind)] : nullptr),
        bytes_(bytes),
        started_(Clock::now()) {
    if (!traffic_) return;
    block_.emplace(comm.rank_context().blocked, display_name(kind), comm.peer_names(), rows, comm.asynchronous());
    if (comm.rank_context().trace_spans)
      span_.emplace(comm.rank_context(), name_of(kind).data(),
                    TraceScope::Numbers{{"bytes", bytes}, {"ranks", comm.size()}});
  }
  ~CollectiveScope() {
    if (!traffic_) return;
    ++traffic_->calls;
    traffic_->bytes += bytes_;
    const Clock::duration time = Clock::now() - started_;
    traffic_->seconds += std::chrono::duration<double>(time).count();
    if (rank_.step_times) rank_.step_times->add_collective(time);
  }

 private:
  using Clock = std::chrono::steady_clock;
  RankContext& rank_;
  Traffic* traffic_;
  Index bytes_;
  Clock::time_point started_;
  std::optional<ScopedBlock> block_;
  std::optional<TraceScope> span_;
};

bool fingerprints_enabled(const Comm& comm) {
  return comm.rank_context().fingerprints.enabled && comm.size() > 1;
}

// "a reduce of 8 bytes to the group's rank 0, of 4 bytes to the group's rank 1"
std::string describe_rooted(Collective kind, const char* direction, std::span<const RootedBuffer> buffers) {
  std::string text;
  for (const auto& [x, root] : buffers)
    text += fmt::format("{} of {} bytes {} the group's rank {}", text.empty() ? display_name(kind) : ",",
                        x.size_bytes(), direction, root);
  return text;
}

}  // namespace

const char* display_name(Collective kind) {
  constexpr const char* names[num_collectives] = {"a broadcast",   "an all-reduce", "a reduce", "a reduce-scatter",
                                                  "an all-gather", "an all-to-all", "a gather"};
  return names[static_cast<int>(kind)];
}
std::string_view name_of(Collective kind) {
  const std::string_view name = display_name(kind);
  return name.substr(name.find(' ') + 1);
}

std::vector<std::string> all_gather_texts(Comm& world, const std::string& mine) {
  const Index length = world.max(static_cast<Index>(mine.size()) + 1);
  if (length == 1) return std::vector<std::string>(static_cast<std::size_t>(world.size()));
  std::string padded = mine, all(static_cast<std::size_t>(length * world.size()), '\0');
  padded.resize(static_cast<std::size_t>(length), '\0');
  const auto view = [](std::string& s) {
    return view_of(reinterpret_cast<std::uint8_t*>(s.data()), {static_cast<Index>(s.size())});
  };
  world.all_gather(view(padded), view(all));
  std::vector<std::string> texts;
  for (int rank = 0; rank < world.size(); ++rank) texts.emplace_back(all.c_str() + rank * length);
  return texts;
}

std::string format_rank_list(const std::vector<int>& ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ascending[i]);
    if (last > i) text += fmt::format("{}{}", last == i + 1 ? ", " : "-", ascending[last]);
    i = last + 1;
  }
  return text;
}

// The set is never freed: another thread may read a text while the process ends.
const char* intern(const std::string& text) {
  static auto* const texts = new std::set<std::string>;
  return texts->insert(text).first->c_str();
}

void Work::wait() {
  if (comm_) std::exchange(comm_, nullptr)->wait_for(slot_);
}

// A later collective of the communicator ends after this one.
void Work::join(Work later) {
  if (!later.comm_) return;
  SY_ASSERT(!comm_ || comm_ == later.comm_, "work of two communicators");
  *this = std::move(later);
}

std::unique_ptr<Comm> Comm::split(const std::function<int(int)>& color) {
  const ScopedBlock block(context_->blocked, "a split into groups", peer_names());
  if (fingerprints_enabled(*this)) check_fingerprints(*this, "a split into groups");
  return do_split(color);
}

void Comm::barrier() {
  const ScopedBlock block(context_->blocked, "a barrier", peer_names());
  if (fingerprints_enabled(*this)) check_fingerprints(*this, "a barrier");
  do_barrier();
}

void Comm::broadcast(View x, int root) {
  const RootedBuffer buffer{x, root};
  start_broadcast({&buffer, 1}).wait();
}

Work Comm::start_broadcast(std::span<const RootedBuffer> buffers, ComputePoint after) {
  if (buffers.empty()) return {};
  Index sent = 0;
  for (const auto& [x, root] : buffers) sent += rank() == root ? x.size_bytes() * (size() - 1) : 0;
  const CollectiveScope scope(*this, traffic_, Collective::broadcast, sent);
  if (fingerprints_enabled(*this)) check_fingerprints(*this, describe_rooted(Collective::broadcast, "from", buffers));
  return do_broadcast(buffers, after);
}

namespace {
constexpr Index least_block = Index{1} << 10;  // bytes of a block that is not small
}  // namespace

bool blocks_in_tree(Index block_bytes, int size) {
  return size > small_group && block_bytes < least_block;
}

Index all_reduce_chunk(int size) {
  return std::max(Index{8} << 20, size * least_block);
}

AllReduceAlgorithm all_reduce_algorithm(Index bytes, int size) {
  constexpr Index all_eager_buffers = Index{1} << 20;
  if (bytes <= all_reduce_eager_limit && bytes * size <= all_eager_buffers) return AllReduceAlgorithm::eager;
  return blocks_in_tree(bytes / size, size) ? AllReduceAlgorithm::tree : AllReduceAlgorithm::blocks;
}

Index all_reduce_bytes(Index bytes, Index width, int size, int rank) {
  const AllReduceAlgorithm algorithm = all_reduce_algorithm(bytes, size);
  if (algorithm == AllReduceAlgorithm::eager) return bytes * (size - 1);
  if (algorithm == AllReduceAlgorithm::tree) return rank == 0 ? bytes * (size - 1) : bytes;
  Index sent = 0;
  const Index chunk = all_reduce_chunk(size);
  for (Index at = 0; at < bytes; at += chunk) {
    const Index block = std::min(chunk, bytes - at), own = block_range(block / width, size, rank).size() * width;
    sent += block - own + own * (size - 1);
  }
  return sent;
}

void Comm::all_reduce(View x, Reduce op) {
  const CollectiveScope scope(*this, traffic_, Collective::all_reduce,
                              all_reduce_bytes(x.size_bytes(), size_of(x.dtype()), size(), rank()));
  if (fingerprints_enabled(*this))
    check_fingerprints(*this, fmt::format("an all-reduce of {} bytes, the {} of {}", x.size_bytes(),
                                          op == Reduce::sum ? "sum" : "maximum", info(x.dtype()).name));
  do_all_reduce(x, op);
}

Work Comm::start_reduce(std::span<const RootedBuffer> buffers, ComputePoint after) {
  if (buffers.empty()) return {};
  Index sent = 0;
  for (const auto& [x, root] : buffers) sent += rank() == root ? 0 : x.size_bytes();
  const CollectiveScope scope(*this, traffic_, Collective::reduce, sent);
  if (fingerprints_enabled(*this)) check_fingerprints(*this, describe_rooted(Collective::reduce, "to", buffers));
  return do_reduce(buffers, after);
}

void Comm::reduce_scatter(ConstView in, View out, View scratch) {
  SY_ASSERT(in.elements() == out.elements() * size() && in.dtype() == out.dtype(), "reduce_scatter of {} into {}",
            in.shape().str(), out.shape().str());
  SY_ASSERT(!reduces_in_scratch(in.dtype()) || scratch.size_bytes() == in.size_bytes(),
            "reduce_scatter of {} bytes of {} with {} bytes of scratch memory", in.size_bytes(), info(in.dtype()).name,
            scratch.size_bytes());
  const CollectiveScope scope(*this, traffic_, Collective::reduce_scatter, out.size_bytes() * (size() - 1));
  if (fingerprints_enabled(*this))
    check_fingerprints(*this,
                       fmt::format("a reduce-scatter of {} bytes of {}", in.size_bytes(), info(in.dtype()).name));
  do_reduce_scatter(in, out, scratch);
}

void Comm::all_gather(ConstView in, View out) {
  SY_ASSERT(out.size_bytes() == in.size_bytes() * size(), "all_gather of {} into {}", in.shape().str(),
            out.shape().str());
  const CollectiveScope scope(*this, traffic_, Collective::all_gather, in.size_bytes() * (size() - 1));
  if (fingerprints_enabled(*this))
    check_fingerprints(*this, fmt::format("an all-gather of {} bytes from each", in.size_bytes()));
  do_all_gather(in, out);
}

std::vector<std::string> Comm::gather(std::string_view mine, int root) {
  SY_ASSERT(root >= 0 && root < size(), "a gather to rank {} of {}", root, size());
  const CollectiveScope scope(*this, traffic_, Collective::gather, rank() == root ? 0 : std::ssize(mine));
  if (fingerprints_enabled(*this)) check_fingerprints(*this, fmt::format("a gather to the group's rank {}", root));
  return do_gather(mine, root);
}

void Comm::all_to_all(ConstView in, View out) {
  SY_ASSERT(in.elements() == out.elements() && in.dtype() == out.dtype() && in.elements() % size() == 0,
            "all_to_all of {} into {} on {} ranks", in.shape().str(), out.shape().str(), size());
  const CollectiveScope scope(*this, traffic_, Collective::all_to_all, in.size_bytes() / size() * (size() - 1));
  if (fingerprints_enabled(*this))
    check_fingerprints(*this, fmt::format("an all-to-all of {} bytes to each", in.size_bytes() / size()));
  do_all_to_all(in, out);
}

void Comm::do_all_to_all(ConstView in, View out) {
  const Index n = in.elements() / size();
  const SendReceive buffer{in.reshape({in.elements()}), out.reshape({out.elements()})};
  const std::vector<Index> rows(static_cast<std::size_t>(size()), n);
  do_all_to_all_v({&buffer, 1}, rows, rows).wait();
}

void Comm::all_to_all_v(ConstView in, std::span<const Index> send, View out, std::span<const Index> receive) {
  const SendReceive buffer{in, out};
  start_all_to_all_v({&buffer, 1}, send, receive).wait();
}

Work Comm::start_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                              std::span<const Index> receive) {
  Index sent = 0, received = 0, row = 0;
  for (int r = 0; r < size(); ++r) {
    sent += send[r];
    received += receive[r];
  }
  for (const auto& [in, out] : buffers) {
    const Index bytes = row_bytes(in);
    SY_ASSERT(bytes == row_bytes(out), "rows of {} into {}", in.shape().str(), out.shape().str());
    SY_ASSERT(sent == in.dim(0) && received == out.dim(0) && send[rank()] == receive[rank()],
              "{} rows to send of {}, {} to receive of {}", sent, in.dim(0), received, out.dim(0));
    row += bytes;
  }
  const Index own = send[rank()];
  const CollectiveScope scope(*this, traffic_, Collective::all_to_all, (sent - own) * row,
                              {sent - own, received - own});
  if (fingerprints_enabled(*this))
    check_fingerprints(*this, fmt::format("an all-to-all of rows of {} bytes", row), send, receive);
  return do_all_to_all_v(buffers, send, receive);
}

double Comm::sum(double x) {
  all_reduce(view_of(&x, {1}));
  return x;
}

Index Comm::max(Index x) {
  all_reduce(view_of(&x, {1}), Reduce::max);
  return x;
}

}  // namespace sy
