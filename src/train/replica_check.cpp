#include "src/train/replica_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "dist/errors.h"
#include "dist/phase.h"

namespace sy {

namespace {

constexpr std::size_t digest_values = sizeof(Checksum::Value) / sizeof(Index);

// Returns true if the rows of all ranks have one checksum. A row is large, so that each rank gets
// the checksums of the others first. Collective.
bool equal_rows(Comm& comm, std::span<const Index> row) {
  const Checksum::Value sum = checksum(row.data(), row.size_bytes());
  std::array<Index, digest_values> mine;
  std::memcpy(mine.data(), sum.data(), sizeof sum);
  std::vector<Index> all(static_cast<std::size_t>(comm.size()) * digest_values);
  if (!comm.host_all_gather(mine, all)) return true;
  for (std::size_t i = digest_values; i < all.size(); ++i)
    if (all[i] != all[i - digest_values]) return false;
  return true;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", format_rank_list(ranks));
}

}  // namespace

ReplicaDigest replica_digest(std::string name, const void* data, std::size_t bytes) {
  return {std::move(name), checksum(data, bytes)};
}

ReplicaDigest replica_digest(std::string name, Device& device, ConstView x) {
  constexpr Index chunk_bytes = Index{16} << 20;
  Checksum sum;
  const Index n = x.elements(), width = size_of(x.dtype()), chunk = chunk_bytes / width;
  const ConstView flat = x.reshape({n});
  std::vector<std::byte> host(static_cast<std::size_t>(std::min(n, chunk) * width));
  for (Index begin = 0; begin < n; begin += chunk) {
    const Index count = std::min(chunk, n - begin);
    device.to_host(flat.rows(begin, count), host.data());
    sum.update(host.data(), static_cast<std::size_t>(count * width));
  }
  return {std::move(name), sum.finish()};
}

std::string replica_difference(Comm& comm, int world_rank, const std::vector<ReplicaDigest>& own) {
  if (own.empty()) return "";
  std::vector<Index> mine(1 + own.size() * digest_values);
  mine[0] = world_rank;
  for (std::size_t i = 0; i < own.size(); ++i)
    std::memcpy(&mine[1 + i * digest_values], own[i].digest.data(), sizeof(Checksum::Value));
  if (equal_rows(comm, std::span(mine).subspan(1))) return "";
  const auto size = static_cast<std::size_t>(comm.size());
  std::vector<Index> all(size * mine.size());
  comm.host_all_gather(mine, all);
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::map<std::array<Index, digest_values>, std::vector<int>> copies;
    for (std::size_t rank = 0; rank < size; ++rank) {
      const Index* const row = &all[rank * mine.size()];
      std::array<Index, digest_values> digest;
      std::copy_n(row + 1 + i * digest_values, digest_values, digest.begin());
      copies[digest].push_back(static_cast<int>(row[0]));
    }
    if (copies.size() == 1) continue;
    const auto most = std::ranges::max_element(copies, {}, [](const auto& copy) { return copy.second.size(); });
    const bool majority = 2 * most->second.size() > size;
    std::vector<int> odd;
    for (auto copy = copies.begin(); copy != copies.end(); ++copy)
      if (!majority || copy != most) odd.insert(odd.end(), copy->second.begin(), copy->second.end());
    std::ranges::sort(odd);
    return majority
               ? fmt::format("{} of {} differs from that of {}", own[i].name, ranks_text(odd), ranks_text(most->second))
               : fmt::format("{} differs between {}", own[i].name, ranks_text(odd));
  }
  return "";
}

std::string weight_difference(const Mesh& mesh, ParamStore& store) {
  const ScopedPhase phase(mesh.rank_context(), "comparison of weights");
  store.finish_all_gather();
  Device& device = store.device();
  std::string difference;
  const auto compare = [&](Comm& comm, const std::vector<ReplicaDigest>& own) {
    std::string text = replica_difference(comm, mesh.rank, own);
    if (difference.empty()) difference = std::move(text);
  };
  std::vector<ReplicaDigest> of_kv_heads;
  for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
    const GroupLayout& group = store.layout().groups[g];
    const ParamStore::Buffers& buffers = store.buffers(g);
    std::vector<ReplicaDigest> own;
    for (const ParamSlice& slice : group.slices) {
      own.push_back(
          replica_digest(slice.spec->name, device, buffers.weights.view().rows(slice.offset, slice.box.elements())));
      if (mesh.kv_replicas && is_kv_replicated(*slice.spec, mesh.layout.tp)) of_kv_heads.push_back(own.back());
    }
    compare(mesh.over(group.axes), own);
    if (!mesh.kv_replicas || group.frozen) continue;
    for (const OwnedRange& range : owned_ranges(group)) {
      if (!is_kv_replicated(*range.slice->spec, mesh.layout.tp)) continue;
      const Index begin = range.flat.begin - group.owned().begin, n = range.flat.size();
      const auto states = update_rule(group.optimizer).state;
      for (std::size_t i = 0; i < buffers.state.size(); ++i)
        of_kv_heads.push_back(
            replica_digest(fmt::format("optimizer state {} of {}", states[i].name, range.slice->spec->name), device,
                           buffers.state[i].view().rows(begin, n)));
    }
  }
  if (mesh.kv_replicas) compare(*mesh.kv_replicas, of_kv_heads);
  return difference;
}

void check_replicas(const Mesh& mesh, Index step, const std::string& difference) {
  agree_on_errors(*mesh.host, [&] {
    if (!difference.empty())
      fail(
          "step {}: {}: memory, a processor or the network may be faulty there. Nothing was written since: go on from "
          "the last checkpoint (--run.resume=true), without that machine",
          step, difference);
  });
}

}  // namespace sy
