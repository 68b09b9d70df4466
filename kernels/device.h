// A device: its memory, its stream, its capabilities, and its table of kernels.
//
// The operations are in kernels/ops/: run(device, ops::Permute{.x = x, .index = index, .y = y}).
// The classes of devices are in cpu/cpu_device.cpp, cuda/cuda_device.h and dry/dry_device.cpp.
// Their kernels are beside them, in one file for each topic. A device knows no model and no rank.
// Conventions of all operations:
//   * Dimensions: B sequences, S positions, T = B*S tokens, D width, H query heads, K kv heads, hd
//     head dimension.
//   * Further dimensions: E experts, F ffn width, V vocabulary (or the shard of this rank), k
//     choices, R routed rows, G segments.
//   * A row is a slice of a matrix for one index of its first dimension, usually the elements of
//     one token.
//   * A segment is a range of consecutive tokens. All segments have the same length. Assignments of
//     tokens to experts are counted, limited and balanced within segments.
//   * Weights are [out, in], as in y = x W^T.
//   * Weights, activations and their gradients have one type within a call, f32 or bf16. The mark
//     `c` says that an operand has this type.
//   * All other operands are f32 unless another type is named: scores, losses, sums over rows,
//     gradients of parameters, optimizer state. Sums are computed in f32 at least and rounded once.
//   * "+=" in a comment says that the operation adds to an output. It overwrites every element of
//     its other outputs.
//   * A result never depends on the number of threads or on their timing.
//   * A row of the output of a GEMM, norm, activation or attention depends on its own inputs alone,
//     never on the number of rows of the call. There are two exceptions. On a GPU, cuBLAS chooses
//     its GEMM kernel by size. Attention of one query per cached sequence
//     (AttentionMask::query_offsets) sums in another order, which is faster.
//   * Operations run in order on one stream. The host waits for them in to_host, end_read and
//     synchronize. In to_device it may wait for earlier copies.
//   * Every size may be zero.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/list.h"
#include "kernels/tensor.h"
#include "kernels/types.h"
#include "kernels/weight_format.h"

namespace sy {

class BlockState;  // kernels/blocked_on.h

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::string describe() const = 0;  // the device and its threads, for people

  // Calls the kernel for an operation with checked operands. Only the run() functions of operations
  // call it.
  template <class Operation>
  void execute(const Operation& op) {
    const auto kernel = kernels_.of(op);
    SY_ASSERT(kernel, "the {} device has no operation {}", name(), Operation::name);
    kernel(*this, op);
  }

  // Whether the device has no kernel for an operation. A class of a device may say so for some.
  template <class Operation>
  static constexpr bool lacks = false;

  // Returns whether the device has a kernel for the operation of this name (Operation::name).
  bool has_kernel(std::string_view operation) const;

  // ---- memory ----
  // Allocates memory, aligned to 256 bytes, with undefined content. Throws NoMemory.
  virtual DeviceMemory allocate(Index bytes) = 0;
  // Number of free bytes of the device. On the host: the size of its memory, free or not.
  virtual Index free_bytes() const = 0;
  // true: its memory is host memory, which MPI can read
  virtual bool on_host() const { return true; }
  // Name of the device among those of the machine. Every process of the machine uses the same name
  // for it. Empty if on_host().
  virtual std::string device_id() const { return {}; }
  // Energy that the device has used since a fixed time, in joules. Empty if on_host() or if it
  // cannot be read.
  virtual std::optional<double> energy_joules() const { return std::nullopt; }
  Tensor tensor(Shape shape, DType dtype = DType::f32);  // filled with zeros
  // Copies x.size_bytes() bytes from the host. The caller may reuse `host` after the call.
  void to_device(const void* host, View x);
  // Copies x to the host. Waits until `host` holds the bytes.
  void to_host(ConstView x, void* host);
  // Asynchronous to_host: the host is free between the two calls. end_read returns the content of x
  // at begin_read. At most one read may be in flight, of at most read_limit bytes.
  void begin_read(ConstView x);
  void end_read(void* host);
  static constexpr Index read_limit = Index{4} << 20;

  // ---- the stream ----
  // Publishes the host's waits for the device to `state` from now on. No-op if on_host().
  // NOLINTNEXTLINE(performance-unnecessary-value-param): other devices keep the state
  virtual void publish_waits_to(std::shared_ptr<BlockState> /*state*/) {}
  virtual void synchronize() {}  // waits until all enqueued operations are complete
  // Graph region: calls body every time. A device may record the operations of one call, and replay
  // the recording in later calls, which saves the host the start of each operation. In every call
  // with one name, body must enqueue the same operations on the same tensors. Only the contents of
  // the tensors may change. Regions must not nest.
  virtual void graph_region(const std::string& name, const std::function<void()>& body) { body(); }

  // ---- capabilities ----
  // Largest width of a head that QK-norm and attention with a backward support.
  virtual Index max_head_dim() const { return INT64_MAX; }
  // Number of logits that are best computed at once.
  virtual Index logits_chunk() const { return Index{4} << 20; }
  // Whether the first attention of a shape may allocate memory that the device keeps.
  virtual bool allocates_in_attention() const { return false; }
  // Whether the grouped GEMMs and the FFN operations of a type support gathered rows. dims: the
  // dimensions of their matrices.
  virtual bool supports_gathered_rows(DType /*type*/, std::initializer_list<Index> /*dims*/) const { return false; }
  // Whether ops::PackWeight and the GEMMs support a format of packed weights.
  virtual bool supports(WeightFormat format) const;
  // Size of the elements of a packed weight for one pass; 0: the pass reads the weight as it is. A
  // packed weight may be blocked for caches, transposed, or of another type. The owner of a weight
  // packs it once for all GEMMs (ops::PackWeight), and again after each change. If the format is
  // native, a GEMM has the same bits with and without a packed weight.
  virtual Index packed_weight_bytes(const Shape& weight, DType dtype, GemmPass pass, WeightFormat format) const;

 protected:
  explicit Device(const KernelTable& kernels) : kernels_(kernels) {}

  // The copies of a device. By default its memory is host memory.
  virtual void do_to_device(const void* host, View x);
  virtual void do_to_host(ConstView x, void* host);
  virtual void do_begin_read(ConstView x);
  virtual void do_end_read(void* host, Index bytes);

 private:
  const KernelTable& kernels_;
  Index reading_ = 0;            // size of the read in flight; 0: no read is in flight
  std::vector<std::byte> read_;  // content of x at begin_read, if on_host()
};

namespace ops {

// x = 0. No-op if x is empty.
void fill_zeros(Device& device, View x);

// Whether an operation has nothing to do. See kernels/ops/operation.h.
template <class Operation>
bool is_empty(const Operation& op) {
  if constexpr (requires { op.is_empty(); })
    return op.is_empty();
  else if constexpr (requires { op.y; })
    return op.y.elements() == 0;
  else
    return op.x.elements() == 0;
}

template <class Operation>
void run(Device& device, const Operation& op) {
  check(op);
  if (!is_empty(op)) return device.execute(op);
  if constexpr (requires { op.zero_if_empty(); })
    for (const View x : op.zero_if_empty()) fill_zeros(device, x);
}

}  // namespace ops

// make_cpu, make_cuda and make_device create a device. The latter two throw NoDevice if it is
// unavailable.
std::unique_ptr<Device> make_cpu();
// local_rank: number of this process among those of the machine; processes use devices round-robin.
// cuda_available: whether make_cuda would succeed.
std::unique_ptr<Device> make_cuda(int local_rank = 0);
bool cuda_available();
// Dry device (kernels/dry/dry.h). It allocates as a run on `planned_device` would: packed
// weights, gathered rows and logits chunks. `planned_device` must outlive it. If nullptr, the
// defaults of Device apply.
std::unique_ptr<Device> make_dry(const Device* planned_device = nullptr);
std::unique_ptr<Device> make_device(std::string_view name, int local_rank = 0);  // auto|cpu|cuda

}  // namespace sy
