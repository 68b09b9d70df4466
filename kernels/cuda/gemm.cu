// Products, by cuBLAS. It knows column-major matrices: a row-major one is its transpose there, so c = a b is asked for as
// c^T = b^T a^T, with the operands exchanged.
//
// Types: A and B alike, f32 or bf16, C as they are or f32, products summed in f32. CUBLAS_COMPUTE_32F with the handle's
// default math computes f32 in full: TF32 would have to be asked for, by CUBLAS_TF32_TENSOR_OP_MATH or a _FAST_ type. The
// pedantic type forbids no more that concerns real products, but fast kernels too.
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/scan.h"

namespace sy::cuda {

namespace {

cudaDataType_t cublas_type(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}
cublasOperation_t transposed(bool yes) {
  return yes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

// What cuBLAS takes as int. c: [m, n], q: the inner size
struct Sizes {
  int m, n, q;
  Sizes(Index m, Index n, Index q) : m(static_cast<int>(m)), n(static_cast<int>(n)), q(static_cast<int>(q)) {
    SY_ASSERT(m <= INT32_MAX && n <= INT32_MAX && q <= INT32_MAX, "a product of {} x {} x {}", m, n, q);
  }
  Index multiplications() const { return Index{m} * n * q; }
  // The row length of a and b.
  int columns_of_a(const Gemm& desc) const { return desc.transpose_a ? m : q; }
  int columns_of_b(const Gemm& desc) const { return desc.transpose_b ? q : n; }
};

void multiply(Context& context, const Gemm& desc, const Sizes& sizes, DType type, const void* a, const void* b,
              DType type_of_c, void* c) {
  const float alpha = 1, beta = desc.accumulate ? 1 : 0;
  context.stream.put(
      [&](cudaStream_t) {
        check(cublasGemmEx(context.cublas, transposed(desc.transpose_b), transposed(desc.transpose_a), sizes.n, sizes.m,
                           sizes.q, &alpha, b, cublas_type(type), sizes.columns_of_b(desc), a, cublas_type(type),
                           sizes.columns_of_a(desc), &beta, c, cublas_type(type_of_c), sizes.n, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT),
              "cublasGemmEx");
      },
      desc, sizes, type, type_of_c, a, b, c);
}

// ---- a product for each expert ----

// Matrices of the experts: runs of the rows of one matrix, or one matrix each.
struct Operand {
  Index address, bytes;  // of the first; of a row, or of an expert
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

// One block writes the addresses of the operands of the experts that have rows, one after the other: [3, pitch].
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

// The mean expert's multiplications from which on each expert has a call of its own: its product fills a GPU alone, and
// cuBLAS's grouped kernels do without the instructions of four warps that Hopper needs for its full rate ("Introducing
// Grouped GEMM APIs in cuBLAS", NVIDIA, 2024). Chosen without a GPU: bench_gpu measures both ways.
constexpr Index large_product = Index{1} << 34;

// c_e (+)= op(a_e) op(b_e) for every expert with rows; sizes_of(rows) are those of its product. One call of cuBLAS for
// products that are small, where it offers that: types must be alike, and addresses aligned.
template <class SizesOf>
void multiply_grouped(Context& context, const Gemm& desc, const Groups& groups, ConstView a, ConstView b, View c,
                      SizesOf sizes_of) {
  const Index experts = groups.offsets.dim(0) - 1;
  const Operand of_a(a), of_b(b), of_c(c);
  const auto rows = [&](Index e) { return groups.host[e + 1] - groups.host[e]; };
  const bool large = sizes_of(groups.host[experts]).multiplications() >= experts * large_product;
  if (large || a.dtype() != c.dtype() || !of_a.aligned() || !of_b.aligned() || !of_c.aligned()) {
    for (Index e = 0; e < experts; ++e) {
      const auto at = [&](const Operand& x) { return reinterpret_cast<void*>(x.of(e, groups.host[e])); };
      if (rows(e) > 0) multiply(context, desc, sizes_of(rows(e)), a.dtype(), at(of_a), at(of_b), c.dtype(), at(of_c));
    }
    return;
  }

  std::vector<Sizes> all;
  for (Index e = 0; e < experts; ++e)
    if (rows(e) > 0) all.push_back(sizes_of(rows(e)));
  const std::size_t count = all.size();
  const auto each = [&](auto get) {
    std::vector<int> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = get(all[i]);
    return values;
  };
  const std::vector<int> m = each([](const Sizes&s) { return s.m; }), n = each([](const Sizes&s) { return s.n; }),
                         q = each([](const Sizes&s) { return s.q; }),
                         columns_of_a = each([&](const Sizes&s) { return s.columns_of_a(desc); }),
                         columns_of_b = each([&](const Sizes&s) { return s.columns_of_b(desc); });
  const std::vector<cublasOperation_t> op_a(count, transposed(desc.transpose_a)),
      op_b(count, transposed(desc.transpose_b));
  const std::vector<float> alpha(count, 1.0f), beta(count, desc.accumulate ? 1.0f : 0.0f);
  const std::vector<int> ones(count, 1);
  // An even number, so that each list is aligned to 16 bytes too.
  const Index pitch = blocks_of(experts, 2) * 2;
  const View addresses = Workspace(context).take({3, pitch}, DType::i64);
  launch(context, {}, write_addresses, experts, in<std::int32_t>(groups.offsets), of_a, of_b, of_c,
         out<Index>(addresses), pitch);
  const auto list = [&](Index i) { return reinterpret_cast<void**>(addresses.rows(i, 1).bytes()); };
  // Its sizes are those of this call: no pass repeats it.
  context.stream.cut();
  check(
      cublasGemmGroupedBatchedEx(context.cublas, op_b.data(), op_a.data(), n.data(), m.data(), q.data(), alpha.data(),
                                 list(1), cublas_type(b.dtype()), columns_of_b.data(), list(0), cublas_type(a.dtype()),
                                 columns_of_a.data(), beta.data(), list(2), cublas_type(c.dtype()), n.data(),
                                 static_cast<int>(count), ones.data(), CUBLAS_COMPUTE_32F),
      "cublasGemmGroupedBatchedEx");
}

}  // namespace

void CudaBackend::do_gemm(const Gemm& desc, ConstView a, ConstView b, View c) {
  multiply(context_, desc, Sizes(c.dim(0), c.dim(1), a.dim(desc.transpose_a ? 0 : 1)), a.dtype(), a.bytes(), b.bytes(),
           c.dtype(), c.bytes());
}

void CudaBackend::do_grouped_gemm(ConstView x, ConstView w, const Groups& groups, View y) {
  multiply_grouped(context_, {.transpose_b = true}, groups, x, w, y,
                   [&](Index rows) { return Sizes(rows, w.dim(1), w.dim(2)); });
}

void CudaBackend::do_grouped_gemm_input(ConstView dy, ConstView w, const Groups& groups, View dx) {
  multiply_grouped(context_, {}, groups, dy, w, dx, [&](Index rows) { return Sizes(rows, w.dim(2), w.dim(1)); });
}

void CudaBackend::do_grouped_gemm_weight(ConstView dy, ConstView x, const Groups& groups, View dw) {
  multiply_grouped(context_, {.transpose_a = true, .accumulate = true}, groups, dy, x, dw,
                   [&](Index rows) { return Sizes(dw.dim(1), dw.dim(2), rows); });
}

}  // namespace sy::cuda
