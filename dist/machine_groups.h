// Groups of the ranks of one machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/comm.h"

namespace sy {

// Returns a 64-bit hash of machine and `key` for each rank: [rank]. Ranks with the same machine and
// key have equal hashes. Other ranks differ, except for a collision of the hash. Collective.
std::vector<Index> machine_keys(Comm& world, const std::string& key);

// Returns the communicator of the ranks of this machine with an equal `key`. Collective.
std::unique_ptr<Comm> split_by_machine(Comm& world, const std::string& key);

}  // namespace sy
