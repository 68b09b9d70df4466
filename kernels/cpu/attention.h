// Attention in tiles, with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022): no S x S
// matrix is held.
//
// qkv, dqkv: [B, S, H + 2K, hd], heads ordered q, k, v; out, dout: [B, S, H, hd]; lse: [B, H, S]. Query head
// h reads kv head h / (H / K). Query i sees the keys j with j <= i (causal) and j > i - window (window > 0).
// A row's result depends only on its own sequence, and never on the number of threads.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void attention_forward(const AttentionDesc& desc, Index B, Index S, Index H, Index K, Index hd, const float* qkv,
                       float* out, float* lse);

void attention_backward(const AttentionDesc& desc, Index B, Index S, Index H, Index K, Index hd, const float* dout,
                        const float* qkv, const float* out, const float* lse, float* dqkv);

}  // namespace sy::cpu
