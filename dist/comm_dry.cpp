// A rank among others that do not exist: counts the bytes that it would send, for planning. Small things that are gathered
// (row counts) are answered as if every other rank held the same.
#include <cstring>

#include "dist/comm.h"

namespace sy {
namespace {

class CommDry final : public Comm {
 public:
  CommDry(int size, int rank) : size_(size), rank_(rank) {}
  int size() const override { return size_; }
  int rank() const override { return rank_; }
  std::unique_ptr<Comm> split(int, int) const override {
    fail("a dry communicator cannot be split: make one of the size that is wanted");
  }
  void barrier() override {}
  void broadcast(View x, int) override { count(x.size_bytes()); }
  void all_reduce(View x, Reduce) override { count(2 * x.size_bytes() * (size_ - 1) / size_); }
  void reduce_scatter(ConstView, View out) override { count(out.size_bytes() * (size_ - 1)); }
  void all_gather(ConstView in, View out) override {
    count(in.size_bytes() * (size_ - 1));
    if (out.size_bytes() > (1 << 20)) return;
    for (int r = 0; r < size_; ++r)
      if (out.bytes() + r * in.size_bytes() != in.bytes())
        std::memcpy(out.bytes() + r * in.size_bytes(), in.bytes(), in.size_bytes());
  }
  void all_to_all_v(ConstView in, std::span<const Index> send, View, std::span<const Index>) override {
    Index rows = 0;
    for (int r = 0; r < size_; ++r) rows += r == rank_ ? 0 : send[r];
    count(rows * in.shape().elements(1) * size_of(in.dtype()));
  }

 private:
  void count(Index bytes) {
    ++traffic.calls;
    traffic.bytes += bytes;
  }
  int size_, rank_;
};

}  // namespace

std::unique_ptr<Comm> make_comm_dry(int size, int rank) { return std::make_unique<CommDry>(size, rank); }

}  // namespace sy
