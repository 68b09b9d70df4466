// Measures matrix products at the shapes of a training step: GFLOP/s, and the share of the FMA peak
// of the same run. It also measures OpenBLAS and oneDNN if the system has them (Debian:
// libopenblas0-openmp, libdnnl2; opened at run time).
//
//   bench_gemm [f32|bf16] [NAME]
//
// Products of bf16 are like those of a step: gradients of weights are summed in f32, other results
// are rounded to bf16. Their share is also of the f32 peak, which pairs may exceed, and no library
// is measured beside them. NAME: measures only products or shapes whose name contains it.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <sys/mman.h>

#include "kernels/cpu/processor.h"
#include "tests/bench/arguments.h"
#include "tests/bench/peak.h"

namespace {

using sy::Index;
using sy::bench::best_seconds;
using sy::cpu::Problem;

// Operands of a product: x W^T, dy W, dy^T x.
enum class Kind { forward, input_gradient, weight_gradient };
constexpr const char* kind_names[] = {"x W^T", "dy W", "dy^T x"};

struct Shape {
  const char* what;
  Kind kind;
  Index count, m, n, k;  // count products of c: [m, n], summed over k
};

constexpr Shape shapes[] = {
    {"attention qkv", Kind::forward, 1, 2048, 384, 256},
    {"attention qkv", Kind::forward, 1, 2048, 768, 256},
    {"attention out", Kind::forward, 1, 2048, 256, 256},
    {"attention qkv", Kind::input_gradient, 1, 2048, 256, 768},
    {"attention qkv", Kind::weight_gradient, 1, 768, 256, 2048},
    {"attention out", Kind::weight_gradient, 1, 256, 256, 2048},
    {"8 experts up", Kind::forward, 8, 512, 1408, 256},
    {"8 experts down", Kind::forward, 8, 512, 256, 704},
    {"8 experts up", Kind::input_gradient, 8, 512, 256, 1408},
    {"8 experts down", Kind::input_gradient, 8, 512, 704, 256},
    {"8 experts up", Kind::weight_gradient, 8, 1408, 256, 512},
    {"8 experts down", Kind::weight_gradient, 8, 256, 704, 512},
    {"64 experts up", Kind::forward, 64, 256, 512, 256},
    {"64 experts up", Kind::weight_gradient, 64, 512, 256, 256},
    {"32 experts up", Kind::forward, 32, 64, 1408, 256},
    {"32 experts up", Kind::input_gradient, 32, 64, 256, 1408},
    {"32 experts up", Kind::weight_gradient, 32, 1408, 256, 64},
    {"64 experts up", Kind::forward, 64, 32, 1408, 256},
    {"8 experts up", Kind::forward, 8, 16, 1408, 256},
    {"head, bytes", Kind::forward, 1, 2048, 257, 256},
    {"head, bytes", Kind::weight_gradient, 1, 257, 256, 2048},
    {"head", Kind::forward, 1, 2048, 32768, 256},
    {"head", Kind::input_gradient, 1, 2048, 256, 32768},
    {"head", Kind::weight_gradient, 1, 32768, 256, 2048},
    {"one token", Kind::forward, 1, 1, 768, 256},
    {"square", Kind::forward, 1, 1024, 1024, 1024},
};

using Cblas = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                       const float* b, int ldb, float beta, float* c, int ldc);
using Dnnl = int (*)(char trans_a, char trans_b, Index m, Index n, Index k, float alpha, const float* a, Index lda,
                     const float* b, Index ldb, float beta, float* c, Index ldc);

// Computes c (+)= op(a) op(b) of one product. All matrices are row-major.
using Multiply = std::function<void(const Problem& p, bool a_transposed, bool b_transposed)>;

Multiply by_cblas(void* function) {
  return [sgemm = reinterpret_cast<Cblas>(function)](const Problem& p, bool a_transposed, bool b_transposed) {
    sgemm(101, a_transposed ? 112 : 111, b_transposed ? 112 : 111, int(p.m), int(p.n), int(p.k), 1.0f,
          reinterpret_cast<const float*>(p.a.data), int(a_transposed ? p.m : p.k),
          reinterpret_cast<const float*>(p.b.data), int(b_transposed ? p.k : p.n), p.accumulate ? 1.0f : 0.0f,
          reinterpret_cast<float*>(p.c.data), int(p.n));
  };
}
Multiply by_dnnl(void* function) {
  return [sgemm = reinterpret_cast<Dnnl>(function)](const Problem& p, bool a_transposed, bool b_transposed) {
    sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', p.m, p.n, p.k, 1.0f,
          reinterpret_cast<const float*>(p.a.data), a_transposed ? p.m : p.k, reinterpret_cast<const float*>(p.b.data),
          b_transposed ? p.k : p.n, p.accumulate ? 1.0f : 0.0f, reinterpret_cast<float*>(p.c.data), p.n);
  };
}

// Allocates memory in huge pages, as the cpu device does.
template <class T>
struct InHugePages {
  using value_type = T;
  T* allocate(std::size_t n) {
    constexpr std::size_t page = std::size_t{2} << 20;
    const std::size_t bytes = (n * sizeof(T) + page - 1) / page * page;
    void* const memory = std::aligned_alloc(page, bytes);
    if (!memory) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  friend bool operator==(InHugePages, InHugePages) { return true; }
};
template <class T>
using Values = std::vector<T, InHugePages<T>>;

struct Library {
  const char *name, *file, *function;
  Multiply (*with)(void* function);
};
constexpr Library libraries[] = {{"OpenBLAS", "libopenblas.so.0", "cblas_sgemm", by_cblas},
                                 {"oneDNN", "libdnnl.so.2", "dnnl_sgemm", by_dnnl}};

struct Peer {
  const char* name;
  Multiply multiply;
};

// Measures the products of a shape, with elements T.
template <class T>
void measure(const Shape& s, double peak, const std::vector<Peer>& peers) {
  const auto filled = [](Index size) {
    Values<T> v(size);
    for (Index i = 0; i < size; ++i) v[i] = float((i * 7919) % 1009) / 1009 - 0.5f;
    return v;
  };
  const bool a_transposed = s.kind == Kind::weight_gradient, b_transposed = s.kind == Kind::forward;
  const Values<T> a = filled(s.count * s.m * s.k), b = filled(s.count * s.n * s.k);
  Values<float> sums(a_transposed ? s.count * s.m * s.n : 0);
  Values<T> rounded(a_transposed ? 0 : s.count * s.m * s.n);
  std::vector<Problem> problems;
  for (Index e = 0; e < s.count; ++e) {
    const Index c = e * s.m * s.n;
    problems.push_back({s.m,
                        s.n,
                        s.k,
                        {a.data() + e * s.m * s.k, a_transposed ? 1 : s.k, a_transposed ? s.m : 1},
                        {b.data() + e * s.n * s.k, b_transposed ? 1 : s.n, b_transposed ? s.k : 1},
                        a_transposed ? sy::cpu::GemmOutput(sums.data() + c) : sy::cpu::GemmOutput(rounded.data() + c),
                        s.n,
                        a_transposed});
  }
  const double flops = 2.0 * double(s.count) * double(s.m) * double(s.n) * double(s.k);
  const double own = flops / best_seconds([&] { sy::cpu_isa().kernels.gemm_batch(problems, sy::cpu::Multiply::best); });
  std::printf("%-16s %-7s %5td %6td %6td %6td %10.1f %5.0f%%", s.what, kind_names[int(s.kind)], s.count, s.m, s.n, s.k,
              own / 1e9, 100 * own / peak);
  for (const Peer& peer : peers) {
    const double theirs = flops / best_seconds([&] {
                            for (const Problem& p : problems) peer.multiply(p, a_transposed, b_transposed);
                          });
    std::printf(" %10.1f %5.0f%%", theirs / 1e9, 100 * theirs / peak);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

namespace {

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  std::vector<std::string> arguments;
  po::options_description options;
  options.add_options()("argument", po::value(&arguments), "f32 or bf16, and a part of a product's or a shape's name");
  po::variables_map values;
  if (!sy::bench::read_arguments(argc, argv, "bench_gemm",
                                 "Measures products of matrices: bench_gemm [f32|bf16] [NAME]", options, values, true,
                                 po::positional_options_description().add("argument", 2)))
    return 0;
  bool narrow = false;
  if (!arguments.empty() && (arguments[0] == "f32" || arguments[0] == "bf16")) {
    narrow = arguments[0] == "bf16";
    arguments.erase(arguments.begin());
  }
  if (arguments.size() > 1) sy::bad_input("{} is not a type: choose of f32 and bf16", arguments[0]);
  const std::string only = arguments.empty() ? "" : arguments[0];
  std::vector<Peer> peers;
  if (!narrow)
    for (const Library& l : libraries)
      if (void* const library = dlopen(l.file, RTLD_NOW | RTLD_LOCAL))
        if (void* const function = dlsym(library, l.function)) peers.push_back({l.name, l.with(function)});
  const double peak = sy::bench::measured_fma_peak();
  std::printf("%s: FMA peak of f32 %.1f GFLOP/s on %d threads\n\n", sy::cpu_isa().name.data(), peak / 1e9,
              omp_get_max_threads());
  std::printf("%-16s %-7s %5s %6s %6s %6s %10s %6s", "shape", "product", "count", "m", "n", "k", "GFLOP/s", "peak");
  for (const Peer& peer : peers) std::printf(" %10s %6s", peer.name, "peak");
  std::printf("\n");
  for (const Shape& s : shapes) {
    const auto named = [&](std::string_view name) { return name.find(only) != name.npos; };
    if (!named(s.what) && !named(kind_names[int(s.kind)])) continue;
    if (narrow)
      measure<sy::Bf16>(s, peak, peers);
    else
      measure<float>(s, peak, peers);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return sy::bench::exit_code_of("bench_gemm", argv, [&] { return run(argc, argv); });
}
