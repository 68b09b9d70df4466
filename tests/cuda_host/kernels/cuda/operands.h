// The interface of the real kernels/cuda/operands.h, with operands that check every access. They
// check the bounds of their view, alignment, initialised memory, the order of streams, and accesses
// by other blocks (host/memory.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "host/memory.h"
#include "kernels/cuda/context.h"
#include "kernels/tensor.h"

namespace sy::cuda {

using bf16 = __nv_bfloat16;

// ---- operands ----

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  T& operator[](int i) { return values[i]; }
  const T& operator[](int i) const { return values[i]; }
};
}  // namespace sy::cuda

namespace sy::cuda_host {

// Base of In and Out: a position among the elements of an operand.
template <class T>
class CheckedPointer {
 public:
  CheckedPointer() = default;
  CheckedPointer(std::nullptr_t) {}
  CheckedPointer(T* at, Operand* operand) : at_(at), operand_(operand) {}
  explicit operator bool() const { return operand_ != nullptr; }
  bool operator==(std::nullptr_t) const { return operand_ == nullptr; }

  template <class V>
  V read(Index i) const {
    check_read<sizeof(V)>(operand(), address(i));
    V value;
    __builtin_memcpy(&value, at_ + i, sizeof(V));
    return value;
  }
  template <class V>
  void write(Index i, const V& value) const {
    check_write<sizeof(V)>(operand(), address(i));
    __builtin_memcpy(at_ + i, &value, sizeof(V));
  }

 protected:
  std::uintptr_t address(Index i) const {
    return reinterpret_cast<std::uintptr_t>(at_) + static_cast<std::uintptr_t>(i) * sizeof(T);
  }
  Operand& operand() const {
    if (operand_ == nullptr) [[unlikely]]
      mistake("the kernel uses an empty operand");
    return *operand_;
  }

  T* at_ = nullptr;
  Operand* operand_ = nullptr;
};

template <class T>
constexpr DType type_of = DTypeOf<T>::value;
template <>
constexpr DType type_of<__nv_bfloat16> = DType::bf16;

}  // namespace sy::cuda_host

namespace sy::cuda {

template <class T>
class In : public cuda_host::CheckedPointer<T> {
 public:
  using cuda_host::CheckedPointer<T>::CheckedPointer;
  T operator[](Index i) const { return this->template read<T>(i); }
  In operator+(Index n) const { return {this->at_ + n, this->operand_}; }
  In& operator+=(Index n) { return *this = *this + n; }
};

template <class T>
class Out : public cuda_host::CheckedPointer<T> {
 public:
  using cuda_host::CheckedPointer<T>::CheckedPointer;
  // An element that a kernel writes, or reads if it accumulates.
  class Element {
   public:
    Element(const Out& out, Index i) : out_(out), i_(i) {}
    operator T() const { return out_.template read<T>(i_); }
    T operator=(T x) const {
      out_.write(i_, x);
      return x;
    }
    T operator=(const Element& x) const { return *this = static_cast<T>(x); }
    T operator+=(T x) const { return *this = *this + x; }
    T operator-=(T x) const { return *this = *this - x; }
    T operator*=(T x) const { return *this = *this * x; }

   private:
    const Out& out_;
    Index i_;
  };
  Element operator[](Index i) const { return {*this, i}; }
  Out operator+(Index n) const { return {this->at_ + n, this->operand_}; }
  Out& operator+=(Index n) { return *this = *this + n; }
};

template <class T>
In<T> in(ConstView v) {
  return {reinterpret_cast<T*>(const_cast<std::byte*>(v.bytes())),
          cuda_host::operand_of(v, cuda_host::type_of<T>, false)};
}
template <class T>
Out<T> out(View v) {
  return {reinterpret_cast<T*>(v.bytes()), cuda_host::operand_of(v, cuda_host::type_of<T>, true)};
}

template <int N, class T>
Pack<T, N> load(const In<T>& x, Index i) {
  return x.template read<Pack<T, N>>(i);
}
template <int N, class T>
Pack<T, N> load(const Out<T>& x, Index i) {
  return x.template read<Pack<T, N>>(i);
}
template <int N, class T>
void store(const Out<T>& y, Index i, const Pack<T, N>& pack) {
  y.write(i, pack);
}
// Shared memory, which kernels access through plain pointers.
template <int N, class T>
Pack<T, N> load(const T* x, Index i) {
  if (reinterpret_cast<std::uintptr_t>(x + i) % sizeof(Pack<T, N>) != 0)
    cuda_host::mistake("a pack that is not aligned");
  return *reinterpret_cast<const Pack<T, N>*>(x + i);
}
template <int N, class T>
void store(T* y, Index i, const Pack<T, N>& pack) {
  if (reinterpret_cast<std::uintptr_t>(y + i) % sizeof(pack) != 0) cuda_host::mistake("a pack that is not aligned");
  *reinterpret_cast<Pack<T, N>*>(y + i) = pack;
}
template <int N, class T>
void load_async(T* y, const In<T>& x, Index i, bool used = true) {
  store<N>(y, 0, used ? load<N>(x, i) : Pack<T, N>{});
  cuda_host::start_copy(y, sizeof(T) * N);
}
inline void wait_async() {
  cuda_host::wait_for_copies();
}
inline float exp2_approx(float x) {
  return x < -126 ? 0.0f : std::exp2(x);
}

inline std::byte* dynamic_shared() {
  return cuda_host::dynamic_shared();
}

// ---- launches ----

struct Grid {
  Index x = 1, y = 1;
  int threads = 256;
  Index shared_bytes = 0;
  std::source_location where = std::source_location::current();  // names the launch in reports
};
template <class Param>
struct ArgumentAs {
  template <class Argument>
  static Param of(const Argument& x) {
    return static_cast<Param>(x);
  }
};
template <class T>
struct ArgumentAs<In<T>> {
  static In<T> of(const In<T>& x) { return x; }
  static In<T> of(const ConstView& x) { return in<T>(x); }
};
template <class T>
struct ArgumentAs<Out<T>> {
  static Out<T> of(const Out<T>& x) { return x; }
  static Out<T> of(const View& x) { return out<T>(x); }
};
template <class Param, class Argument>
Param argument_as(const Argument& x) {
  return ArgumentAs<Param>::of(x);
}
template <class... Params, class... Args>
void launch(Context& context, const Grid& grid, void (*kernel)(Params...), Args... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  SY_ASSERT(grid.x <= INT32_MAX && grid.y <= 65535, "a grid of {} x {} blocks", grid.x, grid.y);
  if (!cuda_host::load(reinterpret_cast<const void*>(kernel))) check(cudaErrorMemoryAllocation, "a kernel launch");
  context.stream.enqueue(
      [&](cudaStream_t stream) {
        cuda_host::run_grid(
            {reinterpret_cast<const void*>(kernel), static_cast<std::uint64_t>(grid.x),
             static_cast<std::uint64_t>(grid.y), grid.threads, static_cast<std::size_t>(grid.shared_bytes)},
            stream, [=] { kernel(argument_as<Params>(arguments)...); }, grid.where);
      },
      kernel, grid.x, grid.y, grid.threads, grid.shared_bytes, argument_as<Params>(arguments)...);
}

}  // namespace sy::cuda
