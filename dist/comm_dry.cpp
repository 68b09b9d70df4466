#include "dist/comm_dry.h"

#include <cstring>

#include "kernels/device.h"

namespace sy {
namespace {

class CommDry final : public Comm {
 public:
  CommDry(std::shared_ptr<RankContext> context, int size, int rank, bool asynchronous)
      : Comm(std::move(context)), size_(size), rank_(rank), asynchronous_(asynchronous) {}
  int size() const override { return size_; }
  int rank() const override { return rank_; }
  bool asynchronous() const override { return asynchronous_; }

  std::map<DryTransfer, Index> transfers;

 private:
  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) override {
    const auto [size, rank] = split_rank(color, size_, rank_);
    return make_comm_dry(size, rank, asynchronous_, shared_context());
  }
  void record(Collective kind, Index sent, Index received, Index buffer, Index roots = 0) {
    ++transfers[{kind, rank_context().phase.current().subphase, sent, received, buffer, roots}];
  }
  // The buffers of all roots in one call. root_sends: a root sends its buffer to the others;
  // otherwise it receives theirs.
  void record_rooted(Collective kind, std::span<const RootedBuffer> buffers, bool root_sends) {
    Index own = 0, others = 0;  // bytes of the buffers whose root is this rank, and of all others
    for (const auto& [x, root] : buffers) (rank_ == root ? own : others) += x.size_bytes();
    const Index as_root = own * (size_ - 1);
    record(kind, root_sends ? as_root : others, root_sends ? others : as_root, own + others, std::ssize(buffers));
  }

  void do_barrier() override {}
  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint) override {
    record_rooted(Collective::broadcast, buffers, true);
    return {};
  }
  void do_all_reduce(View x, Reduce) override {
    const Index bytes = all_reduce_bytes(x.size_bytes(), size_of(x.dtype()), size_, rank_);
    record(Collective::all_reduce, bytes, bytes, x.size_bytes());
  }
  Work do_reduce(std::span<const RootedBuffer> buffers, ComputePoint) override {
    record_rooted(Collective::reduce, buffers, false);
    return {};
  }
  void do_reduce_scatter(ConstView, View out, View) override {
    record(Collective::reduce_scatter, out.size_bytes() * (size_ - 1), out.size_bytes() * (size_ - 1),
           out.size_bytes() * size_);
  }
  void do_all_gather(ConstView in, View out) override {
    record(Collective::all_gather, in.size_bytes() * (size_ - 1), in.size_bytes() * (size_ - 1), out.size_bytes());
  }
  std::vector<std::string> do_gather(std::string_view mine, int root) override {
    const Index bytes = std::ssize(mine);
    const bool receives = rank_ == root;
    record(Collective::gather, receives ? 0 : bytes, receives ? bytes * (size_ - 1) : 0, 0);
    return std::vector<std::string>(static_cast<std::size_t>(receives ? size_ : 0), std::string(mine));
  }
  void do_all_to_all(ConstView in, View out) override {
    const Index block = in.size_bytes() / size_;
    record(Collective::all_to_all, block * (size_ - 1), block * (size_ - 1), 0);
    if (in.dtype() != DType::i32 || out.size_bytes() > Device::read_limit)
      return;  // the host reads no tensors but counts
    for (int r = 0; r < size_; ++r) std::memcpy(out.bytes() + r * block, in.bytes() + rank_ * block, block);
  }
  Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    Index sent = 0, received = 0;
    for (const auto& [in, out] : buffers) {
      sent += (in.dim(0) - send[rank_]) * row_bytes(in);
      received += (out.dim(0) - receive[rank_]) * row_bytes(out);
    }
    record(Collective::all_to_all, sent, received, 0);
    return {};
  }

  int size_, rank_;
  bool asynchronous_;
};

}  // namespace

SplitRank split_rank(const std::function<int(int rank)>& color, int size, int rank) {
  SplitRank group;
  const int mine = color(rank);
  for (int r = 0; r < size; ++r) {
    if (color(r) != mine) continue;
    group.rank += r < rank;
    ++group.size;
  }
  return group;
}

std::unique_ptr<Comm> make_comm_dry(int size, int rank, bool asynchronous, std::shared_ptr<RankContext> context) {
  if (size == 1) return make_comm_self(std::move(context));
  return std::make_unique<CommDry>(std::move(context), size, rank, asynchronous);
}

std::map<DryTransfer, Index> dry_transfers(const Comm& comm) {
  const auto* const dry = dynamic_cast<const CommDry*>(&comm);
  return dry ? dry->transfers : std::map<DryTransfer, Index>();
}

}  // namespace sy
