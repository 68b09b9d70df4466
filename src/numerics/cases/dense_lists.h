// Small cases of the operations on rows, weights and activations. Only operations.cpp includes this
// file.
#pragma once

#include "kernels/ops/all.h"
#include "src/numerics/cases/batch_norm.h"
#include "src/numerics/cases/cases.h"
#include "src/numerics/cases/elementwise.h"
#include "src/numerics/cases/ffn.h"
#include "src/numerics/cases/gemm.h"
#include "src/numerics/cases/norm.h"

namespace sy::numerics {

// ---- memory ----

template <class Case>
void add_vectors(Cases& cases) {
  for (Index n : vector_sizes) cases.add<Case>(n);
}
template <>
inline void add_cases<ops::Fill>(Cases& cases) {
  add_vectors<FillCase>(cases);
}
template <>
inline void add_cases<ops::Copy>(Cases& cases) {
  add_vectors<CopyCase>(cases);
}
template <>
inline void add_cases<ops::Convert>(Cases& cases) {
  add_vectors<ConvertCase>(cases);
}
template <>
inline void add_cases<ops::Add>(Cases& cases) {
  add_vectors<AddCase>(cases);
}
template <>
inline void add_cases<ops::Scale>(Cases& cases) {
  add_vectors<ScaleCase>(cases);
}
template <>
inline void add_cases<ops::SumSquares>(Cases& cases) {
  add_vectors<SumSquaresCase>(cases);
}

template <>
inline void add_cases<ops::BitSum>(Cases& cases) {
  for (Index n : vector_sizes)
    for (DType type : {DType::f32, DType::bf16}) cases.add<BitSumCase>(n, type);
}

// ---- GEMMs and biases ----

template <>
inline void add_cases<ops::Gemm>(Cases& cases) {
  for (const auto& [m, n, q] : {std::array<Index, 3>{5, 7, 9}, {67, 45, 130}, {21, 33, 600}})
    for (int flags = 0; flags < 8; ++flags)
      for (DType c : {OpCase::compute, DType::f32}) {
        const GemmCase::Form form{(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
        cases.add<GemmCase>(form, m, n, q, c);
        if (m == 67) cases.add<SumCase>(form, m, n, q, c);
      }
}
template <>
inline void add_cases<ops::PackWeight>(Cases& cases) {
  for (GemmPass pass : {GemmPass::fprop, GemmPass::dgrad})
    for (const auto& [rows, n, q] : {std::array<Index, 3>{1, 1, 1}, {61, 45, 67}, {33, 130, 400}})
      cases.add<PackWeightCase>(pass, rows, n, q);
}

// Numbers of rows of experts.
const std::vector<Index> experts_rows[] = {{5}, {1, 0, 2}, {0, 7, 0, 61, 1, 0}};

template <class Case>
void add_grouped(Cases& cases) {
  for (const auto& counts : experts_rows)
    for (const auto& [n, q] : {std::pair<Index, Index>{1, 1}, {33, 65}}) cases.add<Case>(counts, n, q);
}
template <>
inline void add_cases<ops::GroupedGemm>(Cases& cases) {
  add_grouped<GroupedGemm>(cases);
}
template <>
inline void add_cases<ops::GroupedGemmDgrad>(Cases& cases) {
  add_grouped<GroupedGemmInput>(cases);
}
template <>
inline void add_cases<ops::GroupedGemmWgrad>(Cases& cases) {
  add_grouped<GroupedGemmWeight<true>>(cases);
  add_grouped<GroupedGemmWeight<false>>(cases);
}
template <class Case>
void add_grouped_biases(Cases& cases) {
  for (const auto& counts : experts_rows)
    for (bool scaled : {false, true}) cases.add<Case>(counts, 33, 7, 65, scaled);
}
template <>
inline void add_cases<ops::GroupedBiasForward>(Cases& cases) {
  add_grouped_biases<GroupedBiasForward>(cases);
}
template <>
inline void add_cases<ops::GroupedBiasBackward>(Cases& cases) {
  add_grouped_biases<GroupedBiasBackward>(cases);
}
template <>
inline void add_cases<ops::BiasForward>(Cases& cases) {
  for (Rows s : rows_of_elements) cases.add<BiasForward>(s);
}
template <>
inline void add_cases<ops::BiasBackward>(Cases& cases) {
  for (Rows s : rows_of_elements) cases.add<BiasBackward>(s);
}

// ---- norms and positions ----

inline constexpr NormDesc norms[] = {{NormKind::rmsnorm, 1e-5f, 1}, {NormKind::layernorm, 1e-5f, 0}};

template <>
inline void add_cases<ops::NormForward>(Cases& cases) {
  for (const NormDesc& desc : norms)
    for (Rows s : rows_of_elements)
      for (double deviation : {1.0, 1e4}) cases.add<NormForward>(desc, s, desc.kind == NormKind::layernorm, deviation);
}
template <>
inline void add_cases<ops::NormBackward>(Cases& cases) {
  for (const NormDesc& desc : norms)
    for (Rows s : rows_of_elements)
      if (s.d > 1) cases.add<NormBackward>(desc, s, desc.kind == NormKind::layernorm);
}
inline constexpr RealTokens real_tokens[] = {RealTokens::all, RealTokens::some, RealTokens::none};
template <>
inline void add_cases<ops::BatchNormSums>(Cases& cases) {
  for (Rows s : rows_of_elements)
    for (RealTokens real : real_tokens)
      for (double deviation : {1.0, 1e4}) cases.add<BatchNormSums>(s, real, deviation);
}
template <>
inline void add_cases<ops::BatchNormMoments>(Cases& cases) {
  for (Index d : {Index{1}, Index{67}}) {
    cases.add<BatchNormMoments>(d, -1.0, true);
    for (double count : {0.0, 1.0, 2.0, 1001.0})
      for (bool averaged : {false, true}) cases.add<BatchNormMoments>(d, count, averaged);
  }
}
template <>
inline void add_cases<ops::BatchNormForward>(Cases& cases) {
  for (Rows s : rows_of_elements)
    for (bool biased : {false, true}) cases.add<BatchNormForward>(s, biased);
}
template <>
inline void add_cases<ops::BatchNormGradientSums>(Cases& cases) {
  for (Rows s : rows_of_elements)
    for (RealTokens real : {RealTokens::all, RealTokens::some})
      for (bool biased : {false, true}) cases.add<BatchNormGradientSums>(s, real, biased);
}
template <>
inline void add_cases<ops::BatchNormBackward>(Cases& cases) {
  for (Rows s : rows_of_elements)
    for (RealTokens real : real_tokens) cases.add<BatchNormBackward>(s, real);
}
template <>
inline void add_cases<ops::Rope>(Cases& cases) {
  for (RopePairs pairs : {RopePairs::half, RopePairs::interleaved})
    for (bool inverse : {false, true}) {
      cases.add<RopeCase>(7, 3, 10, 2, 3, inverse, pairs);
      cases.add<RopeCase>(20, 3, 64, 2, 32, inverse, pairs);
    }
}
template <class Case>
void add_qk_norms(Cases& cases) {
  for (RopePairs pairs : {RopePairs::half, RopePairs::interleaved}) {
    cases.add<Case>(5, HeadQkNorm{3, 1, 1e-5f, pairs}, 1, 7, 0);
    cases.add<Case>(6, HeadQkNorm{4, 2, 1e-5f, pairs, 1, NormKind::layernorm, true}, 2, 10, 3);
    cases.add<Case>(9, HeadQkNorm{2, 1, 1e-5f, pairs, 1}, 1, 64, 32);
  }
}
template <>
inline void add_cases<ops::HeadQkNormForward>(Cases& cases) {
  add_qk_norms<HeadQkNormForward>(cases);
}
template <>
inline void add_cases<ops::HeadQkNormBackward>(Cases& cases) {
  add_qk_norms<HeadQkNormBackward>(cases);
}
template <class Case>
void add_projection_qk_norms(Cases& cases) {
  for (Index ranks : {1, 3}) {
    cases.add<Case>(5, 7, 3, 3, ranks);
    cases.add<Case>(6, 40, 20, 20, ranks);
  }
}
template <>
inline void add_cases<ops::ProjectionQkNormSums>(Cases& cases) {
  add_projection_qk_norms<ProjectionQkNormSums>(cases);
}
template <>
inline void add_cases<ops::ProjectionQkNormForward>(Cases& cases) {
  add_projection_qk_norms<ProjectionQkNormForward>(cases);
}
template <>
inline void add_cases<ops::ProjectionQkNormBackward>(Cases& cases) {
  add_projection_qk_norms<ProjectionQkNormBackward>(cases);
}

// ---- feed-forward layers ----

inline constexpr Activation every_activation[] = {Activation::relu,     Activation::gelu,     Activation::gelu_tanh,
                                                  Activation::silu,     Activation::relu2,    Activation::sigmoid,
                                                  Activation::identity, Activation::hardtanh, Activation::silu_clamped};

// Calls add(activation, scaled) for every activation with and without a gate.
template <class Add>
void for_each_activation(const Add& add) {
  for (Activation act : every_activation)
    for (bool gated : {false, true}) add(FfnActivation{act, gated, 1.3f, 0.7f}, gated);
}
template <>
inline void add_cases<ops::ActivationForward>(Cases& cases) {
  for_each_activation([&](FfnActivation a, bool scaled) {
    cases.add<ActivationForward>(a, Rows{19, 33}, scaled, 1.0);
  });
}
template <>
inline void add_cases<ops::ActivationBackward>(Cases& cases) {
  for_each_activation([&](FfnActivation a, bool scaled) {
    for (bool activated : {false, true}) cases.add<ActivationBackward>(a, Rows{7, 5}, scaled, activated);
  });
}
template <class Case>
void add_ffns(Cases& cases) {
  for (const FfnActivation& a : {FfnActivation{Activation::silu, true, 1.3f}, {Activation::gelu, false}})
    for (const FfnSizes& sizes : {FfnSizes{{}, 21, 6, 37}, {{0, 7, 0, 20, 1}, 28, 5, 17}})
      for (bool more : {false, true}) cases.add<Case>(a, sizes, false, more);
}
template <>
inline void add_cases<ops::FfnForward>(Cases& cases) {
  add_ffns<FfnForward>(cases);
}
template <>
inline void add_cases<ops::FfnBackward>(Cases& cases) {
  add_ffns<FfnBackward>(cases);
}
template <>
inline void add_cases<ops::XieluForward>(Cases& cases) {
  for (const double shift : {0.0, 5.0}) cases.add<XieluForward>(Rows{19, 33}, shift, 1.0);
}
template <>
inline void add_cases<ops::XieluBackward>(Cases& cases) {
  for (bool learned : {false, true}) cases.add<XieluBackward>(Rows{7, 5}, 0.0, learned);
}

}  // namespace sy::numerics
