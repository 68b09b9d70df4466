#include "host/fiber.h"

#include <sys/mman.h>

#include "host/report.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sy::cuda_host {

namespace {

constexpr std::size_t page = 4096, mapped_bytes = 128 * 1024;

Fiber* left = nullptr;     // the fiber that the last jump suspended
Fiber* entered = nullptr;  // the fiber that it continued

}  // namespace

Fiber::Fiber(void (*entry)()) : entry_(entry) {
  void* p = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0) mistake("no memory for the stack of a fiber");
  stack_ = static_cast<std::byte*>(p) + page;
  // Stacks begin at different offsets of a page. With equal offsets they would share few sets of
  // the cache.
  static std::size_t fibers = 0;
  stack_bytes_ = mapped_bytes - page - fibers++ % 64 * 5 * 64;
  reset();
}

void Fiber::reset() {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack_, stack_bytes_);
#endif
  resume_ = boost::context::detail::make_fcontext(stack_ + stack_bytes_, stack_bytes_, start);
}

void Fiber::jump(Fiber& to) {
  left = this;
  entered = &to;
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, to.stack_, to.stack_bytes_);
#endif
  const auto from = boost::context::detail::jump_fcontext(to.resume_, nullptr);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  left->resume_ = from.fctx;
}

void Fiber::start(boost::context::detail::transfer_t from) {
#ifdef __SANITIZE_ADDRESS__
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (left->stack_ == nullptr) {
    left->stack_ = static_cast<std::byte*>(const_cast<void*>(stack));
    left->stack_bytes_ = bytes;
  }
#endif
  left->resume_ = from.fctx;
  entered->entry_();
}

}  // namespace sy::cuda_host
