// Small cases of attention, routing, losses and optimizers. Only operations.cpp includes this file.
#pragma once

#include <cmath>

#include "kernels/ops/all.h"
#include "src/numerics/cases/attention.h"
#include "src/numerics/cases/cases.h"
#include "src/numerics/cases/dispatch.h"
#include "src/numerics/cases/indexer.h"
#include "src/numerics/cases/loss.h"
#include "src/numerics/cases/lsh.h"
#include "src/numerics/cases/route.h"

namespace sy::numerics {

// ---- attention and heads ----

inline AttentionDesc attention_desc(Index width, bool causal, Index window, float softcap) {
  return {1 / std::sqrt(static_cast<float>(width)), softcap, {causal, window}};
}
template <>
inline void add_cases<ops::AttentionForward>(Cases& cases) {
  for (const AttentionShape& s : {AttentionShape{2, 5, 2, 1, 3}, {1, 70, 4, 2, 32}})
    for (bool causal : {true, false})
      for (Index window : {0, 5})
        for (float softcap : {0.0f, 2.0f})
          cases.add<AttentionForward>(attention_desc(s.hd, causal, window, softcap), s);
  cases.add<AttentionOfCache>(3, 70, 4, 2, 32);
  cases.add<AttentionOfCache>(2, 9, 3, 1, 5);
}
template <>
inline void add_cases<ops::AttentionBackward>(Cases& cases) {
  for (bool causal : {true, false}) {
    cases.add<AttentionBackward>(attention_desc(3, causal, 0, 2.0f), AttentionShape{2, 5, 2, 1, 3});
    cases.add<AttentionBackward>(attention_desc(16, causal, 5, 0.0f), AttentionShape{1, 35, 4, 2, 16});
  }
}
template <>
inline void add_cases<ops::AttentionBackwardLearned>(Cases& cases) {
  cases.add<AttentionBackwardLearned>(attention_desc(3, true, 0, 0), AttentionShape{2, 5, 2, 1, 3}, 7);
  cases.add<AttentionBackwardLearned>(attention_desc(16, true, 0, 0), AttentionShape{1, 35, 4, 2, 16}, 35);
  cases.add<AttentionBackwardLearned>(attention_desc(3, false, 0, 0), AttentionShape{2, 5, 2, 1, 3}, 11);
}
template <>
inline void add_cases<ops::KvCacheAppend>(Cases& cases) {
  cases.add<KvCacheAppend>(3, 1, 40, 2, 3);
  cases.add<KvCacheAppend>(2, 7, 9, 3, 64);
}
template <>
inline void add_cases<ops::BroadcastHeads>(Cases& cases) {
  cases.add<BroadcastHeads>(3, 7, Columns{5, 1, 4, 11, 8, 3}, Columns{6, 1, 4, 12, 5, 3});
  cases.add<BroadcastHeads>(3, 7, Columns{2, 1, 1, 16, 8, 8}, Columns{6, 1, 4, 28, 16, 8});
}
template <>
inline void add_cases<ops::ReduceHeads>(Cases& cases) {
  cases.add<ReduceHeads>(3, 7, Columns{6, 2, 4, 28, 16, 8}, Columns{1, 0, 1, 16, 8, 8});
  cases.add<ReduceHeads>(3, 7, Columns{6, 2, 4, 12, 5, 3}, Columns{1, 0, 1, 11, 8, 3});
}
template <>
inline void add_cases<ops::BatchedHeadGemm>(Cases& cases) {
  for (const GemmPass pass : {GemmPass::fprop, GemmPass::dgrad})
    for (const auto& [in, out] : {std::pair<Index, Index>{7, 5}, {33, 70}})
      cases.add<BatchedHeadGemm>(pass, 2, 9, Columns{5, 1, 3, in + 4, 4, in}, Columns{3, 0, 3, out + 3, 2, out});
}

// ---- the indexer of sparse attention ----

// Own tokens of a tensor-parallel rank, documents, and more keys than a block has.
inline constexpr IndexerShape indexer_shapes[] = {
    {2, 7, 7, 3, 5, 4, 6}, {2, 17, 17, 1, 8, 0, 34, true}, {1, 9, 300, 5, 16, 2, 7}};
template <>
inline void add_cases<ops::TopkKeys>(Cases& cases) {
  for (const IndexerShape& shape : indexer_shapes)
    for (Index n : {1, 4, 400}) cases.add<TopkKeys>(shape, n);
  cases.add<TopkKeys>(IndexerShape{3, 1, 70, 2, 12, 0, 3, false, true}, 5);
  cases.add<TopkKeysOfEqualScores>(IndexerShape{1, 30, 30, 2, 4, 0, 30}, 6);
}
template <>
inline void add_cases<ops::AttentionKeySums>(Cases& cases) {
  for (Index n : {0, 4})
    for (float cap : {0.0f, 2.0f}) {
      cases.add<AttentionKeySums>(2, 7, 4, 2, 3, n, cap);
      cases.add<AttentionKeySums>(1, 300, 2, 1, 16, n, cap);
    }
}
template <>
inline void add_cases<ops::IndexerLoss>(Cases& cases) {
  for (const IndexerShape& shape : indexer_shapes)
    for (Index n : {0, 5}) cases.add<IndexerLoss>(shape, n);
}
template <>
inline void add_cases<ops::IndexerBackward>(Cases& cases) {
  for (const IndexerShape& shape : indexer_shapes)
    for (Index n : {0, 5}) cases.add<IndexerBackward>(shape, n);
}

// ---- attention with hashing ----

// Several rounds, factors of buckets, both sides, padding, and chunks in the order of positions.
inline const LshSizes lsh_sizes[] = {{{2, 12, 2, 5, 5, 3, 1, 0, true, 1.3}, 2, {4}},
                                     {{1, 22, 1, 8, 8, 4, 1, 1, false, 0.7, 1e-3}, 3, {2, 4}, true},
                                     {{2, 9, 2, 3, 4, 4, 1, 0, true, 1.0}, 0, {}, true},
                                     {{1, 70, 2, 16, 16, 100, 1, 0, true, 1.0}, 0, {}}};
template <>
inline void add_cases<ops::LshSort>(Cases& cases) {
  for (const LshSizes& sizes : lsh_sizes)
    if (sizes.rounds > 0) cases.add<LshSort>(sizes);
}
template <>
inline void add_cases<ops::LshAttentionForward>(Cases& cases) {
  for (const LshSizes& sizes : lsh_sizes) cases.add<LshAttentionForward>(sizes);
}
template <>
inline void add_cases<ops::LshAttentionBackward>(Cases& cases) {
  for (const LshSizes& sizes : lsh_sizes) cases.add<LshAttentionBackward>(sizes);
}

// ---- routing ----

template <class Add>
void for_each_distribution(const Add& add) {
  for (Distribution distribution :
       {Distribution::normal, Distribution::gumbel, Distribution::uniform, Distribution::round_robin})
    add(RandomDesc{distribution, 0x123456789abcdef0u, hash_name("stream"), 2.5f});
}
template <>
inline void add_cases<ops::Draw>(Cases& cases) {
  for_each_distribution([&](const RandomDesc& desc) { cases.add<DrawCase>(desc, Rows{50, 67}); });
}
template <>
inline void add_cases<ops::Jitter>(Cases& cases) {
  for (bool add : {false, true}) cases.add<JitterCase>(Rows{33, 67}, add);
}
template <>
inline void add_cases<ops::NoisyGatingForward>(Cases& cases) {
  for (Rows s : rows_of_elements) cases.add<NoisyGatingForward>(s);
}
template <>
inline void add_cases<ops::NoisyGatingBackward>(Cases& cases) {
  for (Rows s : rows_of_elements) cases.add<NoisyGatingBackward>(s);
}
template <class Case>
void add_routes(Cases& cases) {
  for (Score score : {Score::softmax, Score::sigmoid, Score::sqrt_softplus})
    for (bool biased : {false, true}) {
      RouteDesc desc{score, 3, biased, biased ? 2.5f : 1.0f};
      desc.balance_by_score = biased;
      cases.add<Case>(desc, 2, Rows{20, 33}, biased, !biased);
      desc.groups = 4;
      desc.topk_groups = 2;
      cases.add<Case>(desc, 2, Rows{14, 8}, biased, !biased);
      cases.add<Case>(desc, 2, Rows{14, 8}, biased, !biased, true);
    }
}
template <>
inline void add_cases<ops::RouteForward>(Cases& cases) {
  add_routes<RouteForward>(cases);
  for (bool padded : {false, true}) cases.add<RouteReplay>(RouteDesc{}, 2, Rows{14, 8}, !padded, padded);
}
template <>
inline void add_cases<ops::RouteBackward>(Cases& cases) {
  add_routes<RouteBackward>(cases);
}
template <>
inline void add_cases<ops::LoadBalancingLoss>(Cases& cases) {
  for (bool together : {false, true}) {
    cases.add<LoadBalancingCase>(LoadBalancingDesc{0, 1, together, 1e-3, 0.5}, 3, 5, 7, 1, true);
    cases.add<LoadBalancingCase>(LoadBalancingDesc{6, 3, together, 1e-3, 0.5}, 3, 6, 8, 2, true);
  }
}
template <>
inline void add_cases<ops::ApplyCapacity>(Cases& cases) {
  for (DropOrder order : {DropOrder::token, DropOrder::choice, DropOrder::probability})
    for (Index capacity : {0, 2, 17})
      for (bool padded : {false, true}) cases.add<CapacityCase>(CapacityDesc{order, capacity}, 4, 200, 3, 16, padded);
}
template <>
inline void add_cases<ops::DispatchLayout>(Cases& cases) {
  for (Index ep : {1, 4})
    for (Index etp : {1, 3})
      for (bool ordered : {false, true})
        for (Dispatched dispatched : {Dispatched::some, Dispatched::unmasked})
          cases.add<DispatchLayoutCase>(ExpertPartition{.ep = ep, .etp = etp}, 150, 3, 8, ordered, dispatched);
}
template <>
inline void add_cases<ops::BuildPermutation>(Cases& cases) {
  for (Index more : {0, 7}) {
    cases.add<PermutationCase>(150, 3, 8, 0, 8, more);
    cases.add<PermutationCase>(150, 3, 8, 4, 4, more);
    cases.add<PermutationCase>(150, 3, 8, 4, 4, more, Dispatched::some, std::nullopt, true);
  }
}
template <>
inline void add_cases<ops::Permute>(Cases& cases) {
  for (Rows s : rows_of_elements) {
    cases.add<PermuteRows>(5, s);
    cases.add<PermuteRows>(5, s, 3, 2);
    cases.add<PermuteIntegers>(5, s);
  }
}
inline void add_messages(Cases& cases) {
  for (Rows s : {Rows{1, 1}, {7, 3}, {33, 67}, {20, 64}})
    for (Index k : {1, 3, 8}) cases.add<TokenMessages>(9, s, k, k > 1);
}
template <>
inline void add_cases<ops::PackTokens>(Cases& cases) {
  add_messages(cases);
}
template <>
inline void add_cases<ops::UnpackTokens>(Cases& cases) {
  add_messages(cases);
}
template <>
inline void add_cases<ops::Unpermute>(Cases& cases) {
  for (Rows s : rows_of_elements)
    for (Begin begin : {Begin::zero, Begin::itself, Begin::another}) cases.add<UnpermuteRows>(9, s.t, 2, s.d, begin);
}

// ---- embedding and loss ----

template <class Case>
void add_embeddings(Cases& cases) {
  cases.add<Case>(50, 7, 3, 4);
  cases.add<Case>(60, 40, 67, 20);
}
template <>
inline void add_cases<ops::EmbeddingForward>(Cases& cases) {
  add_embeddings<EmbeddingForward>(cases);
}
template <>
inline void add_cases<ops::EmbeddingBackward>(Cases& cases) {
  add_embeddings<EmbeddingBackward>(cases);
}
template <>
inline void add_cases<ops::CrossEntropyForward>(Cases& cases) {
  for (Rows s : {Rows{7, 3}, {20, 257}})
    for (float softcap : {0.0f, 4.0f})
      for (double deviation : {1.0, 300.0})
        cases.add<CrossEntropyForward>(CrossEntropyDesc{.vocab_begin = 3, .softcap = softcap}, s, deviation);
}
template <>
inline void add_cases<ops::CrossEntropyBackward>(Cases& cases) {
  for (Rows s : {Rows{7, 3}, {9, 130}})
    for (float softcap : {0.0f, 4.0f})
      for (bool in_logits : {false, true})
        cases.add<CrossEntropyBackward>(CrossEntropyDesc{.vocab_begin = 3, .softcap = softcap}, s, in_logits);
}
template <>
inline void add_cases<ops::CrossEntropyLoss>(Cases& cases) {
  for (Index shards : {1, 5}) cases.add<CrossEntropyLoss>(shards, 100, shards > 1);
}
template <>
inline void add_cases<ops::LossSums>(Cases& cases) {
  for (Index t : {1, 100}) cases.add<LossSums>(t);
}

// ---- optimizer ----

template <>
inline void add_cases<ops::ClipCoefficient>(Cases& cases) {
  for (double squares : {0.25, 9.0, 1e60, std::nan("")})
    for (float clip : {0.0f, 1.0f})
      for (double limit : {3.0, std::numeric_limits<double>::infinity()})
        cases.add<ClipCoefficient>(squares, clip, limit);
}
template <>
inline void add_cases<ops::AdamW>(Cases& cases) {
  for (Index n : vector_sizes)
    for (double coefficient : {0.03, std::nan("")})
      for (DType moments : {DType::f32, DType::bf16}) cases.add<AdamWCase>(n, 0.1f, coefficient, moments);
}
template <>
inline void add_cases<ops::MomentumUpdate>(Cases& cases) {
  for (Index n : vector_sizes)
    for (double coefficient : {0.03, std::nan("")})
      for (DType moments : {DType::f32, DType::bf16})
        for (bool nesterov : {false, true}) cases.add<MomentumUpdate>(n, coefficient, moments, nesterov);
}
template <>
inline void add_cases<ops::ApplyUpdate>(Cases& cases) {
  for (Index n : vector_sizes)
    for (double coefficient : {0.03, std::nan("")})
      for (DType updates : {DType::f32, DType::bf16}) cases.add<ApplyUpdate>(n, 0.1f, coefficient, updates);
}

template <>
inline void add_cases<ops::MaxLogits>(Cases& cases) {
  cases.add<MaxLogits>(1, 1, 1);
  cases.add<MaxLogits>(3, 5, 300);
}
template <>
inline void add_cases<ops::QkClip>(Cases& cases) {
  for (double coefficient : {1.0, std::nan("")})
    for (bool keys : {false, true}) {
      cases.add<QkClip>(6, 6, keys, 30, 0, 0, 180, coefficient);
      cases.add<QkClip>(6, 3, keys, 35, 0, 17, 84, coefficient);
      cases.add<QkClip>(6, 6, keys, 30, keys ? 0 : 12, 5, 144, coefficient);
    }
}

}  // namespace sy::numerics
