// Folder of a checkpoint, with or without its manifest and indexes in memory.
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

// Manifest of a checkpoint, and the bytes of its index and linked indexes. Every reader needs them.
struct CheckpointMetadata {
  Manifest manifest;
  IndexBytes indexes;
};

// Folder of a checkpoint, and its metadata if they were read. Copies share the metadata.
class CheckpointFolder {
 public:
  // Without metadata: each function reads the manifest and the indexes itself.
  CheckpointFolder(std::filesystem::path step_dir) : path_(std::move(step_dir)) {}
  // With metadata, which rank 0 reads for all ranks, so that no file is read by every rank. Rank 0
  // compares the digests of the indexes with the manifest. The first rank of each machine reads the
  // manifest, too, and so does a rank for which the folder has another path. Throws
  // DifferentManifests on all ranks if a manifest differs, or CollectiveError if one of these ranks
  // cannot read the manifest, or if an index is missing or damaged. Collective.
  CheckpointFolder(Comm& world, std::filesystem::path step_dir);

  const std::filesystem::path& path() const { return path_; }
  // nullptr without metadata.
  const std::shared_ptr<const CheckpointMetadata>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const CheckpointMetadata> metadata_;
};

}  // namespace sy
