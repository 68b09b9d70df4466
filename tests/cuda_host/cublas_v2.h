// Stands where cuBLAS is not: the products that Switchyard uses, computed by OpenBLAS (cublas.cpp).
#pragma once

#include "cuda_runtime.h"

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_INVALID_VALUE = 7 };
using cublasHandle_t = struct cublasContext*;
