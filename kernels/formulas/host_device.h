// Mark of functions that host code and CUDA kernels call.
#pragma once

#ifdef __CUDACC__
#define SY_HOST_DEVICE __host__ __device__
#else
#define SY_HOST_DEVICE
#endif
