// A communicator that forwards every collective to another one. It is the base class of
// communicators that count collectives or change some of them.
#pragma once

#include <memory>
#include <utility>

#include "dist/comm.h"

namespace sy {

class ForwardingComm : public Comm {
 public:
  explicit ForwardingComm(std::unique_ptr<Comm> inner) : Comm(inner->shared_context()), inner_(std::move(inner)) {}
  int size() const override { return inner_->size(); }
  int rank() const override { return inner_->rank(); }

 protected:
  std::unique_ptr<Comm> do_split(const std::function<int(int)>& color) override { return inner_->split(color); }
  void do_barrier() override { inner_->barrier(); }
  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint) override {
    return inner_->start_broadcast(buffers);
  }
  void do_all_reduce(View x, Reduce op) override { inner_->all_reduce(x, op); }
  Work do_reduce(std::span<const RootedBuffer> buffers, ComputePoint) override { return inner_->start_reduce(buffers); }
  void do_reduce_scatter(ConstView in, View out, View scratch) override { inner_->reduce_scatter(in, out, scratch); }
  void do_all_gather(ConstView in, View out) override { inner_->all_gather(in, out); }
  std::vector<std::string> do_gather(std::string_view mine, int root) override { return inner_->gather(mine, root); }
  void do_all_to_all(ConstView in, View out) override { inner_->all_to_all(in, out); }
  Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                       std::span<const Index> receive) override {
    return inner_->start_all_to_all_v(buffers, send, receive);
  }

  const std::unique_ptr<Comm> inner_;
};

}  // namespace sy
