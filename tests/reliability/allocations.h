// Allocations that fail. The functions replace those of libc, in this program alone.
#pragma once

namespace sy::campaign {

// Counted are malloc, calloc, realloc, aligned allocations and mmap of at least so many bytes, of
// the program and of all libraries, libc included. An allocation succeeds and is not counted if it
// fits in the unused bytes of the largest block that was freed before.
constexpr unsigned long least_counted_bytes = 4096;

enum class NoMemoryFault {
  once,     // the allocation fails
  lasting,  // it and all later counted ones fail
  full      // the address space of the process cannot grow from then on (RLIMIT_AS)
};
// call: from 1; 0: no allocation fails. Counting begins at 0.
void arm_allocations(long call, NoMemoryFault kind);
// Stops counting, and returns the number of counted allocations.
long disarm_allocations();

}  // namespace sy::campaign
