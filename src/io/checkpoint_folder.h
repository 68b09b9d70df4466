// A checkpoint's folder as the functions that read it take it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "dist/comm.h"
#include "dist/errors.h"
#include "src/io/format/checkpoint_format.h"
#include "src/io/manifest.h"

namespace sy {

// Thrown on all ranks if machines have different manifests of a checkpoint.
struct DifferentManifests : CollectiveError {
  using CollectiveError::CollectiveError;
};

// Every reader of a checkpoint needs this: its manifest, and the bytes of its index and of its
// linked indexes.
struct CheckpointHead {
  Manifest manifest;
  IndexBytes indexes;
};

// A folder, and perhaps the head of its checkpoint. A copy shares the head.
class CheckpointFolder {
 public:
  // Without a head: each function reads the manifest and the indexes itself.
  CheckpointFolder(std::filesystem::path step_dir) : path_(std::move(step_dir)) {}
  // With a head, which rank 0 reads for all ranks, so that no file is read by every rank. Rank 0
  // compares the digests of the indexes with the manifest. The first rank of each machine reads the
  // manifest, too, and so does a rank for which the folder has another path. Throws
  // DifferentManifests on all ranks if a manifest differs, or CollectiveError if one of these ranks
  // cannot read the manifest, or if an index is missing or damaged. Collective.
  CheckpointFolder(Comm& world, std::filesystem::path step_dir);

  const std::filesystem::path& path() const { return path_; }
  // nullptr without a head.
  const std::shared_ptr<const CheckpointHead>& head() const { return head_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const CheckpointHead> head_;
};

}  // namespace sy
