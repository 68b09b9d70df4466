// Matrix products (GEMMs) of linear layers y = x w^T, and weights packed for them.
#pragma once

#include <concepts>

#include "kernels/ops/operation.h"
#include "kernels/weight_format.h"

namespace sy {

// A weight in the form that the GEMMs of one pass read.
struct PackedWeight {
  explicit operator bool() const { return elements.present(); }

  WeightFormat format = WeightFormat::native;
  ConstView elements = {};  // [packed_weight_bytes] u8; empty if the weight is not packed
  ConstView scales = {};    // [ScaleBlock::scales] f32; empty if the format has no scales
};

// A weight matrix, or a stack of E matrices, as an operand of a GEMM. A GEMM reads the packed
// weight for its pass if there is one (ops::PackWeight), otherwise `values`.
struct Weight {
  Weight() = default;
  template <std::convertible_to<ConstView> V>
  Weight(const V& weight) : values(weight) {}
  const PackedWeight& packed(GemmPass pass) const { return pass == GemmPass::fprop ? packed_fprop : packed_dgrad; }
  // The elements that a GEMM of this pass reads.
  ConstView read(GemmPass pass) const { return packed(pass) ? packed(pass).elements : values; }

  ConstView values;  // [N, Q] or [E, N, Q] c
  PackedWeight packed_fprop, packed_dgrad;
};

namespace ops {

class Operands;

// c = op(a) op(b) + addend, or c += op(a) op(b). op(a): [M, Q], op(b): [Q, N]; op transposes a
// matrix or does nothing.
struct Gemm {
  static constexpr std::string_view name = "gemm";
  ConstView a;            // [M, Q] c; if transposed: [Q, M]
  Weight b;               // [Q, N] c; if transposed: [N, Q]
  ConstView addend = {};  // [M, N] of the type of c, or empty. It may be c, which means accumulate.
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // requires an empty addend
  View c;                   // [M, N] c or f32

  Index depth() const { return a.dim(transpose_a ? 0 : 1); }  // Q
  // If b is transposed, its packed form for fprop is read, otherwise that for dgrad.
  GemmPass pass() const { return transpose_b ? GemmPass::fprop : GemmPass::dgrad; }
  Cost cost() const;
};
void run(Device& device, const Gemm& op);

// Packs a weight for the GEMMs of one pass. See Device::packed_weight_bytes.
struct PackWeight {
  static constexpr std::string_view name = "pack_weight";
  ConstView weight;  // [N, Q] or [E, N, Q] c
  GemmPass pass;
  WeightFormat format = WeightFormat::native;
  View packed;       // [packed_weight_bytes] u8
  View scales = {};  // [ScaleBlock::scales] f32; empty if the format has no scales
  Cost cost() const { return Cost().reads(weight).writes(packed, scales); }
};
void run(Device& device, const PackWeight& op);

// Checks the packed weight for a pass, if there is one: its format, its size and its scales.
void check_packed(const Operands& check, const Device& device, const Weight& w, GemmPass pass);

}  // namespace ops

}  // namespace sy
