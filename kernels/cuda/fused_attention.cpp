#include "kernels/cuda/fused_attention.h"

#include <cudnn.h>
#include <cudnn_frontend.h>

#include <array>
#include <bit>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace sy::cuda {
namespace {

namespace fe = cudnn_frontend;

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) fail("cuDNN failed in {}: {}", what, cudnnGetErrorString(status));
}

// Numbers of the operands within a plan.
enum Operand : std::int64_t {
  q_operand = 1,
  k_operand,
  v_operand,
  out_operand,
  lse_operand,
  dout_operand,
  dq_operand,
  dk_operand,
  dv_operand
};

// Properties of an operation that determine its plan.
using Key = std::array<Index, 24>;

struct Plan {
  fe::graph::Graph graph;
  Index workspace_bytes = 0;
  bool usable = false;  // false: cuDNN has no kernel for it
};

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// cuDNN's order of dimensions is [B, heads, positions, width].
std::vector<std::int64_t> dims(const ConstHeads& x) {
  return {x.sequences, x.heads, x.positions, x.width};
}
std::vector<std::int64_t> strides(const ConstHeads& x) {
  return {x.sequence_stride, x.head_stride, x.token_stride, 1};
}
Tensor input(fe::graph::Graph& graph, Operand operand, const ConstHeads& x) {
  return graph.tensor(fe::graph::Tensor_attributes().set_uid(operand).set_dim(dims(x)).set_stride(strides(x)));
}
void set_output(const Tensor& tensor, Operand operand, const ConstHeads& x) {
  tensor->set_output(true).set_uid(operand).set_dim(dims(x)).set_stride(strides(x));
}
// lse: [B, H, Sq] f32
template <class Attributes>
void set_lse(Attributes& tensor, const ConstHeads& q) {
  tensor.set_uid(lse_operand)
      .set_dim({q.sequences, q.heads, q.positions, 1})
      .set_stride({q.heads * q.positions, q.positions, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

void* pointer(const void* data) {
  // cuDNN takes no pointers to const.
  return const_cast<void*>(data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

void build(fe::graph::Graph& graph, const ops::AttentionForward& op) {
  const Tensor q = input(graph, q_operand, op.q), k = input(graph, k_operand, op.k), v = input(graph, v_operand, op.v);
  const auto [out, lse] = graph.sdpa(q, k, v,
                                     fe::graph::SDPA_attributes()
                                         .set_name("attention_forward")
                                         .set_generate_stats(true)
                                         .set_attn_scale(op.desc.scale)
                                         .set_causal_mask(op.desc.mask.causal));
  set_output(out, out_operand, ConstHeads(ConstView(op.out)));
  lse->set_output(true);
  set_lse(*lse, op.q);
}
void build(fe::graph::Graph& graph, const ops::AttentionBackward& op) {
  const Tensor q = input(graph, q_operand, op.q), k = input(graph, k_operand, op.k), v = input(graph, v_operand, op.v),
               out = input(graph, out_operand, op.out), dout = input(graph, dout_operand, op.dout);
  fe::graph::Tensor_attributes lse_attributes;
  set_lse(lse_attributes, op.q);
  const Tensor lse = graph.tensor(lse_attributes);
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, lse,
                                                fe::graph::SDPA_backward_attributes()
                                                    .set_name("attention_backward")
                                                    .set_attn_scale(op.desc.scale)
                                                    .set_causal_mask(op.desc.mask.causal)
                                                    .set_deterministic_algorithm(true));
  set_output(dq, dq_operand, op.dq);
  set_output(dk, dk_operand, op.dk);
  set_output(dv, dv_operand, op.dv);
}

using Pointers = std::unordered_map<std::int64_t, void*>;
template <class Operation>
Pointers pointers(const Operation& op) {
  Pointers all = {{q_operand, pointer(op.q.data)},
                  {k_operand, pointer(op.k.data)},
                  {v_operand, pointer(op.v.data)},
                  {out_operand, pointer(op.out.bytes())},
                  {lse_operand, pointer(op.lse.bytes())}};
  if constexpr (requires { op.dq; })
    all.insert({{dout_operand, pointer(op.dout.bytes())},
                {dq_operand, op.dq.data},
                {dk_operand, op.dk.data},
                {dv_operand, op.dv.data}});
  return all;
}

// Appends the strides of operands, which may differ for equal shapes.
void append_strides(Key& key, std::size_t& at, std::initializer_list<ConstHeads> operands) {
  for (const ConstHeads& x : operands)
    for (const Index stride : {x.sequence_stride, x.token_stride, x.head_stride}) key.at(at++) = stride;
}
template <class Operation>
Key key_of(const Operation& op, bool backward) {
  Key key = {backward,   op.q.sequences, op.q.positions,      op.q.heads,
             op.k.heads, op.q.width,     op.desc.mask.causal, std::bit_cast<std::int32_t>(op.desc.scale)};
  std::size_t at = 8;
  append_strides(key, at, {op.q, op.k, op.v});
  if constexpr (requires { op.dq; }) {
    // dq, dk and dv have the strides of one tensor or of three.
    key.at(at++) = op.dq.token_stride;
    append_strides(key, at, {ConstHeads(op.dk), ConstHeads(op.dv)});
  }
  return key;
}

class CudnnAttention final : public FusedAttention {
 public:
  explicit CudnnAttention(Context& context) : context_(context) { check_cudnn(cudnnCreate(&handle_), "cudnnCreate"); }
  ~CudnnAttention() override { cudnnDestroy(handle_); }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  bool run(const ops::AttentionForward& op) override { return execute(op, false); }
  bool run(const ops::AttentionBackward& op) override { return execute(op, true); }

 private:
  template <class Operation>
  bool execute(const Operation& op, bool backward) {
    const Key key = key_of(op, backward);
    const auto [known, is_new] = plans_.try_emplace(key);
    Plan& plan = known->second;
    if (is_new) plan.usable = make(plan, op);
    if (!plan.usable) return false;
    Pointers operands = pointers(op);
    std::array<const void*, 16> addresses{};  // identify the operation in a recorded graph
    for (const auto& [operand, address] : operands) addresses.at(static_cast<std::size_t>(operand)) = address;
    std::byte* const workspace = workspace_of(plan.workspace_bytes);
    context_.stream.enqueue(
        [&](cudaStream_t on) {
          check_cudnn(cudnnSetStream(handle_, on), "cudnnSetStream");
          if (auto status = plan.graph.execute(handle_, operands, workspace); status.is_bad())
            fail("cuDNN failed in attention: {}", status.get_message());
        },
        key, addresses);
    return true;
  }

  template <class Operation>
  bool make(Plan& plan, const Operation& op) {
    plan.graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    build(plan.graph, op);
    if (plan.graph.build(handle_, {fe::HeurMode_t::A}).is_bad()) return false;
    std::int64_t bytes = 0;
    if (plan.graph.get_workspace_size(bytes).is_bad()) return false;
    plan.workspace_bytes = bytes;
    return true;
  }

  // Returns memory of the context if it is enough. A larger workspace grows once for the largest
  // operation; warm_up_and_reserve() runs it before it measures free memory.
  std::byte* workspace_of(Index bytes) {
    if (bytes <= context_.workspace_bytes) return context_.workspace;
    if (bytes > own_bytes_) {
      check(cudaStreamSynchronize(context_.stream.end_capture()), "cudaStreamSynchronize");
      own_.emplace(device_memory(bytes));
      own_bytes_ = bytes;
    }
    return own_->get();
  }

  Context& context_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
  std::optional<DeviceMemory> own_;
  Index own_bytes_ = 0;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(Context& context) {
  return std::make_unique<CudnnAttention>(context);
}

}  // namespace sy::cuda
