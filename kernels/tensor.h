// Shape, View (a pointer, a shape, a type; passed by value) and Tensor (owns its memory).
// All views are contiguous and row-major: the last dimension is the fastest.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/types.h"

namespace sy {

// Number of blocks of size `block` that hold n >= 0 elements, and the total size of these blocks.
constexpr Index ceil_div(Index n, Index block) {
  return (n + block - 1) / block;
}
constexpr Index round_up(Index n, Index block) {
  return ceil_div(n, block) * block;
}

constexpr int max_dims = 4;

class Shape {
 public:
  Shape() = default;  // a scalar: no dimensions, one element
  Shape(std::initializer_list<Index> dims) {
    SY_ASSERT(dims.size() <= max_dims, "{} dimensions", dims.size());
    for (Index d : dims) push_back(d);
  }
  void push_back(Index d) {
    SY_ASSERT(size_ < max_dims && d >= 0, "dimension {}", d);
    dims_[size_++] = d;
  }
  int size() const { return size_; }
  Index operator[](int i) const { return dims_[i]; }
  Index& operator[](int i) { return dims_[i]; }
  const Index* begin() const { return dims_.data(); }
  const Index* end() const { return dims_.data() + size_; }
  // The product of the dimensions from `first` on; 1 if there is no such dimension.
  Index elements(int first = 0) const {
    Index n = 1;
    for (int i = first; i < size_; ++i) n *= dims_[i];
    return n;
  }
  bool operator==(const Shape& o) const { return std::equal(begin(), end(), o.begin(), o.end()); }
  std::string str() const { return fmt::format("[{}]", fmt::join(begin(), end(), ", ")); }

 private:
  std::array<Index, max_dims> dims_{};
  int size_ = 0;
};

// Byte is std::byte or const std::byte: View may be written through, ConstView may not.
template <class Byte>
class BasicView {
 public:
  BasicView() = default;  // an empty view, for an optional operand
  BasicView(Byte* data, Shape shape, DType dtype) : data_(data), shape_(shape), dtype_(dtype) {}
  operator BasicView<const std::byte>() const { return {data_, shape_, dtype_}; }

  explicit operator bool() const { return present(); }
  bool present() const { return data_ != nullptr; }
  Byte* bytes() const { return data_; }
  const Shape& shape() const { return shape_; }
  Index dim(int i) const { return shape_[i]; }
  Index elements() const { return shape_.elements(); }
  Index size_bytes() const { return elements() * size_of(dtype_); }
  DType dtype() const { return dtype_; }

  // The elements as T; T must be the dtype's own type.
  template <class T>
  auto* as() const {
    SY_ASSERT(DTypeOf<T>::value == dtype_, "asked for another type than {}", info(dtype_).name);
    return reinterpret_cast<std::conditional_t<std::is_const_v<Byte>, const T, T>*>(data_);
  }
  auto* f32() const { return as<float>(); }
  auto* i32() const { return as<std::int32_t>(); }
  auto* i64() const { return as<std::int64_t>(); }

  // The same elements under another shape of as many elements.
  BasicView reshape(Shape shape) const {
    SY_ASSERT(shape.elements() == elements(), "{} as {}", shape_.str(), shape.str());
    return {data_, shape, dtype_};
  }
  // Rows [begin, begin + count) of the first dimension.
  BasicView rows(Index begin, Index count) const {
    SY_ASSERT(begin >= 0 && count >= 0 && begin + count <= shape_[0], "rows {}+{} of {}", begin, count, shape_.str());
    Shape s = shape_;
    s[0] = count;
    return {data_ ? data_ + begin * shape_.elements(1) * size_of(dtype_) : nullptr, s, dtype_};
  }

 private:
  Byte* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

// A view of elements in host memory; a ConstView if T is const.
template <class T>
auto view_of(T* data, Shape shape) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return BasicView<Byte>(reinterpret_cast<Byte*>(data), shape, DTypeOf<std::remove_const_t<T>>::value);
}

// Memory of one device, freed with its owner.
using DeviceMemory = std::unique_ptr<std::byte, void (*)(std::byte*)>;

class Tensor {
 public:
  Tensor() : memory_(nullptr, [](std::byte*) {}) {}
  Tensor(DeviceMemory memory, Shape shape, DType dtype)
      : memory_(std::move(memory)), view_(memory_.get(), shape, dtype) {}
  View view() const { return view_; }
  operator View() const { return view_; }
  operator ConstView() const { return view_; }
  const Shape& shape() const { return view_.shape(); }
  Index size_bytes() const { return memory_ ? view_.size_bytes() : 0; }

 private:
  DeviceMemory memory_;
  View view_;
};

}  // namespace sy
