#include "tests/simulated/simulated_comm.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "dist/comm_dry.h"

namespace sy::test {
namespace {

Index tree_depth(int size) {
  return std::bit_width(static_cast<unsigned>(size - 1));
}

class SimulatedComm final : public Comm {
 public:
  SimulatedComm(std::shared_ptr<RankContext> context, SimulatedJob& job, int size, int rank)
      : Comm(std::move(context)), job_(job), size_(size), rank_(rank) {}
  int size() const override { return size_; }
  int rank() const override { return rank_; }

 private:
  bool is_world() const { return size_ == job_.ranks; }
  void count(Index messages, Index bytes) {
    GroupCounts& counts = job_.counts[size_];
    ++counts.calls;
    counts.messages += messages;
    counts.bytes += bytes;
  }
  // Gives x of rank 0 to the other ranks.
  void share(std::byte* x, Index bytes) {
    if (!is_world()) return;
    if (rank_ == 0) {
      job_.results.emplace_back(reinterpret_cast<const char*>(x), bytes);
      return;
    }
    SY_ASSERT(job_.next_result < job_.results.size(), "rank {} makes a call that rank 0 has not made", rank_);
    const std::string& result = job_.results[job_.next_result++];
    SY_ASSERT(std::ssize(result) == bytes, "rank {} has {} bytes, and rank 0 had {}", rank_, bytes, result.size());
    std::memcpy(x, result.data(), result.size());
  }

  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) override {
    count(tree_depth(size_), 0);
    const auto [size, rank] = split_rank(color, size_, rank_);
    if (size == 1) return make_comm_self(shared_context());
    return std::make_unique<SimulatedComm>(shared_context(), job_, size, rank);
  }
  void do_barrier() override { count(tree_depth(size_), 0); }
  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint) override {
    for (const auto& [x, root] : buffers) {
      count(tree_depth(size_), x.size_bytes());
      share(x.bytes(), x.size_bytes());
    }
    return {};
  }
  void do_all_reduce(View x, Reduce op) override {
    const Index bytes = x.size_bytes();
    const bool in_blocks = all_reduce_algorithm(bytes, size_) == AllReduceAlgorithm::blocks;
    const Index blocks = ceil_div(bytes, all_reduce_chunk(size_));
    count(in_blocks ? 2 * blocks * (size_ - 1) : 2 * tree_depth(size_),
          in_blocks ? all_reduce_bytes(bytes, size_of(x.dtype()), size_, rank_)
          : all_reduce_algorithm(bytes, size_) == AllReduceAlgorithm::eager ? bytes * (size_ - 1)
                                                                            : 2 * bytes * tree_depth(size_));
    if (is_world() && rank_ == 0 && op == Reduce::sum) job_.summed(x);
    share(x.bytes(), bytes);
  }
  Work do_reduce(std::span<const RootedBuffer> buffers, ComputePoint) override {
    for (const auto& [x, root] : buffers)
      count(root == rank_ ? size_ - 1 : 1, x.size_bytes() * (root == rank_ ? size_ - 1 : 1));
    return {};
  }
  void count_blocks(Index block_bytes) {
    count(blocks_in_tree(block_bytes, size_) ? 2 * tree_depth(size_) : size_ - 1, block_bytes * (size_ - 1));
  }
  void do_reduce_scatter(ConstView in, View out, View) override {
    count_blocks(out.size_bytes());
    std::memmove(out.bytes(), in.bytes() + rank_ * out.size_bytes(), out.size_bytes());
  }
  void do_all_gather(ConstView in, View out) override {
    const Index bytes = in.size_bytes();
    count_blocks(bytes);
    const std::vector<std::byte> mine(in.bytes(), in.bytes() + bytes);
    for (int r = 0; r < size_; ++r) std::copy(mine.begin(), mine.end(), out.bytes() + r * bytes);
    // A row of a few numbers begins with a number of the machine.
    const Index n = in.elements();
    if (!is_world() || out.dtype() != DType::i64 || n > 12) return;
    const auto machine = [&](int r) { return r / job_.ranks_per_machine; };
    for (int r = 0; r < size_; ++r) out.i64()[r * n] += machine(r) - machine(rank_);
  }
  bool host_all_gather(std::span<const Index> mine, std::span<Index> all) override {
    if (size_ == 1) return false;
    count_blocks(static_cast<Index>(mine.size_bytes()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = mine[i % mine.size()];
    return true;
  }
  std::vector<std::string> do_gather(std::string_view mine, int root) override {
    count(2 * tree_depth(size_), rank_ == root ? 0 : std::ssize(mine));
    if (rank_ != root) return {};
    std::vector<std::string> all = job_.gathered(mine, root);
    Index bytes = 0;
    for (const std::string& text : all) bytes += std::ssize(text);
    GroupCounts& counts = job_.counts[size_];
    counts.bytes += bytes;
    counts.gathered = std::max(counts.gathered, bytes);
    return all;
  }
  void do_all_to_all(ConstView in, View out) override {
    const Index block = in.size_bytes() / size_;
    count(size_ - 1, block * (size_ - 1));
    for (int r = 0; r < size_; ++r) std::memcpy(out.bytes() + r * block, in.bytes() + rank_ * block, block);
  }
  Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    const Index from = std::accumulate(send.begin(), send.begin() + rank_, Index{0});
    const auto messages = [&](std::span<const Index> rows) {
      return size_ - std::ranges::count(rows, Index{0}) - (rows[rank_] > 0 ? 1 : 0);
    };
    for (const auto& [in, out] : buffers) {
      const Index row = row_bytes(in);
      count(std::max(messages(send), messages(receive)), std::max(in.size_bytes(), out.size_bytes()));
      std::byte* to = out.bytes();
      for (int r = 0; r < size_; to += receive[r++] * row) {
        const Index rows = std::min(receive[r], send[rank_]);
        std::memset(to, 0, receive[r] * row);
        std::memcpy(to, in.bytes() + from * row, rows * row);
      }
    }
    return {};
  }

  SimulatedJob& job_;
  int size_, rank_;
};

}  // namespace

std::unique_ptr<Comm> make_simulated_world(SimulatedJob& job, int rank) {
  job.counts.clear();
  job.next_result = 0;
  if (rank == 0) job.results.clear();
  return std::make_unique<SimulatedComm>(std::make_shared<RankContext>(), job, job.ranks, rank);
}

}  // namespace sy::test
