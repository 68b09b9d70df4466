#include "dist/comm_mpi.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "dist/core_sharing.h"
#include "dist/shard.h"
#include "dist/shared_memory_transport.h"
#include "kernels/bf16.h"
#include "kernels/blocked_on.h"

namespace sy {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("{} failed: {}: another rank may have died; its own message says why", what, std::string(text, length));
}

namespace {

// Converts a count to MPI-3's int. Every count passes here.
int narrow(Index n) {
  SY_ASSERT(n >= 0 && n <= std::numeric_limits<int>::max(), "{} elements in one MPI message", n);
  return static_cast<int>(n);
}

// sum = the element-wise reduction of the ranks' values in rank order.
// Accumulates in Sum, and rounds once.
// ranks: [n] of each rank; sum: [n], may be one of them.
template <class T, class Sum = T>
void reduce_as(Reduce op, std::span<const std::byte* const> ranks, Index n, std::byte* sum) {
  constexpr Index block_size = 4096 / sizeof(Sum);  // elements of a block that stays in L1
  alignas(64) Sum block[block_size];
  for (Index at = 0; at < n; at += block_size) {
    const Index count = std::min(n - at, block_size);
    const auto of = [at](const std::byte* rank) { return reinterpret_cast<const T*>(rank) + at; };
    std::copy_n(of(ranks[0]), count, block);
    for (const std::byte* const rank : ranks.subspan(1)) {
      const T* const x = of(rank);
      if (op == Reduce::sum)
        for (Index i = 0; i < count; ++i) block[i] += x[i];
      else
        for (Index i = 0; i < count; ++i) block[i] = std::max<Sum>(block[i], x[i]);
    }
    std::copy_n(block, count, reinterpret_cast<T*>(sum) + at);
  }
}

void reduce_in_rank_order(DType dtype, Reduce op, std::span<const std::byte* const> ranks, Index n, std::byte* sum) {
  switch (dtype) {
    case DType::f32:
      return reduce_as<float>(op, ranks, n, sum);
    case DType::bf16:
      return reduce_as<Bf16, float>(op, ranks, n, sum);
    case DType::f64:
      return reduce_as<double>(op, ranks, n, sum);
    case DType::i32:
      return reduce_as<std::int32_t>(op, ranks, n, sum);
    case DType::i64:
      return reduce_as<std::int64_t>(op, ranks, n, sum);
    default:
      SY_ASSERT(false, "no reduction of {}", info(dtype).name);
  }
}

class CommMpi final : public Comm {
 public:
  CommMpi(std::shared_ptr<RankContext> context, MPI_Comm comm, bool owned,
          std::shared_ptr<SharedMemoryTransport> transport)
      : Comm(std::move(context)), comm_(comm), owned_(owned), transport_(std::move(transport)) {
    MPI_Comm_size(comm_, &size_);
    MPI_Comm_rank(comm_, &rank_);
    find_nodes();
    peer_names_ = format_peer_names();
  }
  ~CommMpi() override {
    if (owned_) MPI_Comm_free(&comm_);
  }

  int size() const override { return size_; }
  int rank() const override { return rank_; }

  const char* peer_names() const override { return peer_names_; }

  bool host_all_gather(std::span<const Index> mine, std::span<Index> all) override {
    const int bytes = narrow(static_cast<Index>(mine.size_bytes()));
    check(MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_), "MPI_Allgather");
    return true;
  }

 private:
  // check_mpi(), and publishes progress to the watchdog. Call it after the MPI call has returned.
  void check(int code, const char* what) const {
    rank_context().blocked.progress();
    check_mpi(code, what);
  }
  const char* format_peer_names() const {
    std::vector<int> here(size_), in_world(here.size());
    std::iota(here.begin(), here.end(), 0);
    MPI_Group group, world;
    MPI_Comm_group(comm_, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_translate_ranks(group, size_, here.data(), world, in_world.data());
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    in_world.erase(in_world.begin() + rank_);
    std::sort(in_world.begin(), in_world.end());
    return intern(fmt::format("with rank{} {}", in_world.size() == 1 ? "" : "s", format_rank_list(in_world)));
  }

  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) override {
    MPI_Comm subgroup;
    check(MPI_Comm_split(comm_, color(rank_), rank_, &subgroup), "MPI_Comm_split");
    int size = 0;
    MPI_Comm_size(subgroup, &size);
    if (size == 1) {  // comm_self makes no MPI calls
      MPI_Comm_free(&subgroup);
      return make_comm_self(shared_context());
    }
    MPI_Comm_set_errhandler(subgroup, MPI_ERRORS_RETURN);
    return make_comm_mpi(shared_context(), subgroup, true, transport_);
  }

  void do_barrier() override {
    if (!is_one_node()) return check(MPI_Barrier(comm_), "MPI_Barrier");
    gather(scratch(size_), std::vector<Index>(size_, 1));
  }

  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint) override {
    for (const auto& [x, root] : buffers) broadcast_one(x, root);
    return {};
  }
  void broadcast_one(View x, int root) {
    if (is_one_node()) {
      const SharedMemoryTransport::SendOp send{x.bytes(), x.size_bytes(), window_peers_};
      SharedMemoryTransport::ReceiveOp receive{window_rank_[root], x.bytes(), x.size_bytes()};
      return rank_ == root ? transport_->send_receive({&send, 1}, {}) : transport_->send_receive({}, {&receive, 1});
    }
    for (Index at = 0; at < x.size_bytes(); at += message_bytes)
      check(MPI_Bcast(x.bytes() + at, narrow(std::min(message_bytes, x.size_bytes() - at)), MPI_BYTE, root, comm_),
            "MPI_Bcast");
  }

  void do_all_reduce(View x, Reduce op) override {
    const Index width = size_of(x.dtype()), n = x.elements(), bytes = x.size_bytes();
    const AllReduceAlgorithm algorithm = all_reduce_algorithm(bytes, size_);
    if (algorithm == AllReduceAlgorithm::tree) return reduce_in_tree(x, op);
    if (algorithm == AllReduceAlgorithm::blocks) {
      const Index chunk = all_reduce_chunk(size_) / width;
      for (Index at = 0; at < n; at += chunk)
        reduce_in_blocks(x.dtype(), x.bytes() + at * width, std::min(chunk, n - at), op);
      return;
    }
    if (bytes == 0) return;
    std::byte* const all = scratch(size_ * bytes);
    if (is_one_node()) {
      std::memcpy(all + rank_ * bytes, x.bytes(), bytes);
      gather(all, std::vector<Index>(size_, bytes));
    } else {
      check(MPI_Allgather(x.bytes(), narrow(bytes), MPI_BYTE, all, narrow(bytes), MPI_BYTE, comm_), "MPI_Allgather");
    }
    std::vector<const std::byte*> ranks(size_);
    for (int r = 0; r < size_; ++r) ranks[r] = all + r * bytes;
    reduce_in_rank_order(x.dtype(), op, ranks, n, x.bytes());
  }

  void reduce_in_blocks(DType dtype, std::byte* x, Index n, Reduce op) {
    const Index width = size_of(dtype);
    std::vector<Index> counts;
    for (int r = 0; r < size_; ++r) counts.push_back(block_range(n, size_, r).size());
    const auto begin = [&](int r) { return x + block_range(n, size_, r).begin * width; };
    reduce_blocks(dtype, op, begin, counts, begin(rank_));
    for (Index& bytes : counts) bytes *= width;
    gather(x, counts);
  }

  // Calls from(rank) for each child of this rank in the binomial tree of a root, then to(rank) for
  // its parent. Children come in cyclic order of ranks, which begins with the root. So do all ranks
  // below them.
  template <class From, class To>
  void up_the_tree(int root, From from, To to) {
    const int own = (rank_ - root + size_) % size_;
    const auto rank_at = [&](int position) { return (position + root) % size_; };
    for (int bit = 1; bit < size_; bit *= 2) {
      if (own & bit) return to(rank_at(own - bit));
      if (own + bit < size_) from(rank_at(own + bit));
    }
  }
  void receive_message(int from, void* data, Index bytes) {
    requests_.clear();
    start_receive(from, static_cast<std::byte*>(data), bytes);
    finish_messages();
  }
  void send_message(int to, const void* data, Index bytes) {
    requests_.clear();
    start_send(to, static_cast<const std::byte*>(data), bytes);
    finish_messages();
  }

  void reduce_in_tree(View x, Reduce op) {
    const Index bytes = x.size_bytes();
    up_the_tree(
        0,
        [&](int child) {
          std::byte* const received = scratch(bytes);
          receive_message(child, received, bytes);
          const std::byte* const both[] = {x.bytes(), received};
          reduce_in_rank_order(x.dtype(), op, both, x.elements(), x.bytes());
        },
        [&](int parent) { send_message(parent, x.bytes(), bytes); });
    broadcast_one(x, 0);
  }

  // A message has the texts of a subtree, in the order of the tree: the size of each, and then its
  // bytes.
  std::vector<std::string> do_gather(std::string_view mine, int root) override {
    const Index own = std::ssize(mine);
    std::string texts(reinterpret_cast<const char*>(&own), sizeof own);
    texts += mine;
    up_the_tree(
        root,
        [&](int child) {
          Index bytes = 0;
          receive_message(child, &bytes, sizeof bytes);
          const std::size_t at = texts.size();
          texts.resize(at + static_cast<std::size_t>(bytes));
          receive_message(child, texts.data() + at, bytes);
        },
        [&](int parent) {
          const Index bytes = std::ssize(texts);
          send_message(parent, &bytes, sizeof bytes);
          send_message(parent, texts.data(), bytes);
        });
    std::vector<std::string> all;
    for (std::size_t at = 0; rank_ == root && at < texts.size();) {
      Index bytes = 0;
      std::memcpy(&bytes, texts.data() + at, sizeof bytes);
      at += sizeof bytes;
      all.push_back(texts.substr(at, static_cast<std::size_t>(bytes)));
      at += static_cast<std::size_t>(bytes);
    }
    if (rank_ == root) std::rotate(all.begin(), all.end() - root, all.end());  // rank 0 first
    return all;
  }

  Work do_reduce(std::span<const RootedBuffer> buffers, ComputePoint) override {
    for (const auto& [x, root] : buffers) {
      std::vector<Index> counts(size_);
      counts[root] = x.elements();
      std::byte* const data = x.bytes();
      reduce_blocks(
          DType::f32, Reduce::sum, [&](int) { return data; }, counts, data);
    }
    return {};
  }

  void do_reduce_scatter(ConstView in, View out, View) override {
    if (in.dtype() == DType::f32 && blocks_in_tree(out.size_bytes(), size_)) {
      std::vector<float> sums(in.as<float>(), in.as<float>() + in.elements());
      reduce_in_tree(view_of(sums.data(), {in.elements()}), Reduce::sum);
      std::copy_n(sums.data() + rank_ * out.elements(), out.elements(), out.as<float>());
      return;
    }
    reduce_blocks(
        in.dtype(), Reduce::sum, [&](int r) { return in.bytes() + r * out.size_bytes(); },
        std::vector<Index>(size_, out.elements()), out.bytes());
  }

  void do_all_gather(ConstView in, View out) override {
    std::byte* const mine = out.bytes() + rank_ * in.size_bytes();
    if (in.size_bytes() > 0 && mine != in.bytes()) std::memcpy(mine, in.bytes(), in.size_bytes());
    if (blocks_in_tree(in.size_bytes(), size_) && !is_one_node()) {
      const int bytes = narrow(in.size_bytes());
      return check(MPI_Allgather(MPI_IN_PLACE, bytes, MPI_BYTE, out.bytes(), bytes, MPI_BYTE, comm_), "MPI_Allgather");
    }
    gather(out.bytes(), std::vector<Index>(size_, in.size_bytes()));
  }

  Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    requests_.clear();
    for (const SendReceive& buffer : buffers) start_all_to_all(buffer, send, receive);
    finish_messages();
    return {};
  }

  // Starts the messages to ranks without shared memory; finish_messages() completes them.
  // The rows between window peers have moved on return.
  void start_all_to_all(const SendReceive& buffer, std::span<const Index> send, std::span<const Index> receive) {
    const Index row = row_bytes(buffer.in);
    std::vector<SharedMemoryTransport::SendOp> sends;
    std::vector<SharedMemoryTransport::ReceiveOp> receives;
    std::vector<Index> from(size_), to(size_);
    std::exclusive_scan(send.begin(), send.end(), from.begin(), Index{0});
    std::exclusive_scan(receive.begin(), receive.end(), to.begin(), Index{0});
    const std::byte* const rows = buffer.in.bytes();
    std::byte* const out = buffer.out.bytes();
    for (int i = 1; i < size_; ++i) {
      const int source = (rank_ + size_ - i) % size_, target = (rank_ + i) % size_;
      std::byte* const arrives = out + to[source] * row;
      if (window_rank_[source] < 0)
        start_receive(source, arrives, receive[source] * row);
      else if (receive[source] > 0)
        receives.push_back({window_rank_[source], arrives, receive[source] * row});
      if (window_rank_[target] < 0)
        start_send(target, rows + from[target] * row, send[target] * row);
      else if (send[target] > 0)
        sends.push_back({rows + from[target] * row, send[target] * row, {&window_rank_[target], 1}});
    }
    if (send[rank_] > 0) std::memcpy(out + to[rank_] * row, rows + from[rank_] * row, send[rank_] * row);
    if (!window_peers_.empty()) transport_->send_receive(sends, receives);
  }

  static constexpr Index message_bytes = Index{1} << 30;  // below INT_MAX
  static constexpr Index scratch_bytes = Index{8} << 20;

  // ---- messages ----

  void start_receive(int from, std::byte* data, Index bytes) {
    for (Index at = 0; at < bytes; at += message_bytes)
      check(MPI_Irecv(data + at, narrow(std::min(message_bytes, bytes - at)), MPI_BYTE, from, 0, comm_,
                      &requests_.emplace_back()),
            "MPI_Irecv");
  }
  void start_send(int to, const std::byte* data, Index bytes) {
    for (Index at = 0; at < bytes; at += message_bytes)
      check(MPI_Isend(data + at, narrow(std::min(message_bytes, bytes - at)), MPI_BYTE, to, 0, comm_,
                      &requests_.emplace_back()),
            "MPI_Isend");
  }
  void finish_messages() {
    for (int done = 0; !done;) {
      check_mpi(MPI_Testall(narrow(static_cast<Index>(requests_.size())), requests_.data(), &done, MPI_STATUSES_IGNORE),
                "MPI_Testall");
      if (!done && !core_.yield()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    rank_context().blocked.progress();
    requests_.clear();
  }

  // ---- nodes ----
  // A node is the ranks of this group that share a window, or one rank without a window.

  bool is_one_node() const { return nodes_.size() == 1 && !window_peers_.empty(); }

  void find_nodes() {
    struct RankWindow {
      int window = -1, rank = 0, buffer_bytes = std::numeric_limits<int>::max();
    };
    const RankWindow mine = transport_
                                ? RankWindow{transport_->id(), transport_->rank(), narrow(transport_->buffer_bytes())}
                                : RankWindow{};
    std::vector<RankWindow> all(size_);
    check(MPI_Allgather(&mine, 3, MPI_INT, all.data(), 3, MPI_INT, comm_), "MPI_Allgather");
    window_rank_.assign(size_, -1);
    std::map<int, std::size_t> node_of;  // by window
    for (int r = 0; r < size_; ++r) {
      const RankWindow& other = all[r];
      const auto [node, is_new] = node_of.try_emplace(other.window < 0 ? -1 - r : other.window, nodes_.size());
      if (is_new) nodes_.emplace_back();
      nodes_[node->second].push_back(r);
      smallest_buffer_ = std::min<Index>(smallest_buffer_, other.buffer_bytes);
      if (r == rank_)
        node_ = node->second;
      else if (transport_ && other.window == transport_->id())
        window_peers_.push_back(window_rank_[r] = other.rank);
    }
    for (const auto& node : nodes_) largest_node_ = std::max(largest_node_, static_cast<Index>(node.size()));
    // One rank of this node receives the block of a rank of another node: round-robin.
    const std::vector<int>& here = nodes_[node_];
    forwarded_.resize(here.size());
    for (std::size_t i = 0; i < here.size(); ++i) forwarded_[i].push_back(here[i]);
    for (const auto& node : nodes_)
      for (std::size_t i = 0; &node != &here && i < node.size(); ++i) forwarded_[i % here.size()].push_back(node[i]);
    node_rank_ = static_cast<std::size_t>(std::find(here.begin(), here.end(), rank_) - here.begin());
  }

  // All-gather of bytes[r] bytes of each rank r into `all`, in rank order.
  // `all` must hold this rank's block already. A block goes once to each other node. Its receiver
  // shares it with the window peers.
  void gather(std::byte* all, std::span<const Index> bytes) {
    std::vector<Index> begin(size_);
    std::exclusive_scan(bytes.begin(), bytes.end(), begin.begin(), Index{0});
    requests_.clear();
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
      const std::vector<int>& node = nodes_[(node_ + i) % nodes_.size()];
      start_send(node[node_rank_ % node.size()], all + begin[rank_], bytes[rank_]);
    }
    for (std::size_t i = 1; i < forwarded_[node_rank_].size(); ++i)
      start_receive(forwarded_[node_rank_][i], all + begin[forwarded_[node_rank_][i]],
                    bytes[forwarded_[node_rank_][i]]);
    if (window_peers_.empty()) return finish_messages();
    // Round 0 shares the ranks' own blocks, round k the k-th block from another node.
    std::size_t rounds = 0;
    for (const auto& share : forwarded_) rounds = std::max(rounds, share.size());
    std::vector<SharedMemoryTransport::SendOp> sends;
    std::vector<SharedMemoryTransport::ReceiveOp> receives;
    for (std::size_t k = 0; k < rounds; ++k) {
      if (k == 1) finish_messages();
      sends.clear();
      receives.clear();
      for (std::size_t i = 0; i < forwarded_.size(); ++i) {
        const std::size_t member = (node_rank_ + i) % forwarded_.size();
        if (k >= forwarded_[member].size()) continue;
        const int r = forwarded_[member][k];
        if (bytes[r] == 0) continue;
        if (i == 0)
          sends.push_back({all + begin[r], bytes[r], window_peers_});
        else
          receives.push_back({window_rank_[nodes_[node_][member]], all + begin[r], bytes[r]});
      }
      transport_->send_receive(sends, receives);
    }
  }

  // Reduce-scatter: sum = the reduction, in rank order, of all ranks' blocks for this rank.
  // Shapes: sum [counts[rank]]; mine(r) [counts[r]], this rank's block for rank r. mine(rank) may
  // be `sum`. Messages are received into scratch memory. Blocks of window peers are read in the
  // window, in smaller steps.
  template <class Mine>
  void reduce_blocks(DType dtype, Reduce op, Mine mine, std::span<const Index> counts, std::byte* sum) {
    const Index width = size_of(dtype), longest = *std::max_element(counts.begin(), counts.end());
    // Elements per step, equal on all ranks.
    const Index by_message = std::max<Index>(1024, scratch_bytes / width / size_);
    const Index by_window = largest_node_ > 1
                                ? SharedMemoryTransport::max_message_bytes(smallest_buffer_, largest_node_) / width
                                : by_message;
    const Index step = is_one_node() ? by_window : by_message;
    std::vector<const std::byte*> ranks(size_);
    for (Index at = 0; at < longest; at += step) {
      const auto bytes = [&](int r) { return std::clamp<Index>(counts[r] - at, 0, step) * width; };
      std::byte* const received = scratch(is_one_node() ? 0 : size_ * bytes(rank_));
      requests_.clear();
      for (int i = 1; i < size_; ++i) {
        const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
        if (window_rank_[from] < 0) start_receive(from, received + from * bytes(rank_), bytes(rank_));
        if (window_rank_[to] < 0) start_send(to, mine(to) + at * width, bytes(to));
      }
      for (Index in = 0; in < std::min(step, longest - at); in += by_window) {
        const Index begin = in * width;
        const auto step_bytes = [&](int r) { return std::clamp<Index>(bytes(r) - begin, 0, by_window * width); };
        if (!window_peers_.empty()) transport_->next_buffer();
        for (int i = 1; i < size_; ++i)
          if (const int to = (rank_ + i) % size_; window_rank_[to] >= 0 && step_bytes(to) > 0)
            transport_->send(window_rank_[to], transport_->write(mine(to) + at * width + begin, step_bytes(to)),
                             step_bytes(to));
        finish_messages();
        if (step_bytes(rank_) == 0) continue;
        for (int r = 0; r < size_; ++r)
          ranks[r] = r == rank_             ? mine(r) + at * width + begin
                     : window_rank_[r] >= 0 ? transport_->receive(window_rank_[r]).data()
                                            : received + r * bytes(rank_) + begin;
        reduce_in_rank_order(dtype, op, ranks, step_bytes(rank_) / width, sum + at * width + begin);
        for (const int peer : window_peers_) transport_->acknowledge(peer);
      }
    }
  }

  // Returns memory that is valid until the next call.
  std::byte* scratch(Index bytes) {
    if (static_cast<Index>(scratch_.size()) < bytes) scratch_.resize(bytes);
    return scratch_.data();
  }

  MPI_Comm comm_;
  bool owned_;
  int size_ = 1, rank_ = 0;
  const char* peer_names_;
  std::vector<std::byte> scratch_;
  CoreSharing core_;
  std::vector<MPI_Request> requests_;
  std::shared_ptr<SharedMemoryTransport> transport_;
  std::vector<int> window_rank_;   // [size] rank in the window of each rank; -1: itself, or no peer
  std::vector<int> window_peers_;  // ranks in the window of all window peers in this group
  // Bytes of the smallest buffer of the windows of all ranks.
  Index smallest_buffer_ = std::numeric_limits<int>::max();
  std::vector<std::vector<int>> nodes_;   // ranks of each node
  std::size_t node_ = 0, node_rank_ = 0;  // node of this rank, and its index within the node
  // For each rank of this node: the ranks whose blocks it shares in gather(), its own first.
  std::vector<std::vector<int>> forwarded_;
  Index largest_node_ = 1;  // ranks
};

}  // namespace

std::unique_ptr<Comm> make_comm_mpi(std::shared_ptr<RankContext> context, MPI_Comm comm, bool owned,
                                    std::shared_ptr<SharedMemoryTransport> transport) {
  return std::make_unique<CommMpi>(std::move(context), comm, owned, std::move(transport));
}

}  // namespace sy
