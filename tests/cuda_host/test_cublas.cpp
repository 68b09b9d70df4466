// Tests of the emulated cuBLAS: products against plain loops, and mistakes in calls.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <array>

#include "host_test.h"

namespace sy::cuda {
namespace {

struct Case {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  int m = 7, n = 5, k = 11;
  float alpha = 1, beta = 0;
  int gap = 0;  // rows between the columns of every matrix
  DType type = DType::f32, type_of_c = DType::f32;

  int rows_a() const { return op_a == CUBLAS_OP_N ? m : k; }
  int rows_b() const { return op_b == CUBLAS_OP_N ? k : n; }
  int columns_a() const { return op_a == CUBLAS_OP_N ? k : m; }
  int columns_b() const { return op_b == CUBLAS_OP_N ? n : k; }
};

cudaDataType cuda_type(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

class HostCublas : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasSetStream(handle, context.stream.end_capture()), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    HostTest::TearDown();
    EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
  }

  // A column-major matrix of small integers, whose products are exact in f32. Memory between its
  // columns is not initialised. values: the elements as f32, without gaps.
  View matrix(int rows, int columns, int gap, DType type, std::vector<float>& values) {
    const int ld = rows + gap;
    const View x = memory({Index{columns} * ld - gap}, type);
    values.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    for (int j = 0; j < columns; ++j) {
      const auto column = values.begin() + j * rows;
      for (int i = 0; i < rows; ++i) column[i] = static_cast<float>((i * 7 + j * 5 + seed++ * 3) % 9) - 4;
      const View to = x.rows(Index{j} * ld, rows);
      std::vector<bf16> rounded(column, column + rows);
      cudaMemcpyAsync(to.bytes(), type == DType::bf16 ? static_cast<const void*>(rounded.data()) : &*column,
                      static_cast<std::size_t>(to.size_bytes()), cudaMemcpyHostToDevice, context.stream.end_capture());
    }
    return x;
  }
  std::vector<float> read(View x, int rows, int columns, int gap) {
    std::vector<float> values;
    for (int j = 0; j < columns; ++j) {
      const View column = x.rows(Index{j} * (rows + gap), rows);
      if (x.dtype() == DType::bf16)
        for (bf16 v : download<bf16>(column)) values.push_back(v);
      else
        for (float v : download<float>(column)) values.push_back(v);
    }
    return values;
  }
  cublasStatus_t multiply(const Case& c, View a, View b, View y) {
    return cublasGemmEx(handle, c.op_a, c.op_b, c.m, c.n, c.k, &c.alpha, a.bytes(), cuda_type(c.type),
                        c.rows_a() + c.gap, b.bytes(), cuda_type(c.type), c.rows_b() + c.gap, &c.beta, y.bytes(),
                        cuda_type(c.type_of_c), c.m + c.gap, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  }
  // d = alpha op(a) op(b) + beta c
  struct Lt {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t chosen{};
    int found = 0;
    explicit Lt(const Case& o) {
      cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
      cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &o.op_a, sizeof o.op_a);
      cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSB, &o.op_b, sizeof o.op_b);
      const auto lay_out = [&](auto& layout, DType type, int rows, int columns) {
        cublasLtMatrixLayoutInit(&layout, cuda_type(type), static_cast<std::uint64_t>(rows),
                                 static_cast<std::uint64_t>(columns), rows + o.gap);
      };
      lay_out(a, o.type, o.rows_a(), o.columns_a());
      lay_out(b, o.type, o.rows_b(), o.columns_b());
      lay_out(c, o.type_of_c, o.m, o.n);
      cublasLtMatmulPreferenceInit(&preference);
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    }
    void prefer(cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
                CUBLAS_STATUS_SUCCESS);
    }
    cublasStatus_t choose() {
      return cublasLtMatmulAlgoGetHeuristic(nullptr, &product, &a, &b, &c, &c, &preference, 1, &chosen, &found);
    }
  };
  cublasStatus_t run(Lt& lt, const Case& c, View a, View b, View from, View to, View workspace = {}) {
    return cublasLtMatmul(reinterpret_cast<cublasLtHandle_t>(handle), &lt.product, &c.alpha, a.bytes(), &lt.a,
                          b.bytes(), &lt.b, &c.beta, from.bytes(), &lt.c, to.bytes(), &lt.c, &lt.chosen.algo,
                          workspace.bytes(), static_cast<std::size_t>(workspace.size_bytes()),
                          context.stream.end_capture());
  }
  static std::vector<float> expected(const Case& c, const std::vector<float>& a, const std::vector<float>& b,
                                     std::vector<float> y) {
    for (int j = 0; j < c.n; ++j)
      for (int i = 0; i < c.m; ++i) {
        float sum = 0;
        for (int q = 0; q < c.k; ++q)
          sum += a[static_cast<std::size_t>(c.op_a == CUBLAS_OP_N ? q * c.m + i : i * c.k + q)] *
                 b[static_cast<std::size_t>(c.op_b == CUBLAS_OP_N ? j * c.k + q : q * c.n + j)];
        float& element = y[static_cast<std::size_t>(j * c.m + i)];
        element = c.alpha * sum + (c.beta == 0 ? 0 : c.beta * element);
        if (c.type_of_c == DType::bf16) element = float_of_bf16(bf16_of_float(element));
      }
    return y;
  }

  cublasHandle_t handle = nullptr;
  int seed = 0;
};

TEST_F(HostCublas, MultipliesEveryLayoutAndType) {
  for (const auto op_a : {CUBLAS_OP_N, CUBLAS_OP_T})
    for (const auto op_b : {CUBLAS_OP_N, CUBLAS_OP_T})
      for (const auto& [type, type_of_c] :
           {std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::bf16), std::pair(DType::bf16, DType::f32)})
        for (const float beta : {0.0f, 1.0f, 0.5f})
          for (const int gap : {0, 3}) {
            const Case c{op_a, op_b, 7, 5, 11, beta == 0 ? 1.0f : 2.0f, beta, gap, type, type_of_c};
            std::vector<float> a, b, before;
            const View va = matrix(c.rows_a(), c.columns_a(), gap, type, a);
            const View vb = matrix(c.rows_b(), c.columns_b(), gap, type, b);
            const View vc = beta == 0 ? memory({Index{c.n} * (c.m + gap) - gap}, type_of_c)
                                      : matrix(c.m, c.n, gap, type_of_c, before);
            before.resize(35);
            ASSERT_EQ(multiply(c, va, vb, vc), CUBLAS_STATUS_SUCCESS);
            EXPECT_EQ(read(vc, c.m, c.n, gap), expected(c, a, b, before))
                << op_a << op_b << info(type).name << info(type_of_c).name << beta << gap;
          }
}

TEST_F(HostCublas, AddsAnAddendToTheProduct) {
  for (const auto op_a : {CUBLAS_OP_N, CUBLAS_OP_T})
    for (const auto op_b : {CUBLAS_OP_N, CUBLAS_OP_T})
      for (const auto& [type, type_of_c] :
           {std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::bf16), std::pair(DType::bf16, DType::f32)})
        for (const int gap : {0, 2}) {
          const Case c{op_a, op_b, 8, 6, 10, 2, 0.5f, gap, type, type_of_c};
          std::vector<float> a, b, from;
          const View va = matrix(c.rows_a(), c.columns_a(), gap, type, a);
          const View vb = matrix(c.rows_b(), c.columns_b(), gap, type, b);
          const View vc = matrix(c.m, c.n, gap, type_of_c, from), vd = memory(vc.shape(), type_of_c);
          Lt lt(c);
          ASSERT_EQ(lt.choose(), CUBLAS_STATUS_SUCCESS);
          ASSERT_EQ(lt.found, 1);
          ASSERT_EQ(run(lt, c, va, vb, vc, vd), CUBLAS_STATUS_SUCCESS);
          EXPECT_EQ(read(vc, c.m, c.n, gap), from);
          EXPECT_EQ(read(vd, c.m, c.n, gap), expected(c, a, b, from));
        }
}

TEST_F(HostCublas, RejectsInvalidAddends) {
  const Case c{.m = 8, .n = 6, .k = 10, .beta = 1};
  std::vector<float> values;
  const View a = matrix(8, 10, 0, DType::f32, values), b = matrix(10, 6, 0, DType::f32, values),
             from = matrix(8, 6, 0, DType::f32, values), to = memory({48}), workspace = memory({256}, DType::u8);
  Lt lt(c);
  lt.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{256});
  ASSERT_EQ(lt.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(lt, c, a, b, from, to), CUBLAS_STATUS_INVALID_VALUE);  // without its workspace
  EXPECT_EQ(run(lt, c, a, b, from, to, workspace), CUBLAS_STATUS_SUCCESS);
  expect_mistake("of C, which is uninitialised", [&] { run(lt, c, a, b, memory({48}), memory({48}), workspace); });
  expect_mistake("reaches beyond its allocation", [&] { run(lt, c, a, b, from, memory({47}), workspace); });
  const View wide = matrix(8, 7, 0, DType::f32, values);
  expect_mistake("the address of C is not aligned to 256 bytes",
                 [&] { run(lt, c, a, b, wide.rows(4, 48), to, workspace); });
  lt.c.rows = 7;
  EXPECT_EQ(run(lt, c, a, b, from, to, workspace), CUBLAS_STATUS_INVALID_VALUE);

  // Addresses or columns that are aligned to less than 4 bytes have no kernel.
  Lt hardly(c);
  hardly.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{2});
  EXPECT_EQ(hardly.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(hardly.found, 0);
  Case odd = c;
  odd.m = 7;
  odd.type = odd.type_of_c = DType::bf16;
  EXPECT_EQ(Lt(odd).choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  Lt rounding(c);
  rounding.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK});
  expect_mistake("whose sums are rounded on the way", [&] { rounding.choose(); });
}

TEST_F(HostCublas, RoundsSumsOnce) {
  // 1 + 1/256 lies halfway between two bf16 values. Rounding after every addition would give the
  // even one, 1, each time.
  const Case c{.m = 1, .n = 1, .k = 3, .type = DType::bf16, .type_of_c = DType::bf16};
  const View a = upload(std::vector<bf16>{1.0f, 1 / 256.0f, 1 / 256.0f}), b = upload(std::vector<bf16>(3, 1.0f));
  const View y = memory({1}, DType::bf16);
  ASSERT_EQ(multiply(c, a, b, y), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(static_cast<float>(download<bf16>(y)[0]), 1 + 1 / 128.0f);
}

TEST_F(HostCublas, MultipliesStridedBatches) {
  const Case c{CUBLAS_OP_T, CUBLAS_OP_N, 4, 3, 6};
  std::vector<float> a, b;
  const View va = matrix(6, 8, 0, DType::f32, a), vb = matrix(6, 6, 0, DType::f32, b), y = memory({24});
  ASSERT_EQ(cublasGemmStridedBatchedEx(handle, c.op_a, c.op_b, 4, 3, 6, &c.alpha, va.bytes(), CUDA_R_32F, 6, 24,
                                       vb.bytes(), CUDA_R_32F, 6, 18, &c.beta, y.bytes(), CUDA_R_32F, 4, 12, 2,
                                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  const auto found = download<float>(y);
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> a_i(a.begin() + 24 * i, a.begin() + 24 * (i + 1)),
        b_i(b.begin() + 18 * i, b.begin() + 18 * (i + 1));
    EXPECT_EQ(std::vector<float>(found.begin() + 12 * i, found.begin() + 12 * (i + 1)),
              expected(c, a_i, b_i, std::vector<float>(12)));
  }
}

// Two groups: one of two products, one of one product.
struct Grouped {
  std::vector<cublasOperation_t> op_a{CUBLAS_OP_N, CUBLAS_OP_N}, op_b{CUBLAS_OP_N, CUBLAS_OP_N};
  std::vector<int> m{4, 8}, n{3, 2}, k{8, 4}, lda{4, 8}, ldb{8, 4}, ldc{4, 8}, sizes{2, 1};
  std::vector<float> alpha{1, 2}, beta{0, 0};
};

TEST_F(HostCublas, MultipliesGroupedBatches) {
  const Grouped g;
  std::vector<float> a[3], b[3];
  std::vector<std::int64_t> list_a, list_b, list_c;
  View y[3];
  for (int i = 0; i < 3; ++i) {
    const auto at = static_cast<std::size_t>(i / 2);
    list_a.push_back(reinterpret_cast<std::int64_t>(matrix(g.m[at], g.k[at], 0, DType::f32, a[i]).bytes()));
    list_b.push_back(reinterpret_cast<std::int64_t>(matrix(g.k[at], g.n[at], 0, DType::f32, b[i]).bytes()));
    y[i] = memory({Index{g.m[at]} * g.n[at]});
    list_c.push_back(reinterpret_cast<std::int64_t>(y[i].bytes()));
  }
  const auto call = [&](View da, View db, View dc) {
    const auto list = [](View v) { return reinterpret_cast<void**>(v.bytes()); };
    return cublasGemmGroupedBatchedEx(handle, g.op_a.data(), g.op_b.data(), g.m.data(), g.n.data(), g.k.data(),
                                      g.alpha.data(), list(da), CUDA_R_32F, g.lda.data(), list(db), CUDA_R_32F,
                                      g.ldb.data(), g.beta.data(), list(dc), CUDA_R_32F, g.ldc.data(), 2,
                                      g.sizes.data(), CUBLAS_COMPUTE_32F);
  };
  const View da = upload(list_a), db = upload(list_b), dc = upload(list_c);
  ASSERT_EQ(call(da, db, dc), CUBLAS_STATUS_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    const auto at = static_cast<std::size_t>(i / 2);
    const Case c{.m = g.m[at], .n = g.n[at], .k = g.k[at], .alpha = g.alpha[at]};
    EXPECT_EQ(download<float>(y[i]), expected(c, a[i], b[i], std::vector<float>(static_cast<std::size_t>(c.m * c.n))));
  }
  expect_mistake("the list of B, which is uninitialised", [&] { call(da, memory({3}, DType::i64), dc); });
  expect_mistake("the list of C is not in device memory", [&] {
    call(da, db, {reinterpret_cast<std::byte*>(list_c.data()), {3}, DType::i64});
  });
  list_a[2] += 4;
  expect_mistake("the address of A is not aligned", [&] { call(upload(list_a), db, dc); });
}

TEST_F(HostCublas, RejectsInvalidOperands) {
  const Case c;
  std::vector<float> values;
  const View a = matrix(7, 11, 0, DType::f32, values), b = matrix(11, 5, 0, DType::f32, values), y = memory({35});
  ASSERT_EQ(multiply(c, a, b, y), CUBLAS_STATUS_SUCCESS);
  Case wide = c;
  wide.n = 6;
  expect_mistake("reaches beyond its allocation", [&] { multiply(wide, a, b, y); });
  Case gap = c;
  gap.gap = 1;
  expect_mistake("reaches beyond its allocation", [&] { multiply(gap, a, b, y); });
  for (const auto& [lda, ldb, ldc] : {std::array{6, 11, 7}, std::array{7, 10, 7}, std::array{7, 11, 6}})
    EXPECT_EQ(
        cublasGemmEx(handle, c.op_a, c.op_b, 7, 5, 11, &c.alpha, a.bytes(), CUDA_R_32F, lda, b.bytes(), CUDA_R_32F, ldb,
                     &c.beta, y.bytes(), CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        CUBLAS_STATUS_INVALID_VALUE);
  Case mixed = c;
  mixed.type_of_c = DType::bf16;
  EXPECT_EQ(multiply(mixed, a, b, y), CUBLAS_STATUS_NOT_SUPPORTED);
  expect_mistake("of B, which is uninitialised", [&] { multiply(c, a, memory({55}), y); });
  Case sum = c;
  sum.beta = 1;
  expect_mistake("of C, which is uninitialised", [&] { multiply(sum, a, b, memory({35})); });
  expect_mistake("reaches beyond", [&] { multiply(c, a, b.rows(1, 54), y); });

  cudaStreamSynchronize(context.stream.end_capture());
  ASSERT_EQ(multiply(c, a, b, y), CUBLAS_STATUS_SUCCESS);
  cublasSetStream(handle, stream());
  expect_mistake("without waiting for a cuBLAS product", [&] { multiply(c, a, b, y); });
  expect_mistake("TF32", [&] { cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH); });
}

TEST_F(HostCublas, RejectsAWorkspaceSharedByStreams) {
  const Case c;
  std::vector<float> values;
  const View a = matrix(7, 11, 0, DType::f32, values), b = matrix(11, 5, 0, DType::f32, values), y = memory({35}),
             z = memory({35}), workspace = memory({64}, DType::u8);
  cudaStreamSynchronize(context.stream.end_capture());
  cublasSetWorkspace(handle, workspace.bytes(), 64);
  ASSERT_EQ(multiply(c, a, b, y), CUBLAS_STATUS_SUCCESS);
  cublasSetStream(handle, stream());  // resets the workspace
  ASSERT_EQ(multiply(c, a, b, z), CUBLAS_STATUS_SUCCESS);
  cublasSetWorkspace(handle, workspace.bytes(), 64);
  expect_mistake("writes the workspace of cuBLAS without waiting", [&] { multiply(c, a, b, z); });
}

}  // namespace
}  // namespace sy::cuda
