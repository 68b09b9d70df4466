// Functions that run by turns on one thread of the host, each on a stack of its own.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace sy::cuda_host {

class Fiber {
 public:
  Fiber() = default;                // what runs now, on the stack that it has
  explicit Fiber(void (*entry)());  // never freed; entry does not return
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves the fiber that runs, this one, for another, until somebody jumps back.
  void jump(Fiber& to);
  // The next jump to it begins entry anew. What lies on its stack is lost.
  void reset();

 private:
  static void start(boost::context::detail::transfer_t from);

  boost::context::detail::fcontext_t resume_ = nullptr;
  void (*entry_)() = nullptr;
  std::byte* stack_ = nullptr;  // of what runs first: known once it has been left
  std::size_t stack_bytes_ = 0;
};

}  // namespace sy::cuda_host
