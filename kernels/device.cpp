#include "kernels/device.h"

#include <algorithm>
#include <cstring>

#include "kernels/ops/all.h"

namespace sy {

bool Device::has_kernel(std::string_view operation) const {
#define SY_FIND(Operation) \
  if (operation == ops::Operation::name) return kernels_.kernel_of_##Operation != nullptr;
  SY_OPERATIONS(SY_FIND)
#undef SY_FIND
  return false;
}

Tensor Device::tensor(Shape shape, DType dtype) {
  Tensor t(allocate(shape.elements() * size_of(dtype)), shape, dtype);
  ops::fill_zeros(*this, t);
  return t;
}

void Device::to_device(const void* host, View x) {
  if (x.elements() == 0) return;
  SY_ASSERT(host && x, "to_device: {} has no memory", x.shape().str());
  do_to_device(host, x);
}

void Device::to_host(ConstView x, void* host) {
  if (x.elements() == 0) return;
  SY_ASSERT(host && x, "to_host: {} has no memory", x.shape().str());
  do_to_host(x, host);
}

void Device::begin_read(ConstView x) {
  SY_ASSERT(reading_ == 0 && x.size_bytes() <= read_limit, "begin_read of {} bytes, {} in flight", x.size_bytes(),
            reading_);
  reading_ = x.size_bytes();
  if (reading_ > 0) do_begin_read(x);
}

void Device::end_read(void* host) {
  if (reading_ > 0) do_end_read(host, reading_);
  reading_ = 0;
}

void Device::do_to_device(const void* host, View x) {
  std::memcpy(x.bytes(), host, static_cast<std::size_t>(x.size_bytes()));
}

void Device::do_to_host(ConstView x, void* host) {
  std::memcpy(host, x.bytes(), static_cast<std::size_t>(x.size_bytes()));
}

void Device::do_begin_read(ConstView x) {
  read_.assign(x.bytes(), x.bytes() + x.size_bytes());
}

void Device::do_end_read(void* host, Index bytes) {
  std::memcpy(host, read_.data(), static_cast<std::size_t>(bytes));
}

bool Device::supports(WeightFormat format) const {
  const auto& names = info(format).devices;
  return names[0].empty() || std::ranges::find(names, name()) != names.end();
}

Index Device::packed_weight_bytes(const Shape& weight, DType, GemmPass, WeightFormat format) const {
  return weight.elements() * info(format).element_bytes;
}

std::unique_ptr<Device> make_device(std::string_view name, int local_rank) {
  if (name == "auto") return cuda_available() ? make_cuda(local_rank) : make_cpu();
  if (name == "cpu") return make_cpu();
  if (name == "cuda") return make_cuda(local_rank);
  throw NoDevice(name, "there is no such backend");
}

}  // namespace sy
