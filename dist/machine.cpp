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

std::vector<Index> sums_on_machine(Comm& world, std::span<const Index> values, const std::string& key) {
  std::vector<Index> mine{machine_key(key)};
  mine.insert(mine.end(), values.begin(), values.end());
  std::vector<Index> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(view_of(mine.data(), {std::ssize(mine)}), view_of(all.data(), {std::ssize(all)}));
  std::vector<Index> sums(values.size());
  for (std::size_t row = 0; row < all.size(); row += mine.size())
    if (all[row] == mine[0])
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += all[row + 1 + i];
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
