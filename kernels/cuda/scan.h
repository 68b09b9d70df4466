// Prefix sums within a block. Included by .cu files alone.
#pragma once

#include "kernels/cuda/device.h"

namespace sy::cuda {

struct Scanned {
  int before, total;  // sum over the threads before this one, and over all threads
};

// Block-wide prefix sum. The block must be one-dimensional and a whole number of warps, and all
// threads must call it. The function is static because it declares shared memory.
__device__ static Scanned block_scan(int x) {
  __shared__ int sums[warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  int inclusive = x;
  for (int distance = 1; distance < warp_size; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  __syncthreads();  // an earlier call's sums have been read
  if (lane == warp_size - 1) sums[warp] = inclusive;
  __syncthreads();
  Scanned result{inclusive - x, 0};
  for (int w = 0; w < warps; ++w) {
    if (w == warp) result.before += result.total;
    result.total += sums[w];
  }
  return result;
}

// A block calls write(i, the sum of get(j) over j < i) for each i < n, and returns the sum of all.
// Function get(i) may read data that write(i) writes, but no data that another write writes.
template <class Get, class Write>
__device__ int block_scan(Index n, Get get, Write write) {
  int sum = 0;
  for (Index begin = 0; begin < n; begin += blockDim.x) {
    const Index i = begin + threadIdx.x;
    const Scanned scanned = block_scan(i < n ? get(i) : 0);
    if (i < n) write(i, sum + scanned.before);
    sum += scanned.total;
  }
  return sum;
}

}  // namespace sy::cuda
