// The cuda device: one GPU, one stream. Shapes and meanings of all operations are in kernels/ops/.
#pragma once

#include <concepts>

#include "kernels/cuda/context.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/fused_attention.h"
#include "kernels/cuda/side_streams.h"
#include "kernels/cuda/staging.h"
#include "kernels/device.h"

namespace sy::cuda {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int device);  // device: the current CUDA device

  Context& context() { return context_; }
  // No GEMM of cuBLAS reads a packed weight, and there is no attention with hashing.
  template <class Operation>
  static constexpr bool lacks =
      std::same_as<Operation, ops::PackWeight> || std::same_as<Operation, ops::LshSort> ||
      std::same_as<Operation, ops::LshAttentionForward> || std::same_as<Operation, ops::LshAttentionBackward>;

  void publish_waits_to(std::shared_ptr<BlockState> state) override {
    context_.stream.publish_waits_to(std::move(state));
  }

  std::string_view name() const override { return "cuda"; }
  std::string describe() const override;
  std::string device_id() const override { return cuda::device_id(properties_); }
  std::optional<double> energy_joules() const override { return cuda::energy_joules(device_id()); }
  bool on_host() const override { return false; }
  DeviceMemory allocate(Index bytes) override { return device_memory(bytes); }
  Index free_bytes() const override;
  void synchronize() override;
  void graph_region(const std::string& name, const std::function<void()>& body) override {
    graphs_ ? context_.stream.graph_region(name, body) : body();
  }
  Index max_head_dim() const override;  // attention_forward.cu
  Index logits_chunk() const override { return cuda::logits_chunk; }
  bool allocates_in_attention() const override { return context_.fused_attention != nullptr; }
  // gemm.cu
  bool supports_gathered_rows(DType type, std::initializer_list<Index> dims) const override;

 protected:
  void do_to_device(const void* host, View x) override { staging_.to_device(host, x.bytes(), x.size_bytes()); }
  void do_to_host(ConstView x, void* host) override { staging_.to_host(x.bytes(), host, x.size_bytes()); }
  void do_begin_read(ConstView x) override;
  void do_end_read(void* host, Index bytes) override;

 private:
  // Members are destroyed in reverse order. Freeing device memory waits for the stream, so the
  // stream is destroyed last.
  Owned<cudaStream_t> stream_;
  DeviceMemory workspace_, cublas_workspace_;
  Owned<cublasHandle_t> cublas_;
  SideStreams side_streams_;
  Context context_;
  std::unique_ptr<FusedAttention> fused_attention_;
  std::unique_ptr<ExpertProducts> expert_products_;
  Staging staging_;
  DeviceMemory read_;  // pinned buffer of begin_read
  Owned<cudaEvent_t> read_done_, all_done_;
  const bool graphs_;
  cudaDeviceProp properties_;
};

// The kernels. Their operands are checked, and have elements. All run on the context's stream, in
// order, and never make the host wait.
#define SY_DECLARE(Operation) void execute(CudaDevice& device, const ops::Operation& op);
SY_OPERATIONS(SY_DECLARE)
#undef SY_DECLARE

}  // namespace sy::cuda
