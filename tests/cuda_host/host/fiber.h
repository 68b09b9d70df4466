// Fibers: functions that share one thread of the host, each with its own stack.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace sy::cuda_host {

class Fiber {
 public:
  Fiber() = default;                // the running code, on its present stack
  explicit Fiber(void (*entry)());  // its stack is never freed; entry must not return
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Suspends this fiber, which must be the running one, and continues `to`. Returns when a fiber
  // jumps back to this one.
  void jump(Fiber& to);
  // Makes the next jump to this fiber begin entry anew. The content of its stack is lost.
  void reset();

 private:
  static void start(boost::context::detail::transfer_t from);

  boost::context::detail::fcontext_t resume_ = nullptr;
  void (*entry_)() = nullptr;
  // Without entry, null until the fiber is first suspended; set then with AddressSanitizer only.
  std::byte* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
};

}  // namespace sy::cuda_host
