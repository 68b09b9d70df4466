// bf16 products of a warp on the tensor cores (mma.m16n8k16), and reads of their operands from
// shared memory (ldmatrix). All lanes of the warp must call these functions. One mma is 4096 FLOPs.
//
// Registers of lane 4 g + t, where g < 8 and t < 4. A register of A or B holds two neighbours along
// the summed dimension, the first one in its lower half.
//   A: [16, 16]   a[0] = A[g][2t, 2t+1]        a[1] = A[g+8][2t, 2t+1]
//                 a[2] = A[g][2t+8, 2t+9]      a[3] = A[g+8][2t+8, 2t+9]
//   B: [16, 8]    b0 = B[2t, 2t+1][g]          b1 = B[2t+8, 2t+9][g]
//   C: [16, 8]    c[0, 1] = C[g][2t, 2t+1]     c[2, 3] = C[g+8][2t, 2t+1]
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"

namespace sy::cuda {

// Two elements of A or B, as one register.
__device__ inline std::uint32_t bf16_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// C += A B, in f32.
__device__ inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Reads four matrices M_i: [8, 8] from shared memory. Lane 8 i + r passes the address of row r of
// matrix i: 8 elements, aligned to 16 bytes. Result: x[i] = M_i[g][2t, 2t+1], for an operand A, or
// for a B whose columns are rows in memory.
__device__ inline void load_matrices(std::uint32_t (&x)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
// The same with x[i] = M_i[2t, 2t+1][g], for a B whose rows are rows in memory.
__device__ inline void load_matrices_transposed(std::uint32_t (&x)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace sy::cuda
