// Operands of attention's kernels, and the sizes and the mask of a call.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cuda/device.h"

namespace sy::cuda::attention {

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.69314718055994530942f;

using Span = PositionRange<int>;

// The work of a block: a tile of one head of one sequence. Tiles count from the one with the most
// visible pairs of a query and a key.
struct BlockWork {
  int tile, b, head;
};
// blocks: number of blocks, for all heads and sequences. heads: heads of a sequence.
// Blocks start in the order of their numbers. So the heaviest tiles of all heads go first, and
// light ones fill the gaps at the end. In causal attention over 4096 tokens, 132 multiprocessors
// are then busy for at least 97 % of the time (tests/cuda_host/test_block_order.cpp).
__host__ __device__ inline BlockWork block_work(int block, int blocks, int tiles, int heads) {
  const int pairs = blocks / tiles, pair = block % pairs;
  return {block / pairs, pair / heads, pair % heads};
}

// Number of blocks of key_gradients that share the query heads of a kv head. The shape alone
// decides it, so that a result does not depend on the card. blocks: number of blocks without
// splits. The aim is two blocks for each multiprocessor of an H100, with equal numbers of heads.
constexpr int head_splits(Index blocks, int heads_per_kv) {
  constexpr Index wanted_blocks = 2 * 132;
  if (blocks == 0 || blocks >= wanted_blocks) return 1;
  const int needed = static_cast<int>(std::min<Index>(heads_per_kv, (wanted_blocks + blocks - 1) / blocks));
  for (int splits = needed; splits <= 2 * needed; ++splits)
    if (heads_per_kv % splits == 0) return splits;
  return needed;
}
// First query head of a split, among those that read a kv head.
__host__ __device__ constexpr int first_of_split(int split, int splits, int heads_per_kv) {
  return static_cast<int>(Index{heads_per_kv} * split / splits);
}
// Its inverse, for any head of the split.
__host__ __device__ constexpr int split_of(int head, int splits, int heads_per_kv) {
  return ((head + 1) * splits - 1) / heads_per_kv;
}

// The vectors of one head in an In or an Out: `count` vectors of `width` elements, `stride`
// elements apart.
template <class P>
struct HeadRows {
  P x;
  Index stride;
  int count, width;
};

// Heads as a kernel takes them, in an In or an Out. launch() makes them of Heads.
template <class P>
struct HeadsOf : HeadsLayout {
  P x;

  template <class Byte>
  explicit HeadsOf(const BasicHeads<Byte>& from) : HeadsLayout(from), x(argument_as<P>(from.span())) {}
  __device__ HeadRows<P> rows(int b, int head) const {
    return {x + (b * sequence_stride + head * head_stride), token_stride, static_cast<int>(positions),
            static_cast<int>(width)};
  }
};
template <class T>
using InHeads = HeadsOf<decltype(in<T>(ConstView()))>;
template <class T>
using OutHeads = HeadsOf<decltype(out<T>(View()))>;

// Whether all vectors can be moved in packs.
template <class T>
bool in_packs(ConstHeads x) {
  constexpr int pack = pack_size<T>;
  return aligned<T, pack>(x.span(), x.width) && x.token_stride % pack == 0 && x.sequence_stride % pack == 0 &&
         (x.heads <= 1 || x.head_stride % pack == 0);
}

// Calls f(T{}, PackSize<n>{}) for heads of one type. n is the number of elements in 16 bytes if all
// vectors can be moved in packs, otherwise 1.
template <class F>
void with_type_and_packs(ConstHeads x, ConstHeads y, F f) {
  with_type(x.dtype, [&]<class T>(T zero) {
    in_packs<T>(x) && in_packs<T>(y) ? f(zero, PackSize<pack_size<T>>{}) : f(zero, PackSize<1>{});
  });
}

// Scores, in units of log 2, from products x of queries and keys: outer * x. If `capped`: outer *
// tanh(inner * x).
struct ScoreScaling {
  bool capped;
  float scale, inner, outer;
  // Converts a natural logarithm to units of x: a sink, and a bias if scores are not capped.
  float of_log;

  explicit ScoreScaling(const AttentionDesc& desc)
      : capped(desc.softcap > 0),
        scale(desc.scale),
        inner(capped ? desc.scale / desc.softcap : 0.0f),
        outer(log2_e * (capped ? desc.softcap : desc.scale)),
        of_log(log2_e / outer) {
    // The largest product is that of the largest score.
    SY_ASSERT(scale > 0, "scores times {}", scale);
  }
};

// Operands of general kernels; each may be empty. Other kernels get nullptr instead, as they need
// no operand of these: sequences of one document, full patterns, scores without a bias. The look-up
// alone takes more registers than wide heads have left.
struct GeneralOperands {
  In<std::int32_t> document_start;  // [B, Sq]
  In<float> bias;                   // [H, n]
  In<float> sinks;                  // [H]
  In<std::int32_t> key_lengths;     // [B]
  In<std::int32_t> prefix_end;      // [B, Sq]
  In<std::int32_t> selected;        // [B, Sq, n]
  int key_end = 0;                  // of a sequence, if there are key_lengths

  static bool is_needed(const AttentionDesc& desc) {
    const AttentionMask& mask = desc.mask;
    return mask.document_start || mask.sparse || mask.key_lengths || mask.prefix_end || mask.selected || desc.bias ||
           desc.sinks;
  }
  explicit GeneralOperands(const AttentionDesc& desc)
      : document_start(in<std::int32_t>(desc.mask.document_start)),
        bias(in<float>(desc.bias)),
        sinks(in<float>(desc.sinks)),
        key_lengths(in<std::int32_t>(desc.mask.key_lengths)),
        prefix_end(in<std::int32_t>(desc.mask.prefix_end)),
        selected(in<std::int32_t>(desc.mask.selected)) {}
  // The operands of sequence b, which AttentionProblem's functions take.
  template <class Sizes>
  __device__ GeneralOperands of(int b, const Sizes& z) const {
    GeneralOperands slice = *this;
    if (z.documents) slice.document_start = document_start + Index{b} * z.Sq;
    if (z.lengths) slice.key_end = key_lengths[b];
    if (z.prefixes) slice.prefix_end = prefix_end + Index{b} * z.Sq;
    if (z.num_selected > 0) slice.selected = selected + Index{b} * z.Sq * z.num_selected;
    return slice;
  }
};
template <bool general, class Sizes>
__device__ auto of_sequence(const GeneralOperands& all, int b, const Sizes& z) {
  if constexpr (general)
    return all.of(b, z);
  else
    return nullptr;
}

// Sizes of a call and its attention mask. Sizes, positions and heads have 32 bits, which saves
// registers; element indices have 64.
struct AttentionProblem : MaskGeometry<int> {
  int B, H, K;
  int packs;  // whether all vectors can be moved in packs
  // For general kernels: whether there are document starts, lengths of keys, visible prefixes and
  // sinks, the number of biases per head, and whether there is a sparse pattern.
  int documents, lengths, prefixes, sinks, biases, sparse;
  int num_selected;  // length of each query's list of keys; 0 without lists
  int bias_origin;   // AttentionDesc::bias_origin, if there are biases
  int skip_from;     // first key from which on a query sees its latest keys alone

  AttentionProblem(const AttentionDesc& desc, ConstHeads q, ConstHeads k)
      : MaskGeometry(desc.mask, q.positions, k.positions),
        B(checked(q.sequences)),
        H(checked(q.heads)),
        K(checked(k.heads)),
        packs(false),
        documents(desc.mask.document_start.present()),
        lengths(desc.mask.key_lengths.present()),
        prefixes(desc.mask.prefix_end.present()),
        sinks(desc.sinks.present()),
        biases(desc.bias ? checked(desc.bias.dim(1)) : 0),
        sparse(static_cast<bool>(pattern)),
        num_selected(desc.mask.selected ? checked(desc.mask.selected.dim(2)) : 0),
        bias_origin(desc.bias ? checked(desc.bias_origin()) : 0),
        skip_from(pattern.is_local() && !documents ? pattern.global : 2 * limit) {}

  __device__ int heads_per_kv() const { return H / K; }

  // MaskGeometry's ranges, within the documents of a sequence. Keys are also within its length.
  // `general`: GeneralOperands of the sequence, or nullptr. Computed once or twice for a tile of
  // rows.
  template <class G>
  __device__ Span keys(const G& general, int query) const {
    Span seen = MaskGeometry::keys(query);
    if constexpr (!std::is_null_pointer_v<G>) {
      if (query < Sq) seen.begin = max(seen.begin, origin(general, query));
      if (documents && !is_causal() && query < Sq)
        seen.end = min(seen.end, first_above(general.document_start, origin(general, query), Sq));
      if (prefixes && query < Sq) seen.end = max(seen.end, static_cast<int>(general.prefix_end[query]));
      if (lengths) seen.end = min(seen.end, general.key_end);
    }
    return seen;
  }
  template <class G>
  __device__ Span queries(const G& general, int key) const {
    Span seen = MaskGeometry::queries(key);
    if constexpr (!std::is_null_pointer_v<G>) {
      if (prefixes) seen.begin = first_above(general.prefix_end, key, min(seen.begin, Sq));
      if (!documents) return seen;
      seen.end = first_above(general.document_start, key, seen.end);
      if (!is_causal() && key < Sk) seen.begin = max(seen.begin, origin(general, key));
    }
    return seen;
  }
  // MaskGeometry::sees, or the key is in the visible prefix of the query's document. False if there
  // is no such query.
  template <class G>
  __device__ bool sees(const G& general, int query, int key) const {
    bool seen = (query < Sq) & MaskGeometry::sees(query, key);
    if constexpr (!std::is_null_pointer_v<G>)
      if (prefixes && !seen && query < Sq) seen = key < general.prefix_end[query];
    return seen;
  }
  // Whether some query may see a later key.
  __host__ __device__ bool sees_later_keys() const { return !is_causal() || prefixes; }
  // First of the queries before `end` whose value is above this key, or `end`. The values must not
  // decrease.
  __device__ int first_above(const In<std::int32_t>& values, int key, int end) const {
    return partition_point(0, end, [&](int query) { return values[query] <= key; });
  }
  // First key of a query's document.
  __device__ int origin(const GeneralOperands& general, int query) const {
    return documents ? static_cast<int>(general.document_start[query]) : 0;
  }
  // Whether the list of a query has the key. It is in ascending order, and -1 follows the last key.
  __device__ bool is_selected(const GeneralOperands& general, int query, int key) const {
    const auto list = general.selected + Index{query} * num_selected;
    const int at = partition_point(0, num_selected, [&](int i) { return list[i] >= 0 && list[i] < key; });
    return at < num_selected && list[at] == key;
  }
  // Whether documents, lengths, lists and patterns let a query see a key that its position lets it
  // see. Computed for every element of a tile that is only partly visible.
  __device__ bool allows(const GeneralOperands& general, int query, int key) const {
    const int first = origin(general, query), p = query_offset + query - first, j = key - first;
    if (lengths && key >= general.key_end) return false;
    if (num_selected > 0 && !is_selected(general, query, key)) return false;
    if (documents && !is_causal() && origin(general, key) != first) return false;
    if (j < 0 || !sparse) return j >= 0;
    return pattern.sees(p, j);
  }
  // Whether a tile needs checks or biases by element even if all its keys are in range of all its
  // queries.
  template <class G>
  __device__ bool needs_element_checks(const G&) const {
    return !std::is_null_pointer_v<G> && (sparse || lengths || biases > 0 || num_selected > 0);
  }
  // Bias of a score, in units of the product of query and key.
  __device__ float bias(const GeneralOperands& general, const ScoreScaling& scores, int head, int query,
                        int key) const {
    if (biases == 0) return 0;
    return scores.of_log * general.bias[Index{head} * biases + bias_origin - (query_offset + query - key)];
  }
  // First tile of `cols` keys, at `key` or later, that queries from `first` on may see.
  template <class G>
  __device__ int skip_masked(const G&, int key, int cols, int first) const {
    if constexpr (!std::is_null_pointer_v<G>) {
      const int near = query_offset + first - pattern.local + 1;
      if (key >= skip_from && key + cols <= near) return near / cols * cols;
    }
    return key;
  }
};

}  // namespace sy::cuda::attention
