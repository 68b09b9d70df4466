// GEMMs, by cuBLAS. cuBLAS takes matrices as column-major, and a row-major matrix is its own
// transpose there. So c = a b is computed as c^T = b^T a^T, with the operands exchanged.
//
// A and B have one type, f32 or bf16. C has their type or f32. Sums are in f32. CUBLAS_COMPUTE_32F
// with the handle's default math computes f32 in full. TF32 requires CUBLAS_TF32_TENSOR_OP_MATH or
// a _FAST_ type. The pedantic compute type would also forbid fast kernels, and change nothing
// else for real numbers.
//
// A GEMM costs 2 m n q FLOPs and at least w (m q + q n + m n) bytes. An addend costs w m n more.
#include <cublasLt.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/scan.h"
#include "kernels/cuda/side_streams.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/grouped_gemm.h"
#include "kernels/ops/heads.h"

namespace sy::cuda {

namespace {

cudaDataType_t cublas_type(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}
cublasOperation_t transposed(bool yes) {
  return yes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

// c (+)= op(a) op(b)
struct Form {
  bool transpose_a = false, transpose_b = false, accumulate = false;
};

// Sizes of a GEMM, as the `int` that cuBLAS takes. c: [m, n]; q is the summed dimension.
struct Product {
  int m, n, q;
  Product(Index m, Index n, Index q) : m(size(m)), n(size(n)), q(size(q)) {}
  static int size(Index n) {
    SY_ASSERT(n <= INT32_MAX, "a product with a dimension of {}", n);
    return static_cast<int>(n);
  }
  Index multiplications() const { return Index{m} * n * q; }
  // Row length of a and of b.
  int columns_of_a(const Form& form) const { return form.transpose_a ? m : q; }
  int columns_of_b(const Form& form) const { return form.transpose_b ? q : n; }
};

// Enqueues a GEMM on the stream of the handle.
void multiply_on(cublasHandle_t cublas, const Form& form, const Product& p, DType type, const void* a, const void* b,
                 DType type_of_c, void* c) {
  const float alpha = 1, beta = form.accumulate ? 1 : 0;
  check(cublasGemmEx(cublas, transposed(form.transpose_b), transposed(form.transpose_a), p.n, p.m, p.q, &alpha, b,
                     cublas_type(type), p.columns_of_b(form), a, cublas_type(type), p.columns_of_a(form), &beta, c,
                     cublas_type(type_of_c), p.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

// ---- GEMM with an addend ----

// Largest power of two that divides the address, at most 256; no kernel requires more.
std::uint32_t alignment(ConstView x) {
  const auto address = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(x.bytes())) | 256;
  return address & -address;
}

// c = op(a) op(b) + addend. Function cublasGemmEx adds in place, so it would need a copy of
// `addend` in c first: 134 MB of memory traffic for 8192 x 4096 of bf16. cuBLASLt reads `addend`
// directly. Returns false if it has no kernel, for example because addresses or rows are poorly
// aligned. The library caches its choice for a shape (cuBLAS library documentation,
// cublasLtHeuristicsCacheSetCapacity).
bool multiply_by_lt(cublasHandle_t cublas, const Form& form, const Product& p, ConstView a, ConstView b,
                    ConstView addend, View c, View workspace, cudaStream_t stream) {
  // A cuBLAS handle is also a cuBLASLt handle (cuBLAS library documentation, cublasLtHandle_t).
  const auto lt = reinterpret_cast<cublasLtHandle_t>(cublas);
  cublasLtMatmulDescOpaque_t product;
  check(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
  const auto set_transpose = [&](cublasLtMatmulDescAttributes_t attribute, bool transpose) {
    const cublasOperation_t op = transposed(transpose);
    check(cublasLtMatmulDescSetAttribute(&product, attribute, &op, sizeof op), "cublasLtMatmulDescSetAttribute");
  };
  set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, form.transpose_b);
  set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, form.transpose_a);
  // Layout of a row-major matrix with rows of `row` elements, which are columns for cuBLAS.
  const auto layout_of = [](ConstView x, int row) {
    cublasLtMatrixLayoutOpaque_t layout;
    check(cublasLtMatrixLayoutInit(&layout, cublas_type(x.dtype()), static_cast<std::uint64_t>(row),
                                   static_cast<std::uint64_t>(x.dim(0)), row),
          "cublasLtMatrixLayoutInit");
    return layout;
  };
  cublasLtMatrixLayoutOpaque_t layout_of_b = layout_of(b, p.columns_of_b(form)),
                               layout_of_a = layout_of(a, p.columns_of_a(form)), layout_of_c = layout_of(c, p.n);
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  const auto set_preference = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace.size_bytes()));
  // If a product is split, its partial sums are added in f32, as in make_cublas.
  set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(addend));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(c));
  cublasLtMatmulHeuristicResult_t chosen;
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt, &product, &layout_of_b, &layout_of_a, &layout_of_c,
                                                               &layout_of_c, &preference, 1, &chosen, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS || found == 0 || chosen.state != CUBLAS_STATUS_SUCCESS) return false;
  const float one = 1;
  check(cublasLtMatmul(lt, &product, &one, b.bytes(), &layout_of_b, a.bytes(), &layout_of_a, &one, addend.bytes(),
                       &layout_of_c, c.bytes(), &layout_of_c, &chosen.algo, workspace.bytes(), workspace.size_bytes(),
                       stream),
        "cublasLtMatmul");
  return true;
}

void multiply_with_addend(Context& context, const Form& form, const Product& p, ConstView a, ConstView b,
                          ConstView addend, View c) {
  const View workspace = Workspace(context).take({side_stream_workspace}, DType::u8);
  const auto issue = [&](cudaStream_t stream) {
    if (multiply_by_lt(context.cublas, form, p, a, b, addend, c, workspace, stream)) return;
    check(cudaMemcpyAsync(c.bytes(), addend.bytes(), c.size_bytes(), cudaMemcpyDeviceToDevice, stream),
          "a copy on the GPU");
    Form adding = form;
    adding.accumulate = true;
    multiply_on(context.cublas, adding, p, a.dtype(), a.bytes(), b.bytes(), c.dtype(), c.bytes());
  };
  context.stream.enqueue(issue, form, p, a.dtype(), c.dtype(), a.bytes(), b.bytes(), addend.bytes(), c.bytes());
}

// ---- one GEMM for each expert ----

// An operand of the experts' GEMMs: ranges of the rows of one matrix, or one matrix for each
// expert.
struct Operand {
  Index address, bytes;  // address of the first; size of a row, or of an expert's matrix
  bool by_row;

  explicit Operand(ConstView v)
      : address(reinterpret_cast<Index>(v.bytes())),
        bytes(v.shape().elements(1) * size_of(v.dtype())),
        by_row(v.shape().size() == 2) {}
  __host__ __device__ Index of(Index expert, Index first_row) const {
    return address + (by_row ? first_row : expert) * bytes;
  }
  bool aligned() const { return address % 16 == 0 && bytes % 16 == 0; }
};

// One block writes addresses: [3, pitch], of a, b and c for each expert that owns rows, without
// gaps. An expert costs 28 bytes.
__global__ void write_addresses(Index experts, In<std::int32_t> offsets, Operand a, Operand b, Operand c,
                                Out<Index> addresses, Index pitch) {
  block_scan(
      experts, [&](Index e) { return offsets[e] < offsets[e + 1] ? 1 : 0; },
      [&](Index e, int before) {
        if (offsets[e] == offsets[e + 1]) return;
        addresses[before] = a.of(e, offsets[e]);
        addresses[pitch + before] = b.of(e, offsets[e]);
        addresses[2 * pitch + before] = c.of(e, offsets[e]);
      });
}

// c_e (+)= op(a_e) op(b_e) for every expert that owns rows. product_of(count) returns the sizes of
// the GEMM of an expert with `count` rows.
//   * Large GEMMs each fill a GPU and run one after the other.
//   * Small GEMMs share one grouped call if types are equal and addresses are aligned. The host
//     then spends little time: a call of its own takes it about 11 us. But the kernels of the
//     grouped call lack the four-warp instructions of Hopper, and reach a third of its rate
//     ("Introducing Grouped GEMM APIs in cuBLAS", NVIDIA, 2024; tests/bench/results).
//   * The others run concurrently on side streams: GEMMs of medium size, and small ones such as
//     bf16 wgrad, whose result is f32.
template <class ProductOf>
void multiply_grouped(Context& context, const Form& form, const GroupOffsets& groups, ConstView a, ConstView b, View c,
                      ProductOf product_of) {
  const Index experts = groups.offsets.dim(0) - 1;
  const Operand of_a(a), of_b(b), of_c(c);
  const auto count_of = [&](Index e) { return groups.host[e + 1] - groups.host[e]; };
  const Index mean = product_of(groups.host[experts]).multiplications() / experts;
  const bool large = mean >= context.large_product;
  if (large || mean >= context.small_product || a.dtype() != c.dtype() || !of_a.aligned() || !of_b.aligned() ||
      !of_c.aligned()) {
    std::vector<Index> nonempty;
    for (Index e = 0; e < experts; ++e)
      if (count_of(e) > 0) nonempty.push_back(e);
    const auto count = static_cast<Index>(nonempty.size());
    const auto product = [&](Index i, cublasHandle_t cublas) {
      const Index e = nonempty[i];
      const auto at = [&](const Operand& x) { return reinterpret_cast<void*>(x.of(e, groups.host[e])); };
      multiply_on(cublas, form, product_of(count_of(e)), a.dtype(), at(of_a), at(of_b), c.dtype(), at(of_c));
    };
    if (!large) return context.side_streams->run(context.stream, count, product);
    for (Index i = 0; i < count; ++i)
      context.stream.enqueue_outside_graphs([&](cudaStream_t) { product(i, context.cublas); });
    return;
  }

  std::vector<Product> products;
  for (Index e = 0; e < experts; ++e)
    if (count_of(e) > 0) products.push_back(product_of(count_of(e)));
  const std::size_t count = products.size();
  const auto each = [&](auto get) {
    std::vector<int> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = get(products[i]);
    return values;
  };
  const std::vector<int> m = each([](const Product&p) { return p.m; }), n = each([](const Product&p) { return p.n; }),
                         q = each([](const Product&p) { return p.q; }),
                         columns_of_a = each([&](const Product&p) { return p.columns_of_a(form); }),
                         columns_of_b = each([&](const Product&p) { return p.columns_of_b(form); });
  const std::vector<cublasOperation_t> op_a(count, transposed(form.transpose_a)),
      op_b(count, transposed(form.transpose_b));
  const std::vector<float> alpha(count, 1.0f), beta(count, form.accumulate ? 1.0f : 0.0f);
  const std::vector<int> ones(count, 1);
  // The pitch is even, so that each list is aligned to 16 bytes.
  const Index pitch = blocks_of(experts, 2) * 2;
  const View addresses = Workspace(context).take({3, pitch}, DType::i64);
  launch(context, {}, write_addresses, experts, groups.offsets, of_a, of_b, of_c, addresses, pitch);
  const auto list = [&](Index i) { return reinterpret_cast<void**>(addresses.rows(i, 1).bytes()); };
  context.stream.enqueue_outside_graphs([&](cudaStream_t) {
    check(cublasGemmGroupedBatchedEx(context.cublas, op_b.data(), op_a.data(), n.data(), m.data(), q.data(),
                                     alpha.data(), list(1), cublas_type(b.dtype()), columns_of_b.data(), list(0),
                                     cublas_type(a.dtype()), columns_of_a.data(), beta.data(), list(2),
                                     cublas_type(c.dtype()), n.data(), static_cast<int>(count), ones.data(),
                                     CUBLAS_COMPUTE_32F),
          "cublasGemmGroupedBatchedEx");
  });
}

// Enqueues the product by CUTLASS if the device has its kernel and the kernel serves the operands.
// Otherwise returns false: the product is one for cuBLAS, which reads no rows through an index.
template <class Operation>
bool multiply_by_cutlass(Context& context, const Operation& op) {
  const ExpertProduct product = expert_product(op);
  const bool served = context.expert_products && is_served(product);
  if (served) context.expert_products->run(product);
  SY_ASSERT(served || (!product.a.index && !product.b.index),
            "{}: gathered rows need addresses that are aligned to 16 bytes, and gradients of weights in f32", op.name);
  return served;
}

}  // namespace

bool CudaDevice::supports_gathered_rows(DType type, std::initializer_list<Index> dims) const {
  return context_.expert_products && type == DType::bf16 &&
         std::all_of(dims.begin(), dims.end(), [](Index n) { return n % expert_row_multiple == 0; });
}

void execute(CudaDevice& device, const ops::Gemm& op) {
  const Form form{.transpose_a = op.transpose_a, .transpose_b = op.transpose_b, .accumulate = op.accumulate};
  const Product p(op.c.dim(0), op.c.dim(1), op.depth());
  Context& context = device.context();
  if (op.addend) return multiply_with_addend(context, form, p, op.a, op.b.values, op.addend, op.c);
  const DType type = op.a.dtype(), type_of_c = op.c.dtype();
  const std::byte *const a = op.a.bytes(), *const b = op.b.values.bytes();
  std::byte* const c = op.c.bytes();
  context.stream.enqueue([&](cudaStream_t) { multiply_on(context.cublas, form, p, type, a, b, type_of_c, c); }, form, p,
                         type, type_of_c, a, b, c);
}

void execute(CudaDevice& device, const ops::GroupedGemm& op) {
  if (multiply_by_cutlass(device.context(), op)) return;
  const ConstView w = op.w.values;
  multiply_grouped(device.context(), {.transpose_b = true}, op.groups, op.x.values, w, op.y,
                   [&](Index count) { return Product(count, w.dim(1), w.dim(2)); });
}

void execute(CudaDevice& device, const ops::GroupedGemmDgrad& op) {
  if (multiply_by_cutlass(device.context(), op)) return;
  const ConstView w = op.w.values;
  multiply_grouped(device.context(), {}, op.groups, op.dy.values, w, op.dx,
                   [&](Index count) { return Product(count, w.dim(2), w.dim(1)); });
}

void execute(CudaDevice& device, const ops::GroupedGemmWgrad& op) {
  if (multiply_by_cutlass(device.context(), op)) return;
  const View dw = op.dw;
  // Experts without rows have no GEMM.
  const std::int32_t* const offsets = op.groups.host;
  for (Index e = 0; e < dw.dim(0) && !op.accumulate; ++e)
    if (offsets[e] == offsets[e + 1]) execute(device, ops::Fill{.x = dw.rows(e, 1), .value = 0});
  multiply_grouped(device.context(), {.transpose_a = true, .accumulate = op.accumulate}, op.groups, op.dy.values,
                   op.x.values, dw, [&](Index count) { return Product(dw.dim(1), dw.dim(2), count); });
}

// One GEMM for each head, on rows that are one position apart. cuBLAS gets the operands exchanged:
// x is the second one.
void execute(CudaDevice& device, const ops::BatchedHeadGemm& op) {
  const ConstHeads& x = op.x;
  const ConstView w = op.w;
  const Heads& y = op.y;
  Context& context = device.context();
  const Form form{.transpose_b = op.pass == GemmPass::fprop};
  const Product p(y.sequences * y.positions, y.width, x.width);
  const cudaDataType_t type = cublas_type(w.dtype());
  const int row_of_w = static_cast<int>(w.dim(2)), row_of_x = Product::size(x.token_stride),
            row_of_y = Product::size(y.token_stride), heads = Product::size(y.heads);
  const long long of_w = w.dim(1) * w.dim(2), of_x = x.head_stride, of_y = y.head_stride;
  context.stream.enqueue(
      [&](cudaStream_t) {
        const float alpha = 1, beta = 0;
        check(cublasGemmStridedBatchedEx(context.cublas, transposed(form.transpose_b), CUBLAS_OP_N, p.n, p.m, p.q,
                                         &alpha, w.bytes(), type, row_of_w, of_w, x.data, type, row_of_x, of_x, &beta,
                                         y.data, type, row_of_y, of_y, heads, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              "cublasGemmStridedBatchedEx");
      },
      form, p, type, w.bytes(), row_of_w, of_w, x.data, row_of_x, of_x, y.data, row_of_y, of_y, heads);
}

}  // namespace sy::cuda
