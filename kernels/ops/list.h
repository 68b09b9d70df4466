// The list of all operations. A new operation is one name here, a struct in a header of this
// folder with its check, cost and is_empty, and one kernel for each device.
#pragma once

// clang-format off
#define SY_OPERATIONS(X)                                                                          \
  X(Fill) X(Copy) X(Convert) X(Add) X(Scale) X(SumSquares) X(BitSum)                             \
  X(Gemm) X(PackWeight) X(GroupedGemm) X(GroupedGemmDgrad) X(GroupedGemmWgrad)                    \
  X(BiasForward) X(BiasBackward) X(GroupedBiasForward) X(GroupedBiasBackward)                     \
  X(NormForward) X(NormBackward)                                                                  \
  X(BatchNormSums) X(BatchNormMoments) X(BatchNormForward)                                        \
  X(BatchNormGradientSums) X(BatchNormBackward)                                                   \
  X(ActivationForward) X(ActivationBackward) X(FfnForward) X(FfnBackward)                         \
  X(XieluForward) X(XieluBackward)                                                                \
  X(Rope) X(HeadQkNormForward) X(HeadQkNormBackward)                                                      \
  X(ProjectionQkNormSums) X(ProjectionQkNormForward) X(ProjectionQkNormBackward)                                 \
  X(AttentionForward) X(AttentionBackward) X(AttentionBackwardLearned) X(KvCacheAppend)           \
  X(BroadcastHeads) X(ReduceHeads) X(BatchedHeadGemm)                                             \
  X(Draw) X(Jitter) X(NoisyGatingForward) X(NoisyGatingBackward)                                  \
  X(RouteForward) X(RouteBackward) X(LoadBalancingLoss)                                           \
  X(ApplyCapacity) X(DispatchLayout) X(BuildPermutation) X(Permute) X(Unpermute)                  \
  X(PackTokens) X(UnpackTokens)                                                                   \
  X(EmbeddingForward) X(EmbeddingBackward)                                                        \
  X(CrossEntropyForward) X(CrossEntropyLoss) X(LossSums) X(CrossEntropyBackward)                  \
  X(ClipCoefficient) X(AdamW) X(MomentumUpdate) X(ApplyUpdate) X(MaxLogits) X(QkClip)                             \
  X(TopkKeys) X(AttentionKeySums) X(IndexerLoss) X(IndexerBackward)                             \
  X(LshSort) X(LshAttentionForward) X(LshAttentionBackward)
// clang-format on

namespace sy {

class Device;

namespace ops {

// See kernels/ops/operation.h.
#define SY_DECLARE(Operation) \
  struct Operation;           \
  void check(const Operation& op);
SY_OPERATIONS(SY_DECLARE)
#undef SY_DECLARE

}  // namespace ops

// The kernels of one device. A null pointer: the device has no such kernel.
#define SY_KERNEL(Operation)                                                          \
  void (*kernel_of_##Operation)(Device & device, const ops::Operation& op) = nullptr; \
  auto of(const ops::Operation&) const {                                              \
    return kernel_of_##Operation;                                                     \
  }
struct KernelTable {
  SY_OPERATIONS(SY_KERNEL)
};
#undef SY_KERNEL

}  // namespace sy
