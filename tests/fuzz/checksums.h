// Checksums of HDF5's metadata.
#pragma once

namespace sy::fuzz {

// While an object lives, HDF5 finds every checksum of its metadata right, as if the writer of the
// file had forged them. Without it, HDF5 refuses nearly every changed file at once.
class ForgedChecksums {
 public:
  ForgedChecksums();
  ~ForgedChecksums();
  ForgedChecksums(const ForgedChecksums&) = delete;
};

}  // namespace sy::fuzz
