// Groups of the ranks of one machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/comm.h"

namespace sy {

// Returns a number. The numbers of two ranks are equal exactly if their machines and their keys are
// equal.
Index machine_key(const std::string& key);

// Returns the number machine_key(key) of each rank, by rank. Collective.
std::vector<Index> machine_keys(Comm& world, const std::string& key);

// Returns the communicator of the ranks of this machine with an equal `key`. Collective.
std::unique_ptr<Comm> split_by_machine(Comm& world, const std::string& key);

}  // namespace sy
