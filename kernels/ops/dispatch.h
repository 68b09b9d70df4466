// Dispatch of tokens to the ranks of their experts, and the order of their rows there.
#pragma once

#include <algorithm>

#include "kernels/ops/operation.h"

namespace sy {

// Partition of experts over ep * etp ranks. The etp ranks of an ep rank hold the same range of
// consecutive physical experts, which is equally long for each ep rank. Each of them holds a shard
// of every expert of the range, so a token goes to all of them.
struct ExpertPartition {
  Index ep = 1, etp = 1;
  // [E] i32 physical expert of each logical expert; empty: both are equal
  ConstView logical_to_physical{};
  Index first_expert = 0;  // first of the E physical experts, if they are a range of more
  Index ranks() const { return ep * etp; }
  // Largest number of ep ranks that a token with k experts can go to.
  Index max_ep_ranks(Index k) const { return std::min(k, ep); }
};

// Group limit and load of a router, for a device that does not compute the choices of tokens.
struct ExpectedRouting {
  // A token's experts are in `topk_groups` of `groups` groups (RouteDesc). Equal: no limit.
  Index groups = 1, topk_groups = 1;
  // [E] i32 physical expert of each logical expert of the model; empty: both are equal
  ConstView logical_to_physical{};
  // [E] i32 assignments of each logical expert of the model; empty if they are not known yet
  ConstView tokens_per_expert{};
};

// Messages of dispatched tokens: the metadata of a token travels in front of its values.
//
// A row of a message: k physical experts (i32), k weights (f32), then `width` values. Values begin
// and rows end at multiples of 16 bytes; zeros fill the gaps.
struct TokenRow {
  Index k, width;
  DType dtype;  // of the values
  // Column of the first value, and number of columns, in elements of `dtype`.
  Index first_value() const { return rounded_up(2 * k * size_of(DType::i32)); }
  Index columns() const { return first_value() + rounded_up(width * size_of(dtype)); }

 private:
  Index rounded_up(Index bytes) const { return (bytes + 15) / 16 * 16 / size_of(dtype); }
};

namespace ops {

// Builds the dispatch layout: the ranks that receive a copy of each token, and the order of the
// copies. A token is sent once to each rank of each ep rank that holds one of its dispatched
// experts. An expert is dispatched if its assignment is not dropped. Copies are ordered by (ep
// rank, etp rank, token). There are N copies, at most n = T * min(k, ep) * etp.
struct DispatchLayout {
  static constexpr std::string_view name = "dispatch_layout";
  // [T, k] i32 logical experts; -1 of padding, which is not dispatched. Without a mask they may be
  // the `physical_experts` of an outer partition.
  ConstView experts;
  // [T, k] i32. If empty, the E experts from partition.first_expert on are dispatched.
  ConstView dispatch_mask = {};
  ExpertPartition partition = {};
  // Read by the dry device alone. Without a mask, it has the tokens per expert of the outer
  // partition.
  ExpectedRouting expected = {};
  // [T, k] i32 physical expert, counted from partition.first_expert; -1 if not dispatched
  View physical_experts;
  // Both may be empty.
  View tokens = {};  // [n] i32 token of each copy; -1 from copy N on
  // [T, n / T] i32 copies of each token; -1 after the last. Order: the choice that first requires
  // the ep rank, then the etp rank.
  View row_id_map = {};
  // [ep * etp, 1 + E / ep] i32, a row for each rank: copies for it, then assignments of each of its
  // physical experts
  View counts;
  View tokens_per_expert;  // [E] i32 assignments of each logical expert
  bool is_empty() const { return experts.elements() == 0; }
  auto zero_if_empty() const { return std::array{counts, tokens_per_expert}; }
  Cost cost() const { return Cost().reads(experts, dispatch_mask).writes(physical_experts, tokens, row_id_map); }
};

// Builds the permutation of rows: sorts assignments by (physical expert, token). It covers the L
// physical experts from `first_expert` on; other assignments are ignored. An assignment has the
// number a = token * k + choice. There are R rows, at most n. Each row may get the weight of its
// assignment.
struct BuildPermutation {
  static constexpr std::string_view name = "build_permutation";
  ConstView physical_experts;  // [T, k] i32 of DispatchLayout
  Index first_expert = 0;
  ConstView weights = {};  // [T, k], or empty
  View assignments = {};   // [n] i32 assignment of each row, or empty; -1 from row R on
  View tokens;             // [n] i32 token of each row; -1 from row R on
  View row_id_map;         // [T, k] i32 row of each assignment, or -1
  View offsets;            // [L + 1] i32 first row of each physical expert, and R
  View row_weights = {};   // [n] weight of each row; unchanged from row R on. Empty without weights
  bool is_empty() const { return physical_experts.elements() == 0; }
  auto zero_if_empty() const { return std::array{offsets}; }
  Cost cost() const {
    return Cost().reads(physical_experts, row_weights).writes(assignments, tokens, row_id_map, row_weights);
  }
};

// Row r of y holds the metadata and the values of token index[r]. If the index is -1, the row keeps
// its value.
struct PackTokens {
  static constexpr std::string_view name = "pack_tokens";
  ConstView physical_experts;  // [T, k] i32
  ConstView weights;           // [T, k]
  ConstView x;                 // [T, D] c
  ConstView index;             // [n] i32
  View y;                      // [n, TokenRow::columns()] c
  Cost cost() const { return Cost().reads(index, y).writes(y); }
};

// Reads the metadata of rows that PackTokens wrote.
struct UnpackTokens {
  static constexpr std::string_view name = "unpack_tokens";
  ConstView x;            // [n, TokenRow::columns()] c
  View physical_experts;  // [n, k] i32
  View weights = {};      // [n, k], or empty
  bool is_empty() const { return physical_experts.elements() == 0; }
  Cost cost() const { return Cost().reads(physical_experts, weights).writes(physical_experts, weights); }
};

}  // namespace ops

}  // namespace sy
