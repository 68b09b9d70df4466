#include "host/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace sy::cuda_host {

namespace {

// Reserved address space of device memory. A shadow of the same size follows it. Pages cost nothing
// until they are touched.
constexpr std::size_t space_bytes = std::size_t{4} << 40;
constexpr std::size_t alignment = 256;

struct Allocation {
  std::size_t bytes;
  bool alive;
  AccessLog log;
};

struct Space {
  std::byte* base;
  std::size_t used = 0;
  std::size_t allocated = 0, limit = std::size_t{8} << 30;
  std::map<std::uintptr_t, Allocation> allocations;
  std::unordered_map<std::string, Operand> operands;  // by address, shape and type
  std::vector<Operand*> read, written;                // in the running launch

  Space() {
    void* p =
        mmap(nullptr, 2 * space_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) mistake("no address space for the device's memory");
    madvise(p, 2 * space_bytes, MADV_DONTDUMP);
    base = static_cast<std::byte*>(p);
    shadow_distance = static_cast<std::ptrdiff_t>(space_bytes);
  }
};

Space& space() {
  static Space s;
  return s;
}

// Checks that a range lies in one live allocation, and that the access comes after all accesses on
// which it depends.
void order_range(const Operation& operation, std::uintptr_t address, std::size_t bytes, bool write,
                 const std::function<std::string()>& what) {
  auto& all = space().allocations;
  const auto next = all.upper_bound(address);
  if (next == all.begin() || !is_device(reinterpret_cast<void*>(address)))
    mistake("{}: {} is not in device memory", text(operation), what());
  const std::uintptr_t begin = address - std::prev(next)->first;
  Allocation& allocation = std::prev(next)->second;
  if (!allocation.alive) mistake("{}: {} has been freed", text(operation), what());
  if (begin + bytes > allocation.bytes)
    mistake("{}: {}, {} bytes from {} on, reaches beyond its allocation of {} bytes", text(operation), what(), bytes,
            begin, allocation.bytes);
  if (write)
    allocation.log.write(begin, begin + bytes, operation, what);
  else
    allocation.log.read(begin, begin + bytes, operation, what);
}

std::string describe(const Operand& operand) {
  return fmt::format("an operand {} {}", info(operand.view.dtype()).name, operand.view.shape().str());
}

void check_order(const Operand& operand, bool write) {
  if (launch_state.number == 0) mistake("the host itself accesses {}", describe(operand));
  order_range(launch_state.operation, operand.begin, operand.end - operand.begin, write,
              [&] { return describe(operand); });
}

// Reports an In and an Out of one launch that overlap. The compiler assumes that nothing writes
// memory that a kernel reads through an In.
void check_apart(const Operand& operand, const std::vector<Operand*>& others) {
  for (const Operand* other : others)
    if (other->writable != operand.writable && operand.begin < other->end && other->begin < operand.end)
      mistake("the kernel has {} as In and {} as Out, and they overlap", describe(operand.writable ? *other : operand),
              describe(operand.writable ? operand : *other));
}

// Name of the element at an address, for reports.
std::string element(const Operand& operand, std::uintptr_t address) {
  const auto offset = static_cast<std::intptr_t>(address - operand.begin);
  const Index size = size_of(operand.view.dtype());
  return fmt::format("element {} of {}", (offset < 0 ? offset - size + 1 : offset) / size, describe(operand));
}

std::string last_writer(std::uintptr_t address) {
  const auto found = std::prev(space().allocations.upper_bound(address));
  return found->second.log.last_writer(address - found->first);
}

}  // namespace

std::size_t device_bytes() {
  return space().limit;
}
std::size_t allocated_bytes() {
  return space().allocated;
}

bool is_device(const void* memory) {
  const auto* p = static_cast<const std::byte*>(memory);
  return p >= space().base && p < space().base + space().used;
}

void* allocate(std::size_t bytes) {
  Space& s = space();
  if (bytes == 0 || bytes > s.limit - std::min(s.limit, s.allocated)) return nullptr;
  // A gap follows each allocation, so that no range reaches the next one.
  const std::size_t aligned_bytes = (bytes + alignment - 1) / alignment * alignment + alignment;
  if (s.used + aligned_bytes > space_bytes) mistake("the address space of the device is used up");
  std::byte* p = s.base + s.used;
  s.used += aligned_bytes;
  s.allocated += bytes;
  s.allocations.emplace(reinterpret_cast<std::uintptr_t>(p), Allocation{bytes, true, AccessLog(bytes)});
  return p;
}

void release(void* memory) {
  Space& s = space();
  const auto found = s.allocations.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == s.allocations.end()) mistake("cudaFree of memory that cudaMalloc has not given");
  Allocation& a = found->second;
  if (!a.alive) mistake("cudaFree of memory that has been freed");
  a.alive = false;
  a.log = AccessLog(a.bytes);
  s.allocated -= a.bytes;
  // Returns whole pages to the system.
  constexpr std::uintptr_t page = 4096;
  const std::uintptr_t begin = (found->first + page - 1) / page * page, end = (found->first + a.bytes) / page * page;
  if (begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    madvise(shadow_of(begin), end - begin, MADV_DONTNEED);
  }
}

void read_range(const Operation& operation, const void* memory, std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  order_range(operation, address, bytes, false, [&] { return what; });
  const std::uint8_t* shadow = shadow_of(address);
  if (const void* bad = std::memchr(shadow, uninitialised, bytes))
    mistake("{} reads byte {} of {}, which is uninitialised", text(operation),
            static_cast<const std::uint8_t*>(bad) - shadow, what);
}

void claim_range(const Operation& operation, void* memory, std::size_t bytes, const char* what) {
  if (bytes > 0) order_range(operation, reinterpret_cast<std::uintptr_t>(memory), bytes, true, [&] { return what; });
}

void write_range(const Operation& operation, void* memory, std::size_t bytes, const char* what) {
  claim_range(operation, memory, bytes, what);
  std::memset(shadow_of(reinterpret_cast<std::uintptr_t>(memory)), initialised, bytes);
}

Operand* operand_of(ConstView view, DType as, bool writable) {
  if (!view) return nullptr;
  if (view.dtype() != as)
    mistake("a kernel is given {} {} as {}", info(view.dtype()).name, view.shape().str(), info(as).name);
  const std::byte* bytes = view.bytes();
  std::string key{static_cast<char>(as), static_cast<char>(writable)};
  key.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  for (int d = 0; d < view.shape().size(); ++d) {
    const Index size = view.dim(d);
    key.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  Operand& operand = space().operands[key];
  if (!operand.view) {
    operand.writable = writable;
    operand.view = view;
    operand.begin = reinterpret_cast<std::uintptr_t>(bytes);
    operand.end = operand.begin + static_cast<std::size_t>(view.size_bytes());
  }
  return &operand;
}

void begin_launch(const Operation& operation) {
  static std::uint64_t launches = 0;
  launch_state = {operation, ++launches, 0};
}

void end_launch() {
  for (const Operand* operand : space().written) {
    const std::uint8_t* end = shadow_of(operand->end);
    for (std::uint8_t* s = shadow_of(operand->begin); s != end; ++s) *s = std::min(*s, initialised);
  }
  space().read.clear();
  space().written.clear();
  launch_state = {};
}

void first_read(Operand& operand) {
  check_order(operand, false);
  if (!operand.writable) check_apart(operand, space().written);
  operand.read_in = launch_state.number;
  space().read.push_back(&operand);
}

void first_write(Operand& operand) {
  check_order(operand, true);
  check_apart(operand, space().read);
  operand.written_in = launch_state.number;
  space().written.push_back(&operand);
}

void bad_access(const Operand& operand, std::uintptr_t address, std::size_t bytes, const char* does) {
  if (address < operand.begin || address + bytes > operand.end)
    mistake("the kernel {} {}, outside of it", does, element(operand, address));
  mistake("the kernel {} {} bytes from {} on, at an address that is not a multiple of that", does, bytes,
          element(operand, address));
}

void slow_read(const Operand& operand, std::uintptr_t address, std::size_t bytes) {
  for (std::uintptr_t a = address; a < address + bytes; ++a) {
    const std::uint8_t shadow = *shadow_of(a);
    if (shadow == uninitialised)
      mistake("the kernel reads {}, which is uninitialised (last written by {})", element(operand, a), last_writer(a));
    if (shadow >= first_tag && shadow != launch_state.tag)
      mistake("the kernel reads {}, which another block of the launch writes", element(operand, a));
  }
}

void slow_write(const Operand& operand, std::uintptr_t address, std::size_t bytes) {
  for (std::uintptr_t a = address; a < address + bytes; ++a)
    if (*shadow_of(a) >= first_tag && *shadow_of(a) != launch_state.tag)
      mistake("the kernel writes {}, which another block of the launch writes too", element(operand, a));
}

}  // namespace sy::cuda_host
