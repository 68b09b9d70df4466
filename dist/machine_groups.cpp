#include "dist/machine_groups.h"

#include <map>

#include "dist/machine.h"
#include "kernels/philox.h"

namespace sy {

std::vector<Index> machine_keys(Comm& world, const std::string& key) {
  const auto mine = static_cast<Index>(hash_name(fmt::format("{}/{}", machine_id(), key)));
  std::vector<Index> all(world.size());
  world.all_gather(view_of(&mine, {1}), view_of(all.data(), {world.size()}));
  return all;
}

std::unique_ptr<Comm> split_by_machine(Comm& world, const std::string& key) {
  const std::vector<Index> keys = machine_keys(world, key);
  std::map<Index, int> first_ranks;
  for (int rank = 0; rank < world.size(); ++rank) first_ranks.try_emplace(keys[rank], rank);
  return world.split([&](int rank) { return first_ranks.at(keys[rank]); });
}

}  // namespace sy
