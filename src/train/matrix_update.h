// Update of whole matrices whose elements are in the ZeRO-1 ranges of several ranks.
#pragma once

#include <vector>

#include "dist/comm.h"
#include "src/params/matrix_exchange.h"

namespace sy {

// Computes the directions of the matrices of one group of parameters (MatrixRule::direction).
class MatrixUpdate {
 public:
  // Computes the exchange and allocates its buffers. Throws NoMemory.
  // - store, world: must outlive this object; `world` has all ranks of the layout, and is for
  //   buffers of the store's device
  // - group: index in FlatLayout::groups, of a rule over whole matrices
  MatrixUpdate(ParamStore& store, std::size_t group, Comm& world);

  // Gathers each matrix to its owner, which computes its direction, and returns the directions to
  // the ranges of the ranks. Padding stays as it is. Collective. The host of an owner waits once
  // for the device.
  // x: [n / shards] f32, the owned range of the group. In: the matrices. Out: their directions.
  void run(View x);

 private:
  Device& device_;
  Comm& world_;
  const UpdateRule& rule_;
  MatrixExchangePlan exchange_;
  Tensor shards_, owned_shards_, matrices_, scratch_;  // f32
  Tensor squares_;                                     // [number of matrices] f64
  Tensor pack_, assemble_, disassemble_, unpack_;      // i32
  std::vector<View> views_;                            // [rows, columns] of each owned matrix
};

}  // namespace sy
