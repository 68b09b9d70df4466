// Checkpoints in HDF5: each tensor of the index is a dataset, each sharded one a virtual dataset.
#pragma once

#include "src/io/format/checkpoint_format.h"

namespace sy {

extern const CheckpointFormat hdf5_format;

}  // namespace sy
