#include "tests/reliability/allocations.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

using sy::campaign::NoMemoryFault;

// Set before any constructor runs: libraries allocate before main.
struct Armed {
  std::atomic<bool> active{false};
  std::atomic<long> calls{0};
  std::atomic<std::size_t> freed{0};  // bytes of the largest freed block that are unused
  long at = 0;
  NoMemoryFault kind = NoMemoryFault::once;
};
constinit Armed armed;

// Limits the address space to its current size. Allocates nothing.
void fill_address_space() {
  char text[64] = "";
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (::read(file, text, sizeof text - 1) <= 0) ::abort();
  ::close(file);
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = static_cast<rlim_t>(std::strtoul(text, nullptr, 10)) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  ::setrlimit(RLIMIT_AS, &limit);
}

// Counts an allocation, and decides on it. errno is set if it fails.
bool fails(std::size_t bytes) {
  if (bytes < sy::campaign::least_counted_bytes || !armed.active) return false;
  if (std::size_t freed = armed.freed; bytes <= freed) {
    armed.freed = freed - bytes;
    return false;
  }
  const long n = ++armed.calls;
  if (armed.at == 0 || n < armed.at) return false;
  if (armed.kind == NoMemoryFault::full) {
    if (n == armed.at) fill_address_space();
    return false;
  }
  if (n > armed.at && armed.kind == NoMemoryFault::once) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): the names of glibc
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* memory);

void* malloc(std::size_t bytes) noexcept {
  return fails(bytes) ? nullptr : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  std::size_t all = 0;
  return !__builtin_mul_overflow(count, bytes, &all) && fails(all) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  return fails(bytes) ? nullptr : __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return fails(bytes) ? nullptr : __libc_memalign(alignment, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  return fails(bytes) ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  const int error = errno;
  void* const made = memalign(alignment, bytes);
  errno = error;
  if (made) *memory = made;
  return made ? 0 : ENOMEM;
}
void free(void* memory) noexcept {
  if (armed.active && memory)
    if (const std::size_t bytes = ::malloc_usable_size(memory); bytes > armed.freed) armed.freed = bytes;
  __libc_free(memory);
}
void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  if (fails(bytes)) return MAP_FAILED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
}
// NOLINTEND(bugprone-reserved-identifier)

namespace sy::campaign {

void arm_allocations(long call, NoMemoryFault kind) {
  armed.calls = 0;
  armed.freed = 0;
  armed.at = call;
  armed.kind = kind;
  armed.active = true;
}
long disarm_allocations() {
  armed.active = false;
  return armed.calls;
}

}  // namespace sy::campaign
