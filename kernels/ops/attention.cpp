#include "kernels/ops/attention.h"

#include <algorithm>

#include "kernels/attention_mask.h"
#include "kernels/device.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

namespace {

// Checks the operands that forward and backward share.
template <class Attention>
void check_attention(const Attention& op) {
  const ConstHeads &q = op.q, &k = op.k, &v = op.v;
  SY_ASSERT(q.dtype == DType::f32 || q.dtype == DType::bf16, "{}: q is {}, not f32 or bf16", op.name,
            info(q.dtype).name);
  SY_ASSERT(k.heads > 0 && q.heads > 0 && q.heads % k.heads == 0 && q.width > 0 && v.width > 0,
            "{}: heads of q {} for k {}, v {}", op.name, q.shape().str(), k.shape().str(), v.shape().str());
  const AttentionMask& mask = op.desc.mask;
  const bool last_sees = mask.window == 0 || mask.query_offset + q.positions - mask.window < k.positions;
  SY_ASSERT(mask.window >= 0 && mask.query_offset >= 0 && (q.positions == 0 || (k.positions > 0 && last_sees)),
            "{}: {} queries from {} on see {} keys, {} at a time", op.name, q.positions, mask.query_offset, k.positions,
            mask.window);
  SY_ASSERT(mask.causal || !mask.document_start || (mask.query_offset == 0 && q.positions == k.positions),
            "{}: documents of {} queries and {} keys without a causal mask", op.name, q.positions, k.positions);
  const SparsePattern& sparse = mask.sparse;
  SY_ASSERT(!sparse || sparse.local > 0 || sparse.block > 0 || sparse.stride > 0,
            "{}: a sparse pattern in which a query does not see itself", op.name);
  SY_ASSERT(!sparse || mask.causal || (sparse.is_local() && sparse.local > 0 && sparse.global > 0 && mask.window == 0),
            "{}: a sparse pattern without a causal mask that is not local and global, or has a window", op.name);
  SY_ASSERT(!mask.selected || (mask.causal && !sparse && mask.selected.shape().size() == 3),
            "{}: selected keys {} without a causal mask, or with a sparse pattern", op.name,
            mask.selected.shape().str());
  SY_ASSERT((sparse.stride == 0 || sparse.block == 0) && sparse.summary <= sparse.block,
            "{}: {} of blocks of {}, stride {}", op.name, sparse.summary, sparse.block, sparse.stride);
  const Operands check(op.name);
  check.contiguous_heads("q", q, q.shape(), q)
      .contiguous_heads("k", k, {q.sequences, k.positions, k.heads, q.width}, q)
      .contiguous_heads("v", v, {q.sequences, k.positions, k.heads, v.width}, q);
  SY_ASSERT(mask.causal || !mask.query_offsets, "{}: query_offsets without a causal mask", op.name);
  SY_ASSERT(!mask.causal || !mask.key_lengths, "{}: key_lengths with a causal mask", op.name);
  SY_ASSERT(!mask.prefix_end || (mask.causal && mask.window == 0 && !sparse),
            "{}: a visible prefix without a causal mask, or with a window or a pattern", op.name);
  // Only the device knows the offsets of each sequence: a query may have the position of the last
  // key.
  const Index positions = mask.query_offsets ? k.positions : mask.query_offset + q.positions;
  const ConstView bias = op.desc.bias;
  const bool one_sided = op.desc.has_one_sided_bias();
  const Index biases = one_sided ? positions : 2 * std::max(positions, k.positions) - 1;
  SY_ASSERT(!bias || (op.desc.softcap == 0 && bias.shape().size() == 2 && bias.dim(1) >= biases &&
                      (one_sided || bias.dim(1) % 2 == 1)),
            "{}: bias {} of {} positions, with cap {}", op.name, bias.shape().str(), positions, op.desc.softcap);
  SY_ASSERT(!bias || !mask.prefix_end || !one_sided, "{}: a visible prefix with a bias of earlier keys alone", op.name);
  check.optional("document_start", mask.document_start, {q.sequences, q.positions}, DType::i32)
      .optional("prefix_end", mask.prefix_end, {q.sequences, q.positions}, DType::i32)
      .optional("query_offsets", mask.query_offsets, {q.sequences}, DType::i32)
      .optional("key_lengths", mask.key_lengths, {q.sequences}, DType::i32)
      .optional("selected", mask.selected, {q.sequences, q.positions, mask.selected ? mask.selected.dim(2) : 0},
                DType::i32)
      .optional("bias", bias, {q.heads, bias ? bias.dim(1) : 0})
      .optional("sinks", op.desc.sinks, {q.heads})
      .is("out", op.out, {q.sequences, q.positions, q.heads, v.width}, q.dtype)
      .is("lse", op.lse, {q.sequences, q.heads, q.positions});
}

// FLOPs of products of visible pairs of a query and a key. of_keys: number of products with the
// width of queries and keys; of_values: those with the width of values. Only a device knows
// documents, lengths and prefixes, so each sequence counts as one document with a prefix of random
// length, and a cache as full.
template <class Attention>
double attention_flops(const Attention& op, double of_keys, double of_values) {
  const ConstHeads &q = op.q, &k = op.k, &v = op.v;
  const ConstView selected = op.desc.mask.selected;
  double pairs = visible_pairs(op.desc.mask, q.positions, k.positions, selected ? selected.dim(2) : k.positions);
  if (op.desc.mask.prefix_end) pairs += mean_prefix_pairs(q.positions);
  return 2 * (of_keys * static_cast<double>(q.width) + of_values * static_cast<double>(v.width)) *
         static_cast<double>(q.sequences) * static_cast<double>(q.heads) * pairs;
}

}  // namespace

// Each visible pair of a query and a key takes part in two products in forward. In backward these
// are five, because the scores are computed again.

void check(const AttentionForward& op) {
  check_attention(op);
  SY_ASSERT(!op.largest || !op.desc.mask.query_offsets, "{}: the largest scores of a cache", op.name);
  Operands(op.name).optional("largest", op.largest, op.lse.shape());
}

Cost AttentionForward::cost() const {
  return Cost{.flops = attention_flops(*this, 1, 1), .size = q.width}.reads(q, k, v).writes(out, lse, largest);
}

void run(Device& device, const AttentionForward& op) {
  check(op);
  if (op.out.elements() == 0) return;
  AttentionForward used = op;
  // Keys after the last query, as in a cache that is not full, are not read.
  const AttentionMask& mask = op.desc.mask;
  if (mask.causal && !mask.query_offsets)
    used.k.positions = used.v.positions = std::min(op.k.positions, mask.query_offset + op.q.positions);
  device.execute(used);
}

void check(const AttentionBackward& op) {
  check_attention(op);
  SY_ASSERT(!op.desc.mask.query_offsets, "{}: query_offsets with a cache of {}", op.name, op.k.shape().str());
  Operands(op.name)
      .is("dout", op.dout, op.out.shape(), op.q.dtype)
      .contiguous_heads("dq", op.dq, op.q.shape(), op.q)
      .contiguous_heads("dk", op.dk, op.k.shape(), op.q)
      .contiguous_heads("dv", op.dv, op.v.shape(), op.q);
}

Cost AttentionBackward::cost() const {
  return Cost{.flops = attention_flops(*this, 3, 2), .size = q.width}.reads(dout, q, k, v, out, lse).writes(dq, dk, dv);
}

void check(const AttentionBackwardLearned& op) {
  check_attention(op);
  SY_ASSERT((op.desc.bias || !op.dbias) && (op.desc.sinks || !op.dsinks),
            "the gradient of an empty bias or of empty sinks");
  Operands(op.name)
      .is("dout", op.dout, op.out.shape(), op.q.dtype)
      .optional("dbias", op.dbias, op.desc.bias ? op.desc.bias.shape() : Shape{})
      .optional("dsinks", op.dsinks, {op.q.heads});
}

Cost AttentionBackwardLearned::cost() const {
  Cost cost;
  // Only the gradient of biases computes the scores again.
  if (dbias) cost = Cost{.flops = attention_flops(*this, 1, 1), .size = q.width}.reads(q, k, v);
  return cost.reads(dout, out, lse).updates(dbias, dsinks);
}

void check(const KvCacheAppend& op) {
  const ConstHeads &x = op.x, y = op.y;
  SY_ASSERT(x.positions <= y.positions, "{}: {} to {}", op.name, x.shape().str(), y.shape().str());
  Operands(op.name)
      .contiguous_heads("x", x, x.shape(), y)
      .contiguous_heads("y", y, {x.sequences, y.positions, x.heads, x.width}, x)
      .is("offsets", op.offsets, {x.sequences}, DType::i32);
}

}  // namespace sy::ops
