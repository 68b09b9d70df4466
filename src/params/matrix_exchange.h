// Exchange of whole matrices between the ranks that hold their elements and one owner of each.
//
// The owner of a matrix is one of the ranks that hold a shard of it, replicas included. The owners
// balance the number of elements. Elements of a matrix travel from their ZeRO-1 ranges to its
// owner, and its update travels back. There is no divisibility condition: a range may cut a matrix
// anywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "src/params/store.h"

namespace sy {

// The exchange of one group of parameters, for one rank. Counts are elements.
//
// Copies between buffers are operations Permute of rows of `width` elements. Each index is that of
// such an operation:
//   owned range -pack-> shards -(all-to-all)-> shards of owned matrices -assemble-> matrices
//   matrices -disassemble-> shards of owned matrices -(all-to-all)-> shards -unpack-> owned range
struct MatrixExchangePlan {
  struct Matrix {
    Index rows, columns;
    Index elements() const { return rows * columns; }
  };
  std::vector<Matrix> matrices;  // that this rank owns; adjacent in memory
  // [ranks] elements of this rank's range for each owner, and elements of this rank's matrices from
  // each rank. Replicas are sent too, so the owner may receive an element several times.
  std::vector<Index> by_owner, by_rank;
  Index width = 1;  // divides all positions and sizes in the buffers; at most 4096
  std::vector<std::int32_t> pack, assemble, disassemble, unpack;

  // Returns the number of elements of all owned matrices.
  Index matrix_elements() const;
  // Returns the largest MatrixRule::scratch of the owned matrices. The rule must have a MatrixRule.
  Index scratch_elements(const UpdateRule& rule) const;
  // Returns the bytes of all buffers and indices of the exchange and of the update.
  Index bytes(const UpdateRule& rule) const;
};

// Returns the exchange of group `group` of flat_layout(). Pure function.
// The rule of the group must be over whole matrices.
MatrixExchangePlan matrix_exchange(const std::vector<ParamSpec>& specs, const Layout& layout, int rank,
                                   std::size_t group);

}  // namespace sy
