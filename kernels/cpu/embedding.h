// The embedding table and rotary positions. Shapes: kernels/backend.h.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y);
void embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable);
void qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, View y, View inverse);
// dx holds dy, turned back.
void qk_norm_backward(const QkNorm& desc, ConstView x, ConstView weight, ConstView inverse, View dx, View dweight);
void rope(View x, Index heads, ConstView positions, ConstView table, bool inverse);

}  // namespace sy::cpu
