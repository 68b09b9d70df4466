// Products of cuBLAS and cuBLASLt on the host.
//
// Only the elements of a matrix are accessed and checked (host/memory.h), not the gaps between its
// columns. Operands in bf16 are converted to f32, and the result is rounded once. The cuda device
// promises results that depend only on their inputs, so these products must too. OpenBLAS has
// different kernels for different sizes. Here it runs on one thread, on the same number of columns
// of C in every call.
#include "cublas_v2.h"

#include <cblas.h>

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "cublasLt.h"
#include "cuda_bf16.h"
#include "host/memory.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  bool alive = true;
};

namespace {

using namespace sy::cuda_host;

std::size_t size_of(cudaDataType type) {
  return type == CUDA_R_16BF ? 2 : 4;
}

// A column-major matrix in device memory.
struct Matrix {
  std::byte* elements;
  cudaDataType type;
  int rows, columns, ld;

  void each_run(auto f) const {
    const std::size_t run = size_of(type) * static_cast<std::size_t>(rows);
    if (rows == ld) return f(elements, run * static_cast<std::size_t>(columns));
    for (int j = 0; j < columns; ++j)
      f(elements + size_of(type) * static_cast<std::size_t>(ld) * static_cast<std::size_t>(j), run);
  }
  std::vector<float> as_f32() const {  // without gaps
    std::vector<float> result;
    result.reserve(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    each_run([&](const std::byte* run, std::size_t bytes) {
      for (std::size_t at = 0; at < bytes; at += size_of(type))
        result.push_back(type == CUDA_R_16BF ? float(*reinterpret_cast<const __nv_bfloat16*>(run + at))
                                             : *reinterpret_cast<const float*>(run + at));
    });
    return result;
  }
  void assign(const std::vector<float>& values) const {
    auto value = values.begin();
    each_run([&](std::byte* run, std::size_t bytes) {
      for (std::size_t at = 0; at < bytes; at += size_of(type), ++value)
        if (type == CUDA_R_16BF)
          *reinterpret_cast<__nv_bfloat16*>(run + at) = *value;
        else
          *reinterpret_cast<float*>(run + at) = *value;
    });
  }
};

struct Product {
  cublasOperation_t op_a, op_b;
  int m, n, k;
  float alpha, beta;
  const void *a, *b;
  void* c;
  int lda, ldb, ldc;
  // The matrix that beta scales, laid out as C. nullptr means C.
  const void* from = nullptr;
};

enum class Way { single, grouped, lt };
struct Types {
  cudaDataType a, b, c;
  Way way = Way::single;
  // Grouped products have one type.
  bool supported() const { return a == b && (c == a || (c == CUDA_R_32F && way != Way::grouped)); }
};

// Allocates memory for the kernels of a kind of product at its first use; it is never freed.
// Returns false if the device has no memory left.
bool load_kernels(const Types& types) {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  static std::set<std::tuple<int, int, Way>> loaded;
  const std::tuple key(types.a, types.c, types.way);
  if (loaded.count(key)) return true;
  if (!allocate(bytes)) return false;
  loaded.insert(key);
  counter_values.library_bytes += bytes;
  return true;
}

bool valid(const Product& p) {
  const int rows_a = p.op_a == CUBLAS_OP_N ? p.m : p.k, rows_b = p.op_b == CUBLAS_OP_N ? p.k : p.n;
  return p.m >= 0 && p.n >= 0 && p.k >= 0 && p.lda >= std::max(1, rows_a) && p.ldb >= std::max(1, rows_b) &&
         p.ldc >= std::max(1, p.m);
}

constexpr std::size_t tile = 16;  // columns per call of OpenBLAS

std::vector<float> transposed(const std::vector<float>& x, int rows) {
  std::vector<float> result(x.size());
  const auto r = static_cast<std::size_t>(rows), columns = x.size() / std::max<std::size_t>(r, 1);
  for (std::size_t i = 0; i < r; ++i)
    for (std::size_t j = 0; j < columns; ++j) result[i * columns + j] = x[j * r + i];
  return result;
}

void compute(const Operation& operation, const Product& p, const Types& types) {
  if (p.m == 0 || p.n == 0) return;
  const bool plain_a = p.op_a == CUBLAS_OP_N, plain_b = p.op_b == CUBLAS_OP_N;
  const auto matrix = [](const void* elements, cudaDataType type, int rows, int columns, int ld) {
    return Matrix{static_cast<std::byte*>(const_cast<void*>(elements)), type, rows, columns, ld};
  };
  const Matrix a = matrix(p.a, types.a, plain_a ? p.m : p.k, plain_a ? p.k : p.m, p.lda);
  const Matrix b = matrix(p.b, types.b, plain_b ? p.k : p.n, plain_b ? p.n : p.k, p.ldb);
  const Matrix c = matrix(p.c, types.c, p.m, p.n, p.ldc);
  const Matrix from = matrix(p.from ? p.from : p.c, types.c, p.m, p.n, p.ldc);
  for (const auto& [x, name] : {std::pair(&a, "A"), std::pair(&b, "B"), std::pair(&from, "C"), std::pair(&c, "D")}) {
    if (reinterpret_cast<std::uintptr_t>(x->elements) % (types.way == Way::grouped ? 16 : size_of(x->type)) != 0)
      mistake("{}: the address of {} is not aligned", text(operation), name);
    if (x != &c && (x != &from || p.beta != 0))
      x->each_run([&](const std::byte* run, std::size_t bytes) { read_range(operation, run, bytes, name); });
  }
  c.each_run([&](std::byte* run, std::size_t bytes) { write_range(operation, run, bytes, p.from ? "D" : "C"); });

  // Multiplies tiles of columns of op(B) and C. Columns of the last tile past n are ignored.
  const std::vector<float> values_a = a.as_f32(), values_b = plain_b ? b.as_f32() : transposed(b.as_f32(), p.n);
  // Kernels of cuBLAS on Hopper round a product to the type of C before they add it to C.
  const bool rounded = types.c == CUDA_R_16BF && p.beta != 0;
  const std::vector<float> addend(p.beta != 0 ? from.as_f32() : std::vector<float>{});
  std::vector<float> values_c(rounded ? std::vector<float>{} : addend);
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n), k = static_cast<std::size_t>(p.k);
  values_c.resize(m * n);
  std::vector<float> columns_b(k * tile), columns_c(m * tile);
  for (std::size_t j = 0; j < n; j += tile) {
    const std::size_t count = std::min(tile, n - j);
    std::copy_n(values_b.begin() + static_cast<std::ptrdiff_t>(j * k), count * k, columns_b.begin());
    std::copy_n(values_c.begin() + static_cast<std::ptrdiff_t>(j * m), count * m, columns_c.begin());
    cblas_sgemm(CblasColMajor, plain_a ? CblasNoTrans : CblasTrans, CblasNoTrans, p.m, tile, p.k, p.alpha,
                values_a.data(), std::max(1, a.rows), columns_b.data(), std::max(1, p.k), rounded ? 0 : p.beta,
                columns_c.data(), p.m);
    std::copy_n(columns_c.begin(), count * m, values_c.begin() + static_cast<std::ptrdiff_t>(j * m));
  }
  if (rounded)
    for (std::size_t i = 0; i < values_c.size(); ++i)
      values_c[i] = static_cast<float>(__nv_bfloat16(values_c[i])) + p.beta * addend[i];
  c.assign(values_c);
}

void check_handle(cublasHandle_t handle, const char* what, Where where) {
  if (handle == nullptr || !handle->alive) mistake("{} at {} with an invalid handle", what, text(where));
  static const Stream* last = nullptr;
  ++counter_values.product_calls;
  counter_values.product_switches += last != nullptr && last != handle->stream;
  last = handle->stream;
}

Operation start(const cublasContext& handle, Stream* stream, const char* what, Where where) {
  const Operation operation = start_operation(stream, what, where);
  if (handle.workspace) claim_range(operation, handle.workspace, handle.workspace_bytes, "the workspace of cuBLAS");
  return operation;
}

std::vector<std::unique_ptr<cublasContext>> handles;

}  // namespace

// Returns another version than that of the headers, so that a test can tell them apart.
cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  const int loaded[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR + 1, 7};
  *value = loaded[type];
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS        ? "success"
         : status == CUBLAS_STATUS_ALLOC_FAILED ? "out of memory"
                                                : "an invalid value";
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  openblas_set_num_threads(1);
  *handle = handles.emplace_back(std::make_unique<cublasContext>()).get();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (handle == nullptr || !handle->alive) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->alive = false;
  return CUBLAS_STATUS_SUCCESS;
}

// Resets the workspace, as the real cublasSetStream does.
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->workspace = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t mode) {
  if ((mode & 3) == CUBLAS_TF32_TENSOR_OP_MATH) mistake("cublasSetMathMode allows TF32");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute_type, cublasGemmAlgo_t algorithm, Where where) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c,
                                    type_c, ldc, 0, 1, compute_type, algorithm, where);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void* alpha, const void* a, cudaDataType type_a, int lda,
                                          long long stride_a, const void* b, cudaDataType type_b, int ldb,
                                          long long stride_b, const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int count, cublasComputeType_t, cublasGemmAlgo_t,
                                          Where where) {
  constexpr const char* what = "a cuBLAS product";
  check_handle(handle, what, where);
  const Types types{type_a, type_b, type_c};
  if (!types.supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!load_kernels(types)) return CUBLAS_STATUS_ALLOC_FAILED;
  const auto at = [](auto* x, long long elements, cudaDataType type) {
    return reinterpret_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(x))) +
           elements * static_cast<long long>(size_of(type));
  };
  std::vector<Product> products;
  for (int i = 0; i < count; ++i) {
    const Product product{op_a,
                          op_b,
                          m,
                          n,
                          k,
                          *static_cast<const float*>(alpha),
                          *static_cast<const float*>(beta),
                          at(a, i * stride_a, type_a),
                          at(b, i * stride_b, type_b),
                          at(c, i * stride_c, type_c),
                          lda,
                          ldb,
                          ldc};
    if (!valid(product)) return CUBLAS_STATUS_INVALID_VALUE;
    products.push_back(product);
  }
  enqueue(handle->stream, [=, h = *handle](Stream* on) {
    const Operation operation = start(h, on, what, where);
    for (const Product& product : products) compute(operation, product, types);
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t handle, const cublasOperation_t op_a[],
                                          const cublasOperation_t op_b[], const int m[], const int n[], const int k[],
                                          const void* alpha, const void* const a[], cudaDataType type_a,
                                          const int lda[], const void* const b[], cudaDataType type_b, const int ldb[],
                                          const void* beta, void* const c[], cudaDataType type_c, const int ldc[],
                                          int group_count, const int group_size[], cublasComputeType_t, Where where) {
  constexpr const char* what = "a grouped cuBLAS product";
  check_handle(handle, what, where);
  check_not_captured(handle->stream, what);  // its sizes are in host memory
  const Types types{type_a, type_b, type_c, Way::grouped};
  if (!types.supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!load_kernels(types)) return CUBLAS_STATUS_ALLOC_FAILED;
  std::size_t count = 0;
  std::vector<Product> products;  // A, B and C are set when the products run
  for (int g = 0; g < group_count; ++g) count += static_cast<std::size_t>(group_size[g]);
  for (const void* list : {static_cast<const void*>(a), static_cast<const void*>(b), static_cast<const void*>(c)})
    if (reinterpret_cast<std::uintptr_t>(list) % 16 != 0)
      mistake("{}: a list is not aligned to 16 bytes", text({handle->stream, 0, what, where}));
  for (int g = 0; g < group_count; ++g)
    for (int j = 0; j < group_size[g]; ++j) {
      const Product product{op_a[g],
                            op_b[g],
                            m[g],
                            n[g],
                            k[g],
                            static_cast<const float*>(alpha)[g],
                            static_cast<const float*>(beta)[g],
                            nullptr,
                            nullptr,
                            nullptr,
                            lda[g],
                            ldb[g],
                            ldc[g]};
      if (!valid(product)) return CUBLAS_STATUS_INVALID_VALUE;
      products.push_back(product);
    }
  enqueue(handle->stream, [=, h = *handle](Stream* on) {
    const Operation operation = start(h, on, what, where);
    read_range(operation, a, count * sizeof *a, "the list of A");
    read_range(operation, b, count * sizeof *b, "the list of B");
    read_range(operation, c, count * sizeof *c, "the list of C");
    for (std::size_t i = 0; i < count; ++i) {
      Product product = products[i];
      std::tie(product.a, product.b, product.c) = std::tuple(a[i], b[i], c[i]);
      compute(operation, product, types);
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

// ---- cuBLASLt ----

namespace {

template <class T>
cublasStatus_t set(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  to = *static_cast<const T*>(value);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t, cudaDataType scale) {
  *desc = {CUBLAS_OP_N, CUBLAS_OP_N};
  return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return set(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? desc->op_a : desc->op_b, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType type, std::uint64_t rows,
                                        std::uint64_t columns, std::int64_t ld) {
  *layout = {type, rows, columns, ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference->reductions, value, bytes);
    default:
      return set(preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t results[], int* found) {
  if ((preference->reductions & ~std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) != 0)
    mistake("cublasLtMatmulAlgoGetHeuristic may choose a product whose sums are rounded on the way");
  *found = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasLtMatrixLayout_t layouts[] = {a, b, c, d};
  for (std::size_t i = 0; i < 4; ++i)
    if (preference->alignments[i] < 4 || static_cast<std::size_t>(layouts[i]->ld) * size_of(layouts[i]->type) % 4 != 0)
      return CUBLAS_STATUS_NOT_SUPPORTED;
  cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
  result = {{preference->workspace_bytes, {}}, preference->workspace_bytes, CUBLAS_STATUS_SUCCESS};
  std::copy_n(preference->alignments, 4, result.algo.alignments);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream, Where where) {
  constexpr const char* what = "a cuBLASLt product";
  check_handle(reinterpret_cast<cublasHandle_t>(handle), what, where);
  const void* const addresses[] = {a, b, c, d};
  for (std::size_t i = 0; i < 4; ++i)
    if (reinterpret_cast<std::uintptr_t>(addresses[i]) % algo->alignments[i] != 0)
      mistake("{} at {}: the address of {} is not aligned to {} bytes, for which its kernel was chosen", what,
              text(where), "ABCD"[i], algo -> alignments[i]);
  const bool plain_a = desc->op_a == CUBLAS_OP_N, plain_b = desc->op_b == CUBLAS_OP_N;
  const std::uint64_t m = layout_d->rows, n = layout_d->columns, k = plain_a ? layout_a->columns : layout_a->rows;
  if ((plain_a ? layout_a->rows : layout_a->columns) != m || (plain_b ? layout_b->columns : layout_b->rows) != n ||
      (plain_b ? layout_b->rows : layout_b->columns) != k || layout_c->rows != m || layout_c->columns != n ||
      layout_c->ld != layout_d->ld || layout_c->type != layout_d->type || workspace_bytes < algo->workspace_bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto size = [](auto extent) { return static_cast<int>(extent); };
  const Product product{desc->op_a,
                        desc->op_b,
                        size(m),
                        size(n),
                        size(k),
                        *static_cast<const float*>(alpha),
                        *static_cast<const float*>(beta),
                        a,
                        b,
                        d,
                        size(layout_a->ld),
                        size(layout_b->ld),
                        size(layout_d->ld),
                        c};
  const Types types{layout_a->type, layout_b->type, layout_d->type, Way::lt};
  if (!types.supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!valid(product)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!load_kernels(types)) return CUBLAS_STATUS_ALLOC_FAILED;
  enqueue(stream, [=, bytes = algo->workspace_bytes](Stream* on) {
    const Operation operation = start_operation(on, what, where);
    if (bytes > 0) claim_range(operation, workspace, bytes, "the workspace of cuBLASLt");
    compute(operation, product, types);
  });
  return CUBLAS_STATUS_SUCCESS;
}
