// All operations, for code that handles each of them.
#pragma once

#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/batch_norm.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/ffn.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/heads.h"
#include "kernels/ops/indexer.h"
#include "kernels/ops/list.h"
#include "kernels/ops/load_balancing.h"
#include "kernels/ops/lsh.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/qk_clip.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/random.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/route.h"

namespace sy::ops {

// The names of all operations.
inline constexpr std::string_view operation_names[] = {
#define SY_NAME(Operation) Operation::name,
    SY_OPERATIONS(SY_NAME)
#undef SY_NAME
};

}  // namespace sy::ops
