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

 private:
  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) const override {
    int size = 0, rank = 0;
    for (int r = 0; r < size_; ++r) {
      if (color(r) != color(rank_)) continue;
      rank += r < rank_;
      ++size;
    }
    return make_comm_dry(size, rank);
  }
  void do_barrier() override {}
  void do_broadcast(View, int) override {}
  void do_all_reduce(View, Reduce) override {}
  void do_reduce(View, int) override {}
  void do_reduce_scatter(ConstView, View) override {}
  void do_all_gather(ConstView in, View out) override {
    if (out.size_bytes() > (1 << 20)) return;
    for (int r = 0; r < size_; ++r)
      if (out.bytes() + r * in.size_bytes() != in.bytes())
        std::memcpy(out.bytes() + r * in.size_bytes(), in.bytes(), in.size_bytes());
  }
  void do_all_to_all_v(ConstView, std::span<const Index>, View, std::span<const Index>) override {}

  int size_, rank_;
};

}  // namespace

std::unique_ptr<Comm> make_comm_dry(int size, int rank) {
  if (size == 1) return make_comm_self();
  return std::make_unique<CommDry>(size, rank);
}

}  // namespace sy
