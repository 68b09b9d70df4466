// Comparison of the values that several ranks hold (run.check_every).
//
// Ranks exchange a checksum of each tensor (src/system/digest.h), so that the check costs one read
// of the weights. In a step, weights are compared before the update. The all-gather after it would
// replace a wrong replica by the owner's values, and hide the fault.
#pragma once

#include <string>
#include <vector>

#include "dist/mesh.h"
#include "src/params/store.h"
#include "src/system/digest.h"

namespace sy {

// A tensor that all ranks of a group hold: its name, and the checksum of this rank's replica.
struct ReplicaDigest {
  std::string name;
  Checksum::Value digest;
};

// Returns the digest of `bytes` of host memory.
ReplicaDigest replica_digest(std::string name, const void* data, std::size_t bytes);
// Returns the digest of a view of the device. Waits for the device.
ReplicaDigest replica_digest(std::string name, Device& device, ConstView x);

// Describes the first tensor of which the ranks of `comm` hold different values. Empty if they
// agree or if there are no peers. Names the ranks that differ from the majority, and the majority.
// If there is no majority, names all ranks. Collective over `comm`. All ranks must pass the same
// names in the same order. If they agree, a rank gets 16 bytes of each other rank; otherwise 16
// bytes of each tensor and rank. world_rank: of this rank.
std::string replica_difference(Comm& comm, int world_rank, const std::vector<ReplicaDigest>& own);

// Does the same for all weights, and for the optimizer state of kv heads that several ranks hold.
// Finishes the parameter all-gather. Collective over the mesh. The result may differ by rank.
std::string weight_difference(const Mesh& mesh, ParamStore& store);

// Throws CollectiveError on all ranks if `difference` is not empty on some rank. Collective.
// step: for the message; the current step, or the last one between steps.
void check_replicas(const Mesh& mesh, Index step, const std::string& difference);

}  // namespace sy
