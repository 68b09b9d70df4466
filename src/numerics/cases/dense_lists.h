// Small cases of the operations on rows, weights and activations. Sizes are odd, and some exceed a
// vector, a tile and a block of the kernels. Only operations.cpp includes this file.
#pragma once

#include "kernels/ops/all.h"
#include "src/numerics/cases/batch_norm.h"
#include "src/numerics/cases/cases.h"
#include "src/numerics/cases/elementwise.h"
#include "src/numerics/cases/ffn.h"
#include "src/numerics/cases/gemm.h"
#include "src/numerics/cases/norm.h"

namespace sy::numerics {

inline void add_memory(Cases& cases) {
  for (Index n : vector_sizes) {
    cases.add<ops::Fill, FillCase>(n);
    cases.add<ops::Copy, CopyCase>(n);
    cases.add<ops::Convert, ConvertCase>(n);
    cases.add<ops::Add, AddCase>(n);
    cases.add<ops::Scale, ScaleCase>(n);
    cases.add<ops::SumSquares, SumSquaresCase>(n);
    for (DType type : {DType::f32, DType::bf16}) cases.add<ops::BitSum, BitSumCase>(n, type);
  }
}

inline void add_gemms(Cases& cases) {
  for (const auto& [m, n, q] : {std::array<Index, 3>{5, 7, 9}, {67, 45, 130}, {21, 33, 600}})
    for (int flags = 0; flags < 8; ++flags)
      for (DType c : {OpCase::compute, DType::f32}) {
        const GemmCase::Form form{(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
        cases.add<ops::Gemm, GemmCase>(form, m, n, q, c);
        if (m == 67) cases.add<ops::Gemm, SumCase>(form, m, n, q, c);
      }
  for (GemmPass pass : {GemmPass::fprop, GemmPass::dgrad})
    for (const auto& [rows, n, q] : {std::array<Index, 3>{1, 1, 1}, {61, 45, 67}, {33, 130, 400}})
      cases.add<ops::PackWeight, PackWeightCase>(pass, rows, n, q);

  const std::vector<Index> experts_rows[] = {{5}, {1, 0, 2}, {0, 7, 0, 61, 1, 0}};
  constexpr std::pair<Index, Index> weights[] = {{1, 1}, {33, 65}};
  for (const auto& counts : experts_rows) {
    for (const auto& [n, q] : weights) {
      cases.add<ops::GroupedGemm, GroupedGemm>(counts, n, q);
      cases.add<ops::GroupedGemmDgrad, GroupedGemmInput>(counts, n, q);
      cases.add<ops::GroupedGemmWgrad, GroupedGemmWeight<true>>(counts, n, q);
    }
    for (bool scaled : {false, true}) {
      cases.add<ops::GroupedBiasForward, GroupedBiasForward>(counts, 33, 7, 65, scaled);
      cases.add<ops::GroupedBiasBackward, GroupedBiasBackward>(counts, 33, 7, 65, scaled);
    }
  }
  for (const auto& counts : experts_rows)
    for (const auto& [n, q] : weights) cases.add<ops::GroupedGemmWgrad, GroupedGemmWeight<false>>(counts, n, q);
  for (Rows s : rows_of_elements) {
    cases.add<ops::BiasForward, BiasForward>(s);
    cases.add<ops::BiasBackward, BiasBackward>(s);
  }
}

inline void add_norms(Cases& cases) {
  for (const NormDesc& desc : {NormDesc{NormKind::rmsnorm, 1e-5f, 1}, {NormKind::layernorm, 1e-5f, 0}})
    for (Rows s : rows_of_elements) {
      const bool biased = desc.kind == NormKind::layernorm;
      for (double deviation : {1.0, 1e4}) cases.add<ops::NormForward, NormForward>(desc, s, biased, deviation);
      if (s.d > 1) cases.add<ops::NormBackward, NormBackward>(desc, s, biased);
    }
  for (Rows s : rows_of_elements) {
    for (RealTokens real : {RealTokens::all, RealTokens::some, RealTokens::none}) {
      for (double deviation : {1.0, 1e4}) cases.add<ops::BatchNormSums, BatchNormSums>(s, real, deviation);
      for (bool biased : {false, true})
        if (real != RealTokens::none) cases.add<ops::BatchNormGradientSums, BatchNormGradientSums>(s, real, biased);
      cases.add<ops::BatchNormBackward, BatchNormBackward>(s, real);
    }
    for (bool biased : {false, true}) cases.add<ops::BatchNormForward, BatchNormForward>(s, biased);
  }
  for (Index d : {Index{1}, Index{67}}) {
    cases.add<ops::BatchNormMoments, BatchNormMoments>(d, -1.0, true);
    for (double count : {0.0, 1.0, 2.0, 1001.0})
      for (bool averaged : {false, true}) cases.add<ops::BatchNormMoments, BatchNormMoments>(d, count, averaged);
  }
}

template <class Operation, class Case>
void add_head_qk_norms(Cases& cases, RopePairs pairs) {
  cases.add<Operation, Case>(5, HeadQkNorm{3, 1, 1e-5f, pairs}, 1, 7, 0);
  cases.add<Operation, Case>(6, HeadQkNorm{4, 2, 1e-5f, pairs, 1, NormKind::layernorm, true}, 2, 10, 3);
  cases.add<Operation, Case>(9, HeadQkNorm{2, 1, 1e-5f, pairs, 1}, 1, 64, 32);
}
template <class Operation, class Case>
void add_projection_qk_norms(Cases& cases, Index ranks) {
  cases.add<Operation, Case>(5, 7, 3, 3, ranks);
  cases.add<Operation, Case>(6, 40, 20, 20, ranks);
}
inline void add_rotations_and_qk_norms(Cases& cases) {
  for (RopePairs pairs : {RopePairs::half, RopePairs::interleaved}) {
    for (bool inverse : {false, true}) {
      cases.add<ops::Rope, RopeCase>(7, 3, 10, 2, 3, inverse, pairs);
      cases.add<ops::Rope, RopeCase>(20, 3, 64, 2, 32, inverse, pairs);
    }
    add_head_qk_norms<ops::HeadQkNormForward, HeadQkNormForward>(cases, pairs);
    add_head_qk_norms<ops::HeadQkNormBackward, HeadQkNormBackward>(cases, pairs);
  }
  for (Index ranks : {1, 3}) {
    add_projection_qk_norms<ops::ProjectionQkNormSums, ProjectionQkNormSums>(cases, ranks);
    add_projection_qk_norms<ops::ProjectionQkNormForward, ProjectionQkNormForward>(cases, ranks);
    add_projection_qk_norms<ops::ProjectionQkNormBackward, ProjectionQkNormBackward>(cases, ranks);
  }
}

inline void add_ffns(Cases& cases) {
  for (Activation act : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu2,
                         Activation::sigmoid, Activation::identity, Activation::hardtanh, Activation::silu_clamped})
    for (bool gated : {false, true}) {
      const FfnActivation a{act, gated, 1.3f, 0.7f};
      cases.add<ops::ActivationForward, ActivationForward>(a, Rows{19, 33}, gated, 1.0);
      for (bool activated : {false, true})
        cases.add<ops::ActivationBackward, ActivationBackward>(a, Rows{7, 5}, gated, activated);
    }
  for (const FfnActivation& a : {FfnActivation{Activation::silu, true, 1.3f}, {Activation::gelu, false}})
    for (const FfnSizes& sizes : {FfnSizes{{}, 21, 6, 37}, {{0, 7, 0, 20, 1}, 28, 5, 17}})
      for (bool more : {false, true}) {
        cases.add<ops::FfnForward, FfnForward>(a, sizes, false, more);
        cases.add<ops::FfnBackward, FfnBackward>(a, sizes, false, more);
      }
  for (const double shift : {0.0, 5.0}) cases.add<ops::XieluForward, XieluForward>(Rows{19, 33}, shift, 1.0);
  for (bool learned : {false, true}) cases.add<ops::XieluBackward, XieluBackward>(Rows{7, 5}, 0.0, learned);
}

}  // namespace sy::numerics
