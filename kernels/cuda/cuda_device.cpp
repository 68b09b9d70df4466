// The cuda device: its stream and memory. Kernels are in the files of their topics.
#include "kernels/cuda/cuda_device.h"

#include <charconv>

#include "kernels/environment.h"
#include "kernels/kernel_table.h"

namespace sy {

namespace cuda {

// The workspace is set after the stream, because cublasSetStream resets it to cuBLAS's own. The
// math mode makes cuBLAS sum in f32 if it splits a product with a bf16 result.
Owned<cublasHandle_t> make_cublas(cudaStream_t stream, std::byte* workspace, Index bytes) {
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), "cublasCreate");
  Owned<cublasHandle_t> owned(handle);
  check(cublasSetStream(handle, stream), "cublasSetStream");
  check(cublasSetWorkspace(handle, workspace, bytes), "cublasSetWorkspace");
  check(cublasSetMathMode(
            handle, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
        "cublasSetMathMode");
  return owned;
}

namespace {

// Returns whether a variable of the environment is 1 or not set. Debugging and measurements set
// SWITCHYARD_GRAPHS = 0, which disables CUDA graphs, SWITCHYARD_CUDNN = 0, which disables the
// attention of cuDNN, and SWITCHYARD_CUTLASS = 0, which disables the experts' products of CUTLASS.
bool is_wanted(VariableName name) {
  const char* const setting = environment(name);
  const std::string_view text = setting ? setting : "1";
  if (text != "0" && text != "1") bad_input("{} = '{}': set it to 0 or 1, or unset it", name.c_str(), text);
  return text == "1";
}

// A number of multiplications of SWITCHYARD_SMALL_PRODUCT or SWITCHYARD_LARGE_PRODUCT. The defaults
// were measured on an H200; bench_gpu recommends values for its GPU. The values may change the last
// bits of a result. So all ranks of a run must agree, and so must runs that are compared bit by
// bit.
Index multiplications(VariableName name, Index otherwise) {
  const char* const setting = environment(name);
  if (!setting) return otherwise;
  const std::string_view text = setting;
  Index value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    bad_input("{} = '{}': set it to a number of multiplications, as bench_gpu recommends one, or unset it",
              name.c_str(), text);
  return value;
}

}  // namespace

CudaDevice::CudaDevice(int device)
    : Device(kernel_table<CudaDevice>()),
      stream_(make_stream()),
      workspace_(device_memory(workspace_size)),
      cublas_workspace_(device_memory(workspace_size)),
      cublas_(make_cublas(stream_.get(), cublas_workspace_.get(), workspace_size)),
      context_{device,
               stream_.get(),
               cublas_.get(),
               workspace_.get(),
               workspace_size,
               &side_streams_,
               multiplications("SWITCHYARD_SMALL_PRODUCT", Index{1} << 31),
               multiplications("SWITCHYARD_LARGE_PRODUCT", Index{1} << 34)},
      fused_attention_(is_wanted("SWITCHYARD_CUDNN") ? make_fused_attention(context_) : nullptr),
      staging_(context_.stream),
      read_(pinned_memory(read_limit)),
      read_done_(make_event()),
      all_done_(make_event()),
      graphs_(is_wanted("SWITCHYARD_GRAPHS")) {
  check(cudaGetDeviceProperties(&properties_, device), "cudaGetDeviceProperties");
  context_.multiprocessors = properties_.multiProcessorCount;
  context_.fused_attention = fused_attention_.get();
  if (is_wanted("SWITCHYARD_CUTLASS")) expert_products_ = make_expert_products(context_, properties_);
  context_.expert_products = expert_products_.get();
}

std::string CudaDevice::describe() const {
  return fmt::format("cuda, {}, {:.0f} GiB, compute capability {}.{}", properties_.name,
                     static_cast<double>(properties_.totalGlobalMem) / (1 << 30), properties_.major, properties_.minor);
}

Index CudaDevice::free_bytes() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<Index>(free);
}

void CudaDevice::synchronize() {
  context_.stream.enqueue_outside_graphs(
      [&](cudaStream_t stream) { check(cudaEventRecord(all_done_.get(), stream), "cudaEventRecord"); });
  context_.stream.wait(all_done_.get());
}

void CudaDevice::do_begin_read(ConstView x) {
  context_.stream.enqueue_outside_graphs([&](cudaStream_t stream) {
    check(cudaMemcpyAsync(read_.get(), x.bytes(), x.size_bytes(), cudaMemcpyDeviceToHost, stream),
          "a copy from the GPU");
    check(cudaEventRecord(read_done_.get(), stream), "cudaEventRecord");
  });
}

void CudaDevice::do_end_read(void* host, Index bytes) {
  context_.stream.wait(read_done_.get());
  std::memcpy(host, read_.get(), bytes);
}

Context& context_of(Device& device) {
  auto* const found = dynamic_cast<CudaDevice*>(&device);
  SY_ASSERT(found, "the {} device is not cuda", device.name());
  return found->context();
}

}  // namespace cuda

bool cuda_available() {
  return cuda::choose_device(0).missing.empty();
}

std::unique_ptr<Device> make_cuda(int local_rank) {
  const cuda::Choice choice = cuda::choose_device(local_rank);
  if (!choice.missing.empty()) throw NoDevice("cuda", choice.missing);
  cuda::check(cudaSetDevice(choice.device), "cudaSetDevice");
  return std::make_unique<cuda::CudaDevice>(choice.device);
}

}  // namespace sy
