// Facts about the host of this process.
#pragma once

#include <cstdint>
#include <string>

namespace sy {

// Returns the model of the processor, as of /proc/cpuinfo; the architecture, such as "aarch64", if
// that does not tell it.
std::string processor_name();

// Returns the bytes of memory of this host, free or not.
std::int64_t host_memory();

// Returns the number of this process's job in its batch system; empty if there is none.
std::string job_id();

}  // namespace sy
