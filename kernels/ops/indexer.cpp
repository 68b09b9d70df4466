#include "kernels/ops/indexer.h"

#include "kernels/attention_mask.h"
#include "kernels/ops/operands.h"

namespace sy::ops {

namespace {

// Checks the operands of scores. Returns their number of columns.
// selected: [T, n], or empty
Index check_scores(const Operands& check, const IndexScores& s, ConstView selected = {}) {
  check.real("q", s.q, 3).dims("k", s.k, 3, s.q.dtype());
  const Index T = s.q.dim(0), H = s.q.dim(1), w = s.q.dim(2), B = s.k.dim(0), Sk = s.k.dim(1);
  check.same("weights", s.weights, {T, H}, s.q).same("k", s.k, {B, Sk, w}, s.q);
  const AttentionMask& mask = s.mask;
  SY_ASSERT(H > 0 && w > 0 && s.first >= 0 && s.first + T <= B * s.queries, "{}: {} queries from {} on, of {} in {}",
            check.operation(), T, s.first, s.queries, s.k.shape().str());
  SY_ASSERT(mask.causal && !mask.sparse && !mask.key_lengths && !mask.selected,
            "{}: a mask that is not of index scores", check.operation());
  SY_ASSERT(mask.query_offsets || T == 0 || mask.query_offset + s.queries <= Sk,
            "{}: {} queries from {} on see {} keys", check.operation(), s.queries, mask.query_offset, Sk);
  check.optional("document_start", mask.document_start, {B, s.queries}, DType::i32)
      .optional("query_offsets", mask.query_offsets, {B}, DType::i32);
  const Index n = selected ? selected.dim(1) : Sk;
  check.optional("selected", selected, {T, n}, DType::i32);
  return n;
}

// Returns the cost of `products` products of each query and key. most: number of keys of a query
Cost scores_cost(const IndexScores& s, Index most, double products) {
  const double keys =
      s.queries > 0 ? visible_pairs(s.mask, s.queries, s.k.dim(1), most) / static_cast<double>(s.queries) : 0;
  return Cost{.flops = 2 * products * static_cast<double>(s.q.elements()) * keys, .size = s.q.dim(2)}.reads(
      s.q, s.weights, s.k);
}

}  // namespace

void check(const TopkKeys& op) {
  const Operands check = Operands(op.name).dims("selected", op.selected, 2, DType::i32);
  check_scores(check, op.scores, op.selected);
}

Cost TopkKeys::cost() const {
  return scores_cost(scores, scores.k.dim(1), 1).writes(selected);
}

void check(const AttentionKeySums& op) {
  const ConstHeads &q = op.q, &k = op.k;
  const AttentionMask& mask = op.desc.mask;
  const Operands check(op.name);
  SY_ASSERT(k.heads > 0 && q.heads > 0 && q.heads % k.heads == 0, "{}: heads of q {} for k {}", op.name,
            q.shape().str(), k.shape().str());
  SY_ASSERT(mask.causal && !mask.sparse && !mask.key_lengths && !mask.query_offsets && !op.desc.bias,
            "{}: scores that the sums do not have", op.name);
  SY_ASSERT(mask.query_offset + q.positions <= k.positions, "{}: {} queries of {} keys", op.name, q.positions,
            k.positions);
  const Index n = mask.selected ? mask.selected.dim(2) : k.positions;
  check.contiguous_heads("q", q, q.shape(), q)
      .contiguous_heads("k", k, {q.sequences, k.positions, k.heads, q.width}, q)
      .is("lse", op.lse, {q.sequences, q.heads, q.positions})
      .optional("document_start", mask.document_start, {q.sequences, q.positions}, DType::i32)
      .optional("selected", mask.selected, {q.sequences, q.positions, n}, DType::i32)
      .is("sums", op.sums, {q.sequences * q.positions, n});
}

Cost AttentionKeySums::cost() const {
  const double pairs =
      static_cast<double>(q.sequences * q.heads) * visible_pairs(desc.mask, q.positions, k.positions, sums.dim(1));
  return Cost{.flops = 2 * static_cast<double>(q.width) * pairs, .size = q.width}.reads(q, k, lse).writes(sums);
}

void check(const IndexerLoss& op) {
  const Operands check(op.name);
  const Shape shape{op.scores.q.dim(0), check_scores(check, op.scores, op.selected)};
  check.is("attention", op.attention, shape).is("dscores", op.dscores, shape).is("loss", op.loss, {1}, DType::f64);
}

Cost IndexerLoss::cost() const {
  return scores_cost(scores, dscores.dim(1), 1).reads(attention).writes(dscores).updates(loss);
}

void check(const IndexerBackward& op) {
  const Operands check(op.name);
  const IndexScores& s = op.scores;
  check.is("dscores", op.dscores, {s.q.dim(0), check_scores(check, s, op.selected)})
      .same("dq", op.dq, s.q.shape(), s.q)
      .same("dweights", op.dweights, s.weights.shape(), s.q)
      .same("dk", op.dk, s.k.shape(), s.q);
}

// The scores are computed again.
Cost IndexerBackward::cost() const {
  return scores_cost(scores, dscores.dim(1), 3).reads(dscores).writes(dq, dweights, dk);
}

}  // namespace sy::ops
