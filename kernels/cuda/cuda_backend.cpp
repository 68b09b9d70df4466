// The cuda backend: one GPU, one stream. Each operation is in the file of its topic (ops.h).
#include <cstdlib>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/staging.h"

namespace sy {

namespace cuda {

namespace {

std::size_t bytes_of(ConstView x) {
  return static_cast<std::size_t>(x.size_bytes());
}

// The workspace is given after the stream, with which cuBLAS takes one of its own. Products whose result is bf16 are
// still summed in f32 where cuBLAS splits them.
Owned<cublasHandle_t> make_cublas(cudaStream_t stream, std::byte* workspace, Index bytes) {
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), "cublasCreate");
  Owned<cublasHandle_t> owned(handle);
  check(cublasSetStream(handle, stream), "cublasSetStream");
  check(cublasSetWorkspace(handle, workspace, static_cast<std::size_t>(bytes)), "cublasSetWorkspace");
  check(cublasSetMathMode(
            handle, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
        "cublasSetMathMode");
  return owned;
}

// $SWITCHYARD_GRAPHS = 0 puts every operation on the stream by itself: for debuggers, and to see what graphs gain.
bool graphs_wanted() {
  const char* const given = std::getenv("SWITCHYARD_GRAPHS");
  const std::string_view word = given ? given : "1";
  if (word != "0" && word != "1") bad_input("SWITCHYARD_GRAPHS = '{}': set it to 0 or 1, or unset it", word);
  return word == "1";
}

class CudaBackend final : public Backend {
 public:
  // The device is the current one.
  explicit CudaBackend(int device)
      : stream_(make_stream()),
        workspace_(device_memory(workspace_size)),
        cublas_workspace_(device_memory(workspace_size)),
        cublas_(make_cublas(stream_.get(), cublas_workspace_.get(), workspace_size)),
        context_{device, stream_.get(), cublas_.get(), workspace_.get(), workspace_size},
        staging_(context_.stream, waiter_),
        read_(pinned_memory(read_limit)),
        read_done_(make_event()),
        all_done_(make_event()) {
    check(cudaGetDeviceProperties(&properties_, device), "cudaGetDeviceProperties");
  }

  Context& context() { return context_; }
  void set_wait_hook(std::function<void()> hook) { waiter_.hook = std::move(hook); }

  std::string_view name() const override { return "cuda"; }
  std::string describe() const override {
    return fmt::format("cuda, {}, {:.0f} GiB, compute capability {}.{}", properties_.name,
                       static_cast<double>(properties_.totalGlobalMem) / (1 << 30), properties_.major,
                       properties_.minor);
  }
  std::string device_id() const override { return cuda::device_id(properties_); }

  DeviceMemory allocate(Index bytes) override { return device_memory(bytes); }
  Index free_bytes() const override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<Index>(free);
  }
  bool on_host() const override { return false; }
  Index largest_head() const override {
    const auto shared = static_cast<Index>(properties_.sharedMemPerBlockOptin);
    return shared >= attention_shared_bytes(widest_head) ? widest_head : narrow_head;
  }
  Index logits_at_once() const override { return Index{256} << 20; }
  void synchronize() override {
    check(cudaEventRecord(all_done_.get(), context_.stream), "cudaEventRecord");
    waiter_.wait(all_done_.get());
  }
  void repeated(const std::string& name, const std::function<void()>& body) override {
    graphs_ ? context_.stream.repeated(name, body) : body();
  }

 protected:
  void do_to_device(const void* host, View x) override { staging_.to_device(host, x.bytes(), x.size_bytes()); }
  void do_to_host(ConstView x, void* host) override { staging_.to_host(x.bytes(), host, x.size_bytes()); }
  void do_begin_read(ConstView x) override {
    check(cudaMemcpyAsync(read_.get(), x.bytes(), bytes_of(x), cudaMemcpyDeviceToHost, context_.stream),
          "a copy from the GPU");
    check(cudaEventRecord(read_done_.get(), context_.stream), "cudaEventRecord");
  }
  void do_end_read(void* host, Index bytes) override {
    waiter_.wait(read_done_.get());
    std::memcpy(host, read_.get(), static_cast<std::size_t>(bytes));
  }
  void do_fill(View x, float value) override { cuda::fill(context_, x, value); }
  void do_copy(ConstView x, View y) override {
    context_.stream.put(
        [&](cudaStream_t stream) {
          check(cudaMemcpyAsync(y.bytes(), x.bytes(), bytes_of(x), cudaMemcpyDeviceToDevice, stream),
                "a copy on the GPU");
        },
        y.bytes(), x.bytes(), bytes_of(x));
  }
  void do_convert(ConstView x, View y) override { cuda::convert(context_, x, y); }
  void do_add(ConstView x, View y) override { cuda::add(context_, x, y); }
  void do_sum_squares(ConstView x, View out) override { cuda::sum_squares(context_, x, out); }

  void do_gemm(const Gemm& desc, ConstView a, ConstView b, View c) override { cuda::gemm(context_, desc, a, b, c); }
  void do_grouped_gemm(ConstView x, ConstView w, const Groups& groups, View y) override {
    cuda::grouped_gemm(context_, x, w, groups, y);
  }
  void do_grouped_gemm_input(ConstView dy, ConstView w, const Groups& groups, View dx) override {
    cuda::grouped_gemm_input(context_, dy, w, groups, dx);
  }
  void do_grouped_gemm_weight(ConstView dy, ConstView x, const Groups& groups, View dw) override {
    cuda::grouped_gemm_weight(context_, dy, x, groups, dw);
  }
  void do_bias_forward(ConstView bias, View y) override { cuda::bias_forward(context_, bias, y); }
  void do_bias_backward(ConstView dy, View dbias) override { cuda::bias_backward(context_, dy, dbias); }

  void do_norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y,
                       View stats) override {
    cuda::norm_forward(context_, desc, x, weight, bias, y, stats);
  }
  void do_norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView stats, View dx,
                        View dweight, View dbias) override {
    cuda::norm_backward(context_, desc, dy, x, weight, stats, dx, dweight, dbias);
  }
  void do_activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) override {
    cuda::activation_forward(context_, desc, h, row_scale, y);
  }
  void do_activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                              View drow_scale) override {
    cuda::activation_backward(context_, desc, dy, h, row_scale, dh, drow_scale);
  }
  void do_rope(View x, Index heads, ConstView positions, ConstView table, bool inverse) override {
    cuda::rope(context_, x, heads, positions, table, inverse);
  }
  void do_qk_norm_forward(const QkNorm& desc, ConstView x, ConstView weight, ConstView positions, ConstView table,
                          View y, View inverse) override {
    cuda::qk_norm_forward(context_, desc, x, weight, positions, table, y, inverse);
  }
  void do_qk_norm_backward(const QkNorm& desc, ConstView dy, ConstView x, ConstView weight, ConstView inverse,
                           ConstView positions, ConstView table, View dx, View dweight) override {
    cuda::qk_norm_backward(context_, desc, dy, x, weight, inverse, positions, table, dx, dweight);
  }
  void do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                            View lse) override {
    cuda::attention_forward(context_, desc, q, k, v, out, lse);
  }
  void do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v,
                             ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) override {
    cuda::attention_backward(context_, desc, dout, q, k, v, out, lse, dq, dk, dv);
  }

  void do_route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, View experts, View weights,
                        View counts, View probability, View z_squared) override {
    cuda::route_forward(context_, desc, logits, bias, experts, weights, counts, probability, z_squared);
  }
  void do_route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView, ConstView dweights,
                         ConstView dprobability, float z_factor, View dlogits) override {
    cuda::route_backward(context_, desc, logits, experts, dweights, dprobability, z_factor, dlogits);
  }
  void do_capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index groups, Index num_experts,
                   View keep) override {
    cuda::capacity(context_, desc, experts, weights, groups, num_experts, keep);
  }
  void do_sort_assignments(const ExpertSplit& split, ConstView experts, ConstView keep, View rows, View tokens,
                           View slots, View counts) override {
    cuda::sort_assignments(context_, split, experts, keep, rows, tokens, slots, counts);
  }
  void do_balance(const BalanceDesc& desc, ConstView counts, ConstView scope_counts, ConstView probability,
                  ConstView kept, ConstView z_squared, View dprobability, View stats) override {
    cuda::balance(context_, desc, counts, scope_counts, probability, kept, z_squared, dprobability, stats);
  }
  void do_order_arrivals(ConstView counts, Index first, View offsets, View order, View inverse) override {
    cuda::order_arrivals(context_, counts, first, offsets, order, inverse);
  }
  void do_gather_rows(ConstView x, ConstView index, View y) override { cuda::gather_rows(context_, x, index, y); }
  void do_combine_rows(ConstView x, ConstView slots, bool accumulate, View y) override {
    cuda::combine_rows(context_, x, slots, accumulate, y);
  }

  void do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) override {
    cuda::embedding_forward(context_, ids, table, vocab_begin, y);
  }
  void do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) override {
    cuda::embedding_backward(context_, ids, dy, vocab_begin, dtable);
  }
  void do_cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets,
                                View stats) override {
    cuda::cross_entropy_forward(context_, desc, logits, targets, stats);
  }
  void do_cross_entropy_loss(ConstView stats, ConstView targets, View lse, View loss) override {
    cuda::cross_entropy_loss(context_, stats, targets, lse, loss);
  }
  void do_loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums) override {
    cuda::loss_sums(context_, losses, lse, targets, sums);
  }
  void do_cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                                 float factor, float z_factor, View dlogits) override {
    cuda::cross_entropy_backward(context_, desc, logits, targets, lse, factor, z_factor, dlogits);
  }
  void do_clip_factor(ConstView squares, float clip, View factor) override {
    cuda::clip_factor(context_, squares, clip, factor);
  }
  void do_adamw(const AdamW& desc, ConstView factor, ConstView rates, ConstView g, View w, View m, View v,
                View rounded) override {
    cuda::adamw(context_, desc, factor, rates, g, w, m, v, rounded);
  }

 private:
  // Freed in the reverse order: what the stream still uses is freed before it, which waits for it.
  Owned<cudaStream_t> stream_;
  DeviceMemory workspace_, cublas_workspace_;
  Owned<cublasHandle_t> cublas_;
  Context context_;
  Waiter waiter_;
  Staging staging_;
  DeviceMemory read_;  // what begin_read copies
  Owned<cudaEvent_t> read_done_, all_done_;
  const bool graphs_ = graphs_wanted();
  cudaDeviceProp properties_;
};

CudaBackend& cuda_backend(Backend& backend) {
  auto* const found = dynamic_cast<CudaBackend*>(&backend);
  SY_ASSERT(found, "the {} backend is not cuda", backend.name());
  return *found;
}

}  // namespace

Context& context_of(Backend& backend) {
  return cuda_backend(backend).context();
}

void set_wait_hook(Backend& backend, std::function<void()> hook) {
  cuda_backend(backend).set_wait_hook(std::move(hook));
}

}  // namespace cuda

bool cuda_available() {
  return cuda::choose_device(0).missing.empty();
}

std::unique_ptr<Backend> make_cuda(int local_rank) {
  const cuda::Choice choice = cuda::choose_device(local_rank);
  if (!choice.missing.empty()) bad_input("run.backend = cuda, but {}. run.backend = cpu needs no GPU", choice.missing);
  cuda::check(cudaSetDevice(choice.device), "cudaSetDevice");
  return std::make_unique<cuda::CudaBackend>(choice.device);
}

}  // namespace sy
