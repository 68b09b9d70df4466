// Attention in tiles, with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022): no S x S
// matrix is held.
//
// Operands as kernels/backend.h says them, in f32. A row's result depends only on its own sequence, and never on the
// number of threads.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out, View lse);

void attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                        ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv);

}  // namespace sy::cpu
