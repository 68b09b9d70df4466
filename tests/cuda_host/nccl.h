// The NCCL functions that Switchyard uses, on top of MPI (nccl.cpp).
#pragma once

#include "cuda_runtime.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_UNIQUE_ID_BYTES 128

enum ncclResult_t {
  ncclSuccess,
  ncclUnhandledCudaError,
  ncclSystemError,
  ncclInternalError,
  ncclInvalidArgument,
  ncclInvalidUsage,
  ncclRemoteError,
  ncclInProgress
};
enum ncclDataType_t {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclInt64 = 4,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9
};
enum ncclRedOp_t { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg };
using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};
constexpr int NCCL_CONFIG_UNDEF_INT = INT32_MIN;
struct ncclConfig_t {
  // 0: calls return ncclInProgress and continue in ncclCommGetAsyncError.
  int blocking = NCCL_CONFIG_UNDEF_INT;
  int minCTAs = NCCL_CONFIG_UNDEF_INT, maxCTAs = NCCL_CONFIG_UNDEF_INT;
  const char* commName = nullptr;
};
#define NCCL_CONFIG_INITIALIZER \
  {}

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
constexpr int NCCL_SPLIT_NOCOLOR = -1;
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommCount(const ncclComm_t comm, int* ranks);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream,
                           std::source_location where = std::source_location::current());
ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream,
                        std::source_location where = std::source_location::current());
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                               std::source_location where = std::source_location::current());
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream,
                           std::source_location where = std::source_location::current());
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream,
                           std::source_location where = std::source_location::current());
ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, std::source_location where = std::source_location::current());
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, std::source_location where = std::source_location::current());
