// Clocks that jump. The functions replace those of libc, in this program alone.
#pragma once

#include <ctime>

namespace sy::campaign {

// From call `call` of a clock on (counted from 1), the clock shows `seconds` more.
// clock: CLOCK_REALTIME or CLOCK_MONOTONIC. call = 0: no jump, and counting begins at 0.
void set_clock_jump(clockid_t clock, long call, double seconds);
long clock_calls();  // of the chosen clock

}  // namespace sy::campaign
