// The cuBLAS functions that Switchyard uses, computed by OpenBLAS (cublas.cpp).
#pragma once

#include "cuda_runtime.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_PEDANTIC_MATH = 2,
  CUBLAS_TF32_TENSOR_OP_MATH = 3,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
};
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
using cudaDataType = cudaDataType_t;
using cublasHandle_t = struct cublasContext*;

#define CUBLAS_VER_MAJOR 13
#define CUBLAS_VER_MINOR 1
#define CUBLAS_VER_PATCH 0
enum libraryPropertyType { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL };
cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value);

const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes);

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm,
                            std::source_location where = std::source_location::current());
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void* alpha, const void* a, cudaDataType type_a, int lda,
                                          long long stride_a, const void* b, cudaDataType type_b, int ldb,
                                          long long stride_b, const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int count, cublasComputeType_t compute,
                                          cublasGemmAlgo_t algorithm,
                                          std::source_location where = std::source_location::current());
// Sizes are in host memory, the lists of matrices in device memory.
cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t handle, const cublasOperation_t op_a[],
                                          const cublasOperation_t op_b[], const int m[], const int n[], const int k[],
                                          const void* alpha, const void* const a[], cudaDataType type_a,
                                          const int lda[], const void* const b[], cudaDataType type_b, const int ldb[],
                                          const void* beta, void* const c[], cudaDataType type_c, const int ldc[],
                                          int group_count, const int group_size[], cublasComputeType_t compute,
                                          std::source_location where = std::source_location::current());
