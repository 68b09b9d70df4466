// Checkpoints in HDF5: each tensor of the index is a dataset, each sharded one a virtual dataset.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/io/format/checkpoint_format.h"

namespace sy {

// Work of the readers of this process with mappings of slices. Tests limit it.
struct MappingCounts {
  std::atomic<std::uint64_t> decoded{0};   // mappings that were read from an index
  std::atomic<std::uint64_t> compared{0};  // boxes of mappings, and bounding boxes
};
MappingCounts& mapping_counts();

extern const CheckpointFormat hdf5_format;

}  // namespace sy
