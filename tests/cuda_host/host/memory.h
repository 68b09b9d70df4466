// Device memory. Every byte has a shadow: it says whether the byte is initialised and, while a
// kernel runs, which block wrote it. Addresses are never reused, so a use of freed memory is always
// detected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "host/order.h"
#include "kernels/tensor.h"

namespace sy::cuda_host {

// Shadow values. A value from first_tag on means: written in the running launch by a block with
// that tag. If there are more blocks than tags, blocks share tags.
constexpr std::uint8_t uninitialised = 0, initialised = 1, first_tag = 2;
constexpr std::uint64_t tags = 256 - first_tag;

void* allocate(std::size_t bytes);  // nullptr if bytes is 0 or the device has too little memory
void release(void* memory);
std::size_t allocated_bytes();
std::size_t device_bytes();
bool is_device(const void* memory);  // also true for freed memory

inline std::ptrdiff_t shadow_distance;  // from a byte to its shadow
inline std::uint8_t* shadow_of(std::uintptr_t address) {
  return reinterpret_cast<std::uint8_t*>(static_cast<std::intptr_t>(address) + shadow_distance);
}

// Check accesses to whole ranges by copies, products and collectives. `what` names the operand. A
// read requires initialised memory; a write initialises it.
void read_range(const Operation& operation, const void* memory, std::size_t bytes, const char* what);
void write_range(const Operation& operation, void* memory, std::size_t bytes, const char* what);
// Checks the access to a range that the operation uses as a workspace. Its content is lost.
void claim_range(const Operation& operation, void* memory, std::size_t bytes, const char* what);

// ---- operands of kernels ----

// The running kernel, and its running block.
struct Launch {
  Operation operation;
  std::uint64_t number = 0;  // 0 if no kernel runs
  std::uint8_t tag = 0;      // of the block
};
inline Launch launch_state;

// Elements that a kernel may access: those of the view from which an In or Out was made.
struct Operand {
  std::uintptr_t begin = 0, end = 0;
  // The last launches that read and wrote it. The first access in a launch checks the order.
  static constexpr std::uint64_t never = ~std::uint64_t{0};
  std::uint64_t read_in = never, written_in = never;
  bool writable = false;  // true for an Out
  ConstView view;
};
// Returns the operand of a view. Equal views have the same operand, which is never freed. nullptr
// if the view is empty.
Operand* operand_of(ConstView view, DType as, bool writable);

void begin_launch(const Operation& operation);
void end_launch();

[[noreturn]] void bad_access(const Operand& operand, std::uintptr_t address, std::size_t bytes, const char* does);
void first_read(Operand& operand);
void first_write(Operand& operand);
void slow_read(const Operand& operand, std::uintptr_t address, std::size_t bytes);
void slow_write(const Operand& operand, std::uintptr_t address, std::size_t bytes);

// Unsigned integer of `bytes` bytes.
template <std::size_t bytes>
using TagBytes = std::conditional_t<
    bytes == 1, std::uint8_t,
    std::conditional_t<bytes == 2, std::uint16_t, std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>>;
template <std::size_t bytes>
constexpr TagBytes<bytes> all_of(std::uint8_t tag) {
  return static_cast<TagBytes<bytes>>(0x0101010101010101u * tag);
}

// Check an access of `bytes` bytes at an address: bounds, alignment, initialised memory, and writes
// by other blocks.
template <std::size_t bytes>
void check_read(Operand& operand, std::uintptr_t address) {
  if (operand.read_in != launch_state.number) [[unlikely]]
    first_read(operand);
  if (address < operand.begin || address + bytes > operand.end || address % bytes != 0) [[unlikely]]
    bad_access(operand, address, bytes, "reads");
  constexpr std::size_t step = bytes < 8 ? bytes : 8;
  for (std::size_t i = 0; i < bytes; i += step) {
    TagBytes<step> shadow;
    std::memcpy(&shadow, shadow_of(address + i), step);
    if (shadow != all_of<step>(initialised) && shadow != all_of<step>(launch_state.tag)) [[unlikely]]
      slow_read(operand, address, bytes);
  }
}
template <std::size_t bytes>
void check_write(Operand& operand, std::uintptr_t address) {
  if (operand.written_in != launch_state.number) [[unlikely]]
    first_write(operand);
  if (address < operand.begin || address + bytes > operand.end || address % bytes != 0) [[unlikely]]
    bad_access(operand, address, bytes, "writes");
  constexpr std::size_t step = bytes < 8 ? bytes : 8;
  for (std::size_t i = 0; i < bytes; i += step) {
    TagBytes<step> shadow;
    const TagBytes<step> mine = all_of<step>(launch_state.tag);
    std::memcpy(&shadow, shadow_of(address + i), step);
    if (shadow != mine) {
      if ((shadow & ~all_of<step>(initialised)) != 0) [[unlikely]]
        slow_write(operand, address, bytes);
      std::memcpy(shadow_of(address + i), &mine, step);
    }
  }
}

}  // namespace sy::cuda_host
