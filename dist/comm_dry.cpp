#include "dist/comm_dry.h"

#include <cstring>

#include "dist/activity.h"
#include "kernels/backend.h"

namespace sy {
namespace {

class CommDry final : public Comm {
 public:
  CommDry(int size, int rank) : size_(size), rank_(rank) {}
  int size() const override { return size_; }
  int rank() const override { return rank_; }

  std::map<DryTransfer, Index> transfers;

 private:
  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) const override {
    int size = 0, rank = 0;
    const int mine = color(rank_);
    for (int r = 0; r < size_; ++r) {
      if (color(r) != mine) continue;
      rank += r < rank_;
      ++size;
    }
    return make_comm_dry(size, rank);
  }
  void note(Collective kind, Index sent, Index received) { ++transfers[{kind, activity.part, sent, received}]; }

  void do_barrier() override {}
  void do_broadcast(std::span<const Rooted> parts) override {
    for (const auto& [x, root] : parts) {
      const bool mine = rank_ == root;
      note(Collective::broadcast, mine ? x.size_bytes() * (size_ - 1) : 0, mine ? 0 : x.size_bytes());
    }
  }
  void do_all_reduce(View x, Reduce) override {
    const Index bytes = all_reduce_bytes(x.size_bytes(), size_of(x.dtype()), size_, rank_);
    note(Collective::all_reduce, bytes, bytes);
  }
  void do_reduce(std::span<const Rooted> parts) override {
    for (const auto& [x, root] : parts) {
      const bool mine = rank_ == root;
      note(Collective::reduce, mine ? 0 : x.size_bytes(), mine ? x.size_bytes() * (size_ - 1) : 0);
    }
  }
  void do_reduce_scatter(ConstView, View out) override {
    note(Collective::reduce_scatter, out.size_bytes() * (size_ - 1), out.size_bytes() * (size_ - 1));
  }
  void do_all_gather(ConstView in, View out) override {
    note(Collective::all_gather, in.size_bytes() * (size_ - 1), in.size_bytes() * (size_ - 1));
    if (in.dtype() != DType::i32 || out.size_bytes() > Backend::read_limit)
      return;  // the host reads no tensors but counts
    for (int r = 0; r < size_; ++r)
      if (out.bytes() + r * in.size_bytes() != in.bytes())
        std::memcpy(out.bytes() + r * in.size_bytes(), in.bytes(), in.size_bytes());
  }
  void do_all_to_all_v(std::span<const InOut> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    Index sent = 0, received = 0;
    for (const auto& [in, out] : buffers) {
      sent += (in.dim(0) - send[rank_]) * row_bytes(in);
      received += (out.dim(0) - receive[rank_]) * row_bytes(out);
    }
    note(Collective::all_to_all, sent, received);
  }

  int size_, rank_;
};

}  // namespace

std::unique_ptr<Comm> make_comm_dry(int size, int rank) {
  if (size == 1) return make_comm_self();
  return std::make_unique<CommDry>(size, rank);
}

std::map<DryTransfer, Index> dry_transfers(const Comm& comm) {
  const auto* const dry = dynamic_cast<const CommDry*>(&comm);
  return dry ? dry->transfers : std::map<DryTransfer, Index>();
}

}  // namespace sy
