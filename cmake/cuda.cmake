# Looks for nvcc, cuBLAS, NCCL and NVTX, as SWITCHYARD_CUDA says. Sets SWITCHYARD_HAS_CUDA. If it is
# true, also enables the language and sets SWITCHYARD_CUDA_ARCHITECTURES.
set(SWITCHYARD_HAS_CUDA FALSE)
if(NOT SWITCHYARD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SWITCHYARD_CUDA = ${SWITCHYARD_CUDA}: expected AUTO, ON or OFF")
endif()
if(SWITCHYARD_CUDA STREQUAL "OFF")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)  # the cache would keep an earlier failure
  unset(CMAKE_CUDA_COMPILER CACHE)
endif()
include(CheckLanguage)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80)  # what the check compiles for; targets set their own
endif()
check_language(CUDA)
set(missing "")
if(NOT CMAKE_CUDA_COMPILER)
  set(missing "nvcc (set CUDACXX to its path)")
else()
  enable_language(CUDA)
  find_package(CUDAToolkit)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_ROOT PATHS /usr/local/cuda PATH_SUFFIXES include)
  find_path(NVTX_INCLUDE_DIR nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})  # optional
  find_library(NCCL_LIBRARY nccl HINTS ENV NCCL_ROOT PATHS /usr/local/cuda PATH_SUFFIXES lib lib64)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.5)  # cublasGemmGroupedBatchedEx
    set(missing "CUDA 12.5 or later (${CMAKE_CUDA_COMPILER} is of ${CMAKE_CUDA_COMPILER_VERSION})")
  elseif(NOT TARGET CUDA::cublas OR NOT TARGET CUDA::cublasLt)
    set(missing "cuBLAS, in the toolkit of ${CMAKE_CUDA_COMPILER}")
  elseif(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
    set(missing "NCCL (set NCCL_ROOT to its folder)")
  endif()
endif()
if(missing)
  if(SWITCHYARD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SWITCHYARD_CUDA is ON and this is missing: ${missing}")
  endif()
  message(STATUS "No cuda backend: this is missing: ${missing}")
  return()
endif()

if(SWITCHYARD_CUDNN)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ENV CUDNN_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(CUDNN_LIBRARY cudnn HINTS ENV CUDNN_ROOT ${CUDAToolkit_LIBRARY_DIR} /usr/local/cuda
               PATH_SUFFIXES lib lib64)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ENV CUDNN_FRONTEND_ROOT PATH_SUFFIXES include)
  if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY OR NOT CUDNN_FRONTEND_INCLUDE_DIR)
    message(FATAL_ERROR "SWITCHYARD_CUDNN is ON and cuDNN 9 or the headers of its frontend are missing: set CUDNN_ROOT "
                        "and CUDNN_FRONTEND_ROOT to their folders")
  endif()
endif()

if(SWITCHYARD_CUTLASS)
  find_path(CUTLASS_INCLUDE_DIR cutlass/gemm/collective/collective_builder.hpp HINTS ENV CUTLASS_ROOT
            PATH_SUFFIXES include cutlass_library/source/include)
  if(NOT CUTLASS_INCLUDE_DIR)
    message(FATAL_ERROR "SWITCHYARD_CUTLASS is ON and the headers of CUTLASS are missing: set CUTLASS_ROOT to the folder "
                        "of a release of CUTLASS, or of an unpacked wheel of PyPI's nvidia-cutlass")
  endif()
endif()

# CMake 3.25 does not know that nvcc has C++20 since 12.0.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
# A100 and H100/H200, and B200 if the compiler knows it. Newer cards compile PTX when they load it.
set(architectures 80-real 90a-real)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND architectures 100a-real)
endif()
list(APPEND architectures 90-virtual)
set(SWITCHYARD_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Devices that the kernels are compiled for")
if(SWITCHYARD_CUTLASS AND NOT SWITCHYARD_CUDA_ARCHITECTURES MATCHES "90a")
  message(FATAL_ERROR "SWITCHYARD_CUTLASS is ON, and SWITCHYARD_CUDA_ARCHITECTURES=${SWITCHYARD_CUDA_ARCHITECTURES} "
                      "has no 90a, the only architecture of its kernel: add 90a-real, or set SWITCHYARD_CUTLASS=OFF")
endif()
if(SWITCHYARD_CCACHE AND CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
set(SWITCHYARD_HAS_CUDA TRUE)
