// Fixture of the CUDA emulator's tests: a stream, device memory, and the reported mistakes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "host/control.h"
#include "kernels/cuda/device.h"

namespace sy::cuda {

struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class HostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_host::set_handler([](const std::string& mistake) { throw Mistake(mistake); });
    context.stream = stream();
  }
  void TearDown() override { cuda_host::set_handler(nullptr); }

  static cudaStream_t stream() {
    cudaStream_t made = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), cudaSuccess);
    return made;
  }
  static cudaEvent_t event() {
    cudaEvent_t made = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), cudaSuccess);
    return made;
  }
  static View memory(Shape shape, DType type = DType::f32) {
    void* made = nullptr;
    EXPECT_EQ(cudaMalloc(&made, static_cast<std::size_t>(shape.elements() * size_of(type))), cudaSuccess);
    return {static_cast<std::byte*>(made), shape, type};
  }
  // Copies values to device memory that is never freed.
  template <class T>
  View upload(const std::vector<T>& values) {
    const View x = memory({static_cast<Index>(values.size())}, cuda_host::type_of<T>);
    cudaMemcpyAsync(x.bytes(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                    context.stream.end_capture());
    cudaStreamSynchronize(context.stream.end_capture());
    return x;
  }
  template <class T>
  std::vector<T> download(ConstView x) {
    std::vector<T> values(static_cast<std::size_t>(x.elements()));
    cudaMemcpyAsync(values.data(), x.bytes(), values.size() * sizeof(T), cudaMemcpyDeviceToHost,
                    context.stream.end_capture());
    cudaStreamSynchronize(context.stream.end_capture());
    return values;
  }

  Context context;
};

// Expects that f reports a mistake whose text contains `expected_text`.
inline void expect_mistake(const std::string& expected_text, const std::function<void()>& f) {
  try {
    f();
  } catch (const Mistake& mistake) {
    EXPECT_NE(std::string(mistake.what()).find(expected_text), std::string::npos) << mistake.what();
    return;
  }
  ADD_FAILURE() << "no mistake reported: " << expected_text;
}

}  // namespace sy::cuda
