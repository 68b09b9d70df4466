// Small cases of attention, routing, losses and optimizers. Sizes are odd, and some exceed a
// vector, a tile and a block of the kernels. Only operations.cpp includes this file.
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

inline void add_attention(Cases& cases) {
  const auto desc = [](Index width, bool causal, Index window, float softcap) {
    return AttentionDesc{1 / std::sqrt(static_cast<float>(width)), softcap, {causal, window}};
  };
  constexpr AttentionShape few{2, 5, 2, 1, 3}, some{1, 35, 4, 2, 16}, many{1, 70, 4, 2, 32};
  for (const AttentionShape& s : {few, many})
    for (bool causal : {true, false})
      for (Index window : {0, 5})
        for (float softcap : {0.0f, 2.0f})
          cases.add<ops::AttentionForward, AttentionForward>(desc(s.hd, causal, window, softcap), s);
  cases.add<ops::AttentionForward, AttentionOfCache>(3, 70, 4, 2, 32);
  cases.add<ops::AttentionForward, AttentionOfCache>(2, 9, 3, 1, 5);
  for (bool causal : {true, false}) {
    cases.add<ops::AttentionBackward, AttentionBackward>(desc(3, causal, 0, 2.0f), few);
    cases.add<ops::AttentionBackward, AttentionBackward>(desc(16, causal, 5, 0.0f), some);
  }
  cases.add<ops::AttentionBackwardLearned, AttentionBackwardLearned>(desc(3, true, 0, 0), few, 7);
  cases.add<ops::AttentionBackwardLearned, AttentionBackwardLearned>(desc(16, true, 0, 0), some, 35);
  cases.add<ops::AttentionBackwardLearned, AttentionBackwardLearned>(desc(3, false, 0, 0), few, 11);
  cases.add<ops::KvCacheAppend, KvCacheAppend>(3, 1, 40, 2, 3);
  cases.add<ops::KvCacheAppend, KvCacheAppend>(2, 7, 9, 3, 64);
  cases.add<ops::BroadcastHeads, BroadcastHeads>(3, 7, Columns{5, 1, 4, 11, 8, 3}, Columns{6, 1, 4, 12, 5, 3});
  cases.add<ops::BroadcastHeads, BroadcastHeads>(3, 7, Columns{2, 1, 1, 16, 8, 8}, Columns{6, 1, 4, 28, 16, 8});
  cases.add<ops::ReduceHeads, ReduceHeads>(3, 7, Columns{6, 2, 4, 28, 16, 8}, Columns{1, 0, 1, 16, 8, 8});
  cases.add<ops::ReduceHeads, ReduceHeads>(3, 7, Columns{6, 2, 4, 12, 5, 3}, Columns{1, 0, 1, 11, 8, 3});
  for (const GemmPass pass : {GemmPass::fprop, GemmPass::dgrad})
    for (const auto& [in, out] : {std::pair<Index, Index>{7, 5}, {33, 70}})
      cases.add<ops::BatchedHeadGemm, BatchedHeadGemm>(pass, 2, 9, Columns{5, 1, 3, in + 4, 4, in},
                                                       Columns{3, 0, 3, out + 3, 2, out});
}

inline void add_indexers(Cases& cases) {
  // Own tokens of a tensor-parallel rank, documents, and more keys than a block has.
  for (const IndexerShape& shape :
       {IndexerShape{2, 7, 7, 3, 5, 4, 6}, {2, 17, 17, 1, 8, 0, 34, true}, {1, 9, 300, 5, 16, 2, 7}}) {
    for (Index n : {1, 4, 400}) cases.add<ops::TopkKeys, TopkKeys>(shape, n);
    for (Index n : {0, 5}) {
      cases.add<ops::IndexerLoss, IndexerLoss>(shape, n);
      cases.add<ops::IndexerBackward, IndexerBackward>(shape, n);
    }
  }
  cases.add<ops::TopkKeys, TopkKeys>(IndexerShape{3, 1, 70, 2, 12, 0, 3, false, true}, 5);
  cases.add<ops::TopkKeys, TopkKeysOfEqualScores>(IndexerShape{1, 30, 30, 2, 4, 0, 30}, 6);
  for (Index n : {0, 4})
    for (float cap : {0.0f, 2.0f}) {
      cases.add<ops::AttentionKeySums, AttentionKeySums>(2, 7, 4, 2, 3, n, cap);
      cases.add<ops::AttentionKeySums, AttentionKeySums>(1, 300, 2, 1, 16, n, cap);
    }
}

inline void add_hashing(Cases& cases) {
  // Several rounds, factors of buckets, both sides, padding, and chunks in the order of positions.
  for (const LshSizes& sizes : {LshSizes{{2, 12, 2, 5, 5, 3, 1, 0, true, 1.3}, 2, {4}},
                                {{1, 22, 1, 8, 8, 4, 1, 1, false, 0.7, 1e-3}, 3, {2, 4}, true},
                                {{2, 9, 2, 3, 4, 4, 1, 0, true, 1.0}, 0, {}, true},
                                {{1, 70, 2, 16, 16, 100, 1, 0, true, 1.0}, 0, {}}}) {
    if (sizes.rounds > 0) cases.add<ops::LshSort, LshSort>(sizes);
    cases.add<ops::LshAttentionForward, LshAttentionForward>(sizes);
    cases.add<ops::LshAttentionBackward, LshAttentionBackward>(sizes);
  }
}

template <class Operation, class Case>
void add_routes(Cases& cases) {
  for (Score score : {Score::softmax, Score::sigmoid, Score::sqrt_softplus})
    for (bool biased : {false, true}) {
      RouteDesc desc{score, 3, biased, biased ? 2.5f : 1.0f};
      desc.balance_by_score = biased;
      cases.add<Operation, Case>(desc, 2, Rows{20, 33}, biased, !biased);
      desc.groups = 4;
      desc.topk_groups = 2;
      cases.add<Operation, Case>(desc, 2, Rows{14, 8}, biased, !biased);
      cases.add<Operation, Case>(desc, 2, Rows{14, 8}, biased, !biased, true);
    }
}
inline void add_routing(Cases& cases) {
  for (Distribution distribution :
       {Distribution::normal, Distribution::gumbel, Distribution::uniform, Distribution::round_robin})
    cases.add<ops::Draw, DrawCase>(RandomDesc{distribution, 0x123456789abcdef0u, hash_name("stream"), 2.5f},
                                   Rows{50, 67});
  for (bool add : {false, true}) cases.add<ops::Jitter, JitterCase>(Rows{33, 67}, add);
  for (Rows s : rows_of_elements) {
    cases.add<ops::NoisyGatingForward, NoisyGatingForward>(s);
    cases.add<ops::NoisyGatingBackward, NoisyGatingBackward>(s);
  }
  add_routes<ops::RouteForward, RouteForward>(cases);
  for (bool padded : {false, true})
    cases.add<ops::RouteForward, RouteReplay>(RouteDesc{}, 2, Rows{14, 8}, !padded, padded);
  add_routes<ops::RouteBackward, RouteBackward>(cases);
  for (bool together : {false, true}) {
    cases.add<ops::LoadBalancingLoss, LoadBalancingCase>(LoadBalancingDesc{0, 1, together, 1e-3, 0.5}, 3, 5, 7, 1,
                                                         true);
    cases.add<ops::LoadBalancingLoss, LoadBalancingCase>(LoadBalancingDesc{6, 3, together, 1e-3, 0.5}, 3, 6, 8, 2,
                                                         true);
  }
}

inline void add_dispatch(Cases& cases) {
  for (DropOrder order : {DropOrder::token, DropOrder::choice, DropOrder::probability})
    for (Index capacity : {0, 2, 17})
      for (bool padded : {false, true})
        cases.add<ops::ApplyCapacity, CapacityCase>(CapacityDesc{order, capacity}, 4, 200, 3, 16, padded);
  for (Index ep : {1, 4})
    for (Index etp : {1, 3})
      for (bool ordered : {false, true})
        for (Dispatched dispatched : {Dispatched::some, Dispatched::unmasked})
          cases.add<ops::DispatchLayout, DispatchLayoutCase>(ExpertPartition{.ep = ep, .etp = etp}, 150, 3, 8, ordered,
                                                             dispatched);
  for (Index more : {0, 7}) {
    cases.add<ops::BuildPermutation, PermutationCase>(150, 3, 8, 0, 8, more);
    cases.add<ops::BuildPermutation, PermutationCase>(150, 3, 8, 4, 4, more);
    cases.add<ops::BuildPermutation, PermutationCase>(150, 3, 8, 4, 4, more, Dispatched::some, std::nullopt, true);
  }
  for (Rows s : rows_of_elements) {
    cases.add<ops::Permute, PermuteRows>(5, s);
    cases.add<ops::Permute, PermuteRows>(5, s, 3, 2);
    cases.add<ops::Permute, PermuteIntegers>(5, s);
    for (Begin begin : {Begin::zero, Begin::itself, Begin::another})
      cases.add<ops::Unpermute, UnpermuteRows>(9, s.t, 2, s.d, begin);
  }
  for (Rows s : {Rows{1, 1}, {7, 3}, {33, 67}, {20, 64}})
    for (Index k : {1, 3, 8}) {
      cases.add<ops::PackTokens, TokenMessages>(9, s, k, k > 1);
      cases.add<ops::UnpackTokens, TokenMessages>(9, s, k, k > 1);
    }
}

inline void add_losses(Cases& cases) {
  cases.add<ops::EmbeddingForward, EmbeddingForward>(50, 7, 3, 4);
  cases.add<ops::EmbeddingForward, EmbeddingForward>(60, 40, 67, 20);
  cases.add<ops::EmbeddingBackward, EmbeddingBackward>(50, 7, 3, 4);
  cases.add<ops::EmbeddingBackward, EmbeddingBackward>(60, 40, 67, 20);
  constexpr CrossEntropyDesc descs[] = {{.vocab_begin = 3}, {.vocab_begin = 3, .softcap = 4}};
  for (Rows s : {Rows{7, 3}, {20, 257}})
    for (const CrossEntropyDesc& desc : descs)
      for (double deviation : {1.0, 300.0})
        cases.add<ops::CrossEntropyForward, CrossEntropyForward>(desc, s, deviation);
  for (Rows s : {Rows{7, 3}, {9, 130}})
    for (const CrossEntropyDesc& desc : descs)
      for (bool in_logits : {false, true})
        cases.add<ops::CrossEntropyBackward, CrossEntropyBackward>(desc, s, in_logits);
  for (Index shards : {1, 5}) cases.add<ops::CrossEntropyLoss, CrossEntropyLoss>(shards, 100, shards > 1);
  for (Index t : {1, 100}) cases.add<ops::LossSums, LossSums>(t);
}

inline void add_optimizers(Cases& cases) {
  for (double squares : {0.25, 9.0, 1e60, std::nan("")})
    for (float clip : {0.0f, 1.0f})
      for (double limit : {3.0, std::numeric_limits<double>::infinity()})
        cases.add<ops::ClipCoefficient, ClipCoefficient>(squares, clip, limit);
  for (Index n : vector_sizes)
    for (double coefficient : {0.03, std::nan("")})
      for (DType state : {DType::f32, DType::bf16}) {
        cases.add<ops::AdamW, AdamWCase>(n, 0.1f, coefficient, state);
        for (bool nesterov : {false, true})
          cases.add<ops::MomentumUpdate, MomentumUpdate>(n, coefficient, state, nesterov);
        cases.add<ops::ApplyUpdate, ApplyUpdate>(n, 0.1f, coefficient, state);
      }
  cases.add<ops::MaxLogits, MaxLogits>(1, 1, 1);
  cases.add<ops::MaxLogits, MaxLogits>(3, 5, 300);
  for (double coefficient : {1.0, std::nan("")})
    for (bool keys : {false, true}) {
      cases.add<ops::QkClip, QkClip>(6, 6, keys, 30, 0, 0, 180, coefficient);
      cases.add<ops::QkClip, QkClip>(6, 3, keys, 35, 0, 17, 84, coefficient);
      cases.add<ops::QkClip, QkClip>(6, 6, keys, 30, keys ? 0 : 12, 5, 144, coefficient);
    }
}

}  // namespace sy::numerics
