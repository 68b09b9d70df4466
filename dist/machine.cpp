#include "dist/machine.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "dist/device_comm.h"
#include "dist/errors.h"
#include "dist/machine_groups.h"
#include "kernels/cpu/processor.h"
#include "kernels/philox.h"

namespace sy {
namespace {

// Returns the number of ranks on this machine with an equal `key`: before this rank, and in total.
std::pair<int, int> count_equal_keys(Comm& world, const std::string& key) {
  const std::vector<Index> all = machine_keys(world, key);
  const auto here = all.begin() + world.rank();
  return {static_cast<int>(std::count(all.begin(), here, *here)),
          static_cast<int>(std::count(all.begin(), all.end(), *here))};
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::uint64_t machine_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  return hash_name(fmt::format("{} {} {}", host_name(), boot, network.string()));
}

int local_rank(Comm& world) {
  return count_equal_keys(world, "").first;
}

int rank_on_device(Comm& world, const std::string& device) {
  return count_equal_keys(world, device).first;
}

int ranks_sharing(Comm& world, const std::string& device) {
  return count_equal_keys(world, device).second;
}

std::vector<std::vector<Index>> sums_on_machine(Comm& world, std::span<const Index> values,
                                                std::span<const std::string> keys) {
  // A row: the machine, the values, the keys, and zeros in place of missing keys.
  const std::size_t num_values = values.size();
  const auto most_keys = static_cast<std::size_t>(world.max(std::ssize(keys)));
  std::vector<Index> mine{static_cast<Index>(machine_id())};
  mine.insert(mine.end(), values.begin(), values.end());
  for (const std::string& key : keys) mine.push_back(static_cast<Index>(hash_name(key)));
  mine.resize(1 + num_values + most_keys);
  std::vector<Index> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(view_of(mine.data(), {std::ssize(mine)}), view_of(all.data(), {std::ssize(all)}));
  std::vector<std::vector<Index>> sums(1 + keys.size(), std::vector<Index>(num_values));
  for (auto row = all.begin(); row != all.end(); row += std::ssize(mine)) {
    if (*row != mine[0]) continue;
    const auto row_keys = row + static_cast<Index>(num_values) + 1, end = row + std::ssize(mine);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (i > 0 && std::find(row_keys, end, mine[num_values + i]) == end) continue;
      for (std::size_t value = 0; value < num_values; ++value) sums[i][value] += row[static_cast<Index>(value) + 1];
    }
  }
  return sums;
}

int agree_on_devices(Comm& world, const Device& device) {
  if (world.max(device.on_host()) + world.max(!device.on_host()) == 2)
    throw CollectiveError(
        2, "some ranks have a GPU and others have none: see `switchyard doctor`, or set the backend to cpu");
  if (device.on_host()) return 1;
  const int sharing = ranks_sharing(world, device.device_id());
  const DeviceCollectives collectives = device_collectives();
  if (world.max(sharing > 1 && !collectives.shares_devices) > 0)
    throw CollectiveError(
        2, fmt::format("several ranks share a GPU, which {} refuses: start as many ranks on a machine as it has GPUs "
                       "(see `switchyard doctor`), or set the backend to cpu",
                       collectives.name));
  return sharing;
}

void agree_on_isa(Comm& world) {
  Index mine = 0;
  agree_on_errors(world, [&] { mine = &cpu_isa() - cpu_isas().data(); });
  use_cpu_isa(cpu_isas()[static_cast<std::size_t>(-world.max(-mine))]);
}

}  // namespace sy
