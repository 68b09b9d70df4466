// Groups of the ranks of one machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/comm.h"

namespace sy {

// Returns a number for each rank, by rank. Two numbers are equal exactly if the machine and `key`
// of both ranks are equal. Collective.
std::vector<Index> machine_keys(Comm& world, const std::string& key);

// Returns the communicator of the ranks of this machine with an equal `key`. Collective.
std::unique_ptr<Comm> split_by_machine(Comm& world, const std::string& key);

}  // namespace sy
