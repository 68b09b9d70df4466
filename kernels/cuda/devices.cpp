#include "kernels/cuda/devices.h"

#include "kernels/cuda/context.h"
#include "kernels/cuda/kernel_images.h"

namespace sy::cuda {
namespace {

std::string version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties;
}

std::string capability(int tens) {
  return fmt::format("{}.{}", tens / 10, tens % 10);
}

void try_device(int number, Gpu& device) {
  device.tried = true;
  int image = 0;
  std::size_t free = 0, total = 0;
  cudaError_t code = cudaSetDevice(number);
  if (code == cudaSuccess) code = cudaMemGetInfo(&free, &total);
  if (code == cudaSuccess) code = kernel_image(image);
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction)
    device.error = "no kernel of this build runs on it";
  else if (code != cudaSuccess)
    device.error = cudaGetErrorString(code);
  cudaGetLastError();  // reported here, so that no later call reports it
  device.free_bytes = static_cast<Index>(free);
  if (device.error.empty()) device.kernels = "compiled for " + capability(image);
}

}  // namespace

std::string device_id(const cudaDeviceProp& p) {
  return fmt::format("{:04x}:{:02x}:{:02x}", p.pciDomainID, p.pciBusID, p.pciDeviceID);
}

Choice choose_device(int local_rank) {
  int driver = 0, runtime = 0, devices = 0;
  cudaDriverGetVersion(&driver);  // 0 without a driver
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0)
    return {-1, fmt::format("there is no NVIDIA driver: install one for CUDA {} or later", version(runtime))};
  const cudaError_t code = cudaGetDeviceCount(&devices);
  cudaGetLastError();  // reported here, so that no later call reports it
  if (code == cudaErrorNoDevice || (code == cudaSuccess && devices == 0))
    return {-1, "there is no GPU, or CUDA_VISIBLE_DEVICES hides it"};
  if (code != cudaSuccess && driver < runtime)
    return {-1,
            fmt::format("the NVIDIA driver is too old: it knows CUDA {}, this build of switchyard needs {}",
                        version(driver), version(runtime)),
            true};
  if (code != cudaSuccess)
    return {-1, fmt::format("the NVIDIA driver does not work: {}", cudaGetErrorString(code)), true};
  const int device = local_rank % devices;
  const cudaDeviceProp properties = properties_of(device);
  if (properties.major < 8)
    return {-1, fmt::format("GPU {}, {}, has compute capability {}.{}: 8.0 or later is needed", device, properties.name,
                            properties.major, properties.minor)};
  return {device, {}};
}

// Requires neither a driver nor a device.
static std::string loaded_cublas() {
  std::vector<int> numbers;
  for (const libraryPropertyType property : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL})
    check(cublasGetProperty(property, &numbers.emplace_back()), "cublasGetProperty");
  return fmt::format("{}", fmt::join(numbers, "."));
}

Versions versions() {
  std::vector<std::string> capabilities;
  for (int image : kernel_images()) capabilities.push_back(capability(image));
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return {fmt::format("{}", fmt::join(capabilities, ", ")),
          version(runtime),
          driver > 0 ? version(driver) : "",
          {fmt::format("{}.{}.{}", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH), loaded_cublas()}};
}

std::vector<Gpu> visible_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  cudaGetLastError();  // choose_device reports it
  std::vector<Gpu> found;
  for (int i = 0; i < count; ++i) {
    const cudaDeviceProp p = properties_of(i);
    Gpu device;
    device.name = p.name;
    device.id = device_id(p);
    device.capability = capability(10 * p.major + p.minor);
    device.bytes = static_cast<Index>(p.totalGlobalMem);
    found.push_back(device);
  }
  return found;
}

std::vector<Gpu> find_devices(int local_rank, int local_ranks) {
  std::vector<Gpu> found = visible_devices();
  const int count = static_cast<int>(found.size());
  for (int i = 0; i < count; ++i) {
    Gpu& device = found[i];
    for (int peer = 0; peer < count; ++peer) {
      int reaches = 0;
      if (peer != i && cudaDeviceCanAccessPeer(&reaches, i, peer) == cudaSuccess && reaches)
        device.peers.push_back(found[peer].id);
    }
    if (i == local_rank % count || (i >= local_ranks && i % local_ranks == local_rank)) try_device(i, device);
  }
  return found;
}

}  // namespace sy::cuda
