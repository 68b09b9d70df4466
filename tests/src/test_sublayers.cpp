// Sublayers and blocks that no configuration makes, compared with the double-precision reference
// and its finite differences: attention to later tokens, several token streams, and groups of
// several branches.
#include <gtest/gtest.h>

#include <map>

#include "kernels/ops/elementwise.h"
#include "kernels/philox.h"
#include "src/model/block.h"
#include "src/model/core_attention.h"
#include "src/model/linear.h"
#include "src/model/load_balancing.h"
#include "src/numerics/reference/all.h"

namespace sy {
namespace {

using reference::Numbers;
using Parameters = std::map<std::string, Numbers>;

constexpr Index D = 8;

// Layer 0 has a dense FFN, layer 1 experts.
std::vector<BlockSpec> configured() {
  return block_specs(parse_config(R"(
[model]
layers = 2
d_model = 8
heads = 4
kv_heads = 2
head_dim = 6
d_ff = 5
position = none
[moe]
experts = 3
top_k = 3
first_dense = 1
d_ff = 4
capacity_factor = 0
aux_loss = 0
z_loss = 0
)",
                                  "test"));
}

AttentionSpec attention_of_config(bool causal) {
  AttentionSpec spec = *configured()[0].find<AttentionSpec>();
  spec.causal = causal;
  return spec;
}

// A branch with an input norm and perhaps an output norm.
BranchSpec branch(const std::string& name, SublayerSpec sublayer, bool post_sublayer = false) {
  return {.name = name,
          .norm = name + "_norm",
          .out_norm = name + "_out_norm",
          .norms = {true, post_sublayer, false},
          .sublayer = std::move(sublayer)};
}

// Two attentions in a row, then a group of three FFNs, of which two have experts.
BlockSpec unusual_block() {
  const MoeSpec moe = *configured()[1].find<MoeSpec>();
  BlockSpec block{configured()[0].norm, {}};
  block.groups.push_back({{branch("past", attention_of_config(true))}});
  block.groups.push_back({{branch("all", attention_of_config(false), true)}});
  block.groups.push_back(
      {{branch("mlp", *configured()[0].find<MlpSpec>()), branch("moe", moe, true), branch("more", moe)}});
  block.groups[2].branches[2].shared_norm = true;
  block.groups[2].branches[2].norm = "mlp_norm";
  return block;
}

// ---- reference ----

// x: [T, q], w: [n, q] -> x w^T: [T, n]
Numbers linear(const Numbers& x, const double* w, Index n, Index q) {
  Numbers y;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(q))
    for (Index i = 0; i < n; ++i) y.push_back(std::inner_product(w + i * q, w + (i + 1) * q, &x[row], 0.0));
  return y;
}

struct Reference {
  const Parameters& p;
  std::string name;  // of the sublayer's parameters
  Index B, S;
  std::vector<Index> lengths = std::vector<Index>(B, S);  // of sequences that are not causal

  const double* weight(const std::string& of) const { return p.at(name + of).data(); }

  Numbers operator()(const AttentionSpec& a, const Numbers& x) const {
    const Numbers q = linear(x, weight(".q.weight"), a.heads * a.key_width, D),
                  k = linear(x, weight(".k.weight"), a.kv_heads * a.key_width, D),
                  v = linear(x, weight(".v.weight"), a.kv_heads * a.value_width, D);
    const auto heads = [&](const Numbers& of, Index n) {
      return reference::HeadsOf{of.data(), S, n, 0, n, a.key_width};
    };
    const Numbers out =
        reference::attention(B, heads(q, a.heads), heads(k, a.kv_heads), heads(v, a.kv_heads), a.scale, 0,
                             [&](Index b, Index i, Index j) { return a.causal ? j <= i : j < lengths[b]; })
            .out;
    return linear(out, weight(".out.weight"), D, a.heads * a.value_width);
  }
  // Kinds that no test here puts into a block.
  template <class Spec>
  Numbers operator()(const Spec&, const Numbers&) const {
    ADD_FAILURE() << "no reference of " << name;
    return {};
  }
  Numbers operator()(const MlpSpec& f, const Numbers& x) const {
    return ffn(f, weight(".up.weight"), weight(".down.weight"), x);
  }
  // A token has all experts.
  Numbers operator()(const MoeSpec& m, const Numbers& x) const {
    const Numbers logits = linear(x, weight(".router.weight"), m.experts, D);
    Numbers y(x.size());
    for (Index e = 0; e < m.experts; ++e) {
      const Numbers out = ffn(m.expert, weight(".experts.up.weight") + e * 2 * m.expert.width * D,
                              weight(".experts.down.weight") + e * m.expert.width * D, x);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double* const z = &logits[i / D * static_cast<std::size_t>(m.experts)];
        y[i] += reference::softmax(z, m.experts).p[static_cast<std::size_t>(e)] * out[i];
      }
    }
    return y;
  }
  Numbers ffn(const MlpSpec& f, const double* up, const double* down, const Numbers& x) const {
    const Numbers h = linear(x, up, 2 * f.width, D);
    return linear(reference::ffn_activation(f.activation, B * S, f.width, h, {}), down, D, f.width);
  }
};

Numbers reference_block(const BlockSpec& block, const Parameters& p, Index B, Index S, Numbers x) {
  const auto norm = [&](const std::string& name, const Numbers& of) {
    return reference::norm(block.norm, B * S, D, of, p.at(name + ".weight"), {}).y;
  };
  for (const ResidualGroupSpec& group : block.groups) {
    Numbers sum = x;
    for (const BranchSpec& b : group.branches) {
      const Reference reference{p, layer_prefix(0) + b.name, B, S};
      const Numbers in = norm(layer_prefix(0) + b.norm, x);
      Numbers out = std::visit([&](const auto& spec) { return reference(spec, in); }, b.sublayer);
      if (b.norms.post_sublayer) out = norm(layer_prefix(0) + b.out_norm, out);
      for (std::size_t i = 0; i < x.size(); ++i) sum[i] += out[i];
    }
    x = sum;
  }
  return x;
}

// ---- layers ----

Numbers normal(const std::string& name, Index n, double mean = 0) {
  const RandomStream random(11, name);
  Numbers x;
  // Rounded, so that layer and reference get the same numbers.
  for (Index i = 0; i < n; ++i)
    x.push_back(static_cast<double>(static_cast<float>(mean + 0.5 * random.normal(static_cast<std::uint64_t>(i)))));
  return x;
}

void put(const Numbers& values, View x) {
  ASSERT_EQ(std::ssize(values), x.elements());
  std::copy(values.begin(), values.end(), x.f32());
}

void expect_near(const std::string& what, ConstView got, const Numbers& want) {
  ASSERT_EQ(got.elements(), std::ssize(want)) << what;
  double size = 0;
  for (double w : want) size = std::max(size, std::abs(w));
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.f32()[i], want[i], 1e-5 * size) << what << ", element " << i;
}

// Gradient with respect to `at` of the dot product of dy and compute().
template <class F>
Numbers finite_differences(Numbers& at, const Numbers& dy, const F& compute) {
  constexpr double step = 1e-5;
  Numbers gradient;
  for (double& x : at) {
    const double before = x;
    x = before + step;
    const double above = reference::dot(dy, compute());
    x = before - step;
    gradient.push_back((above - reference::dot(dy, compute())) / (2 * step));
    x = before;
  }
  return gradient;
}

// The parameters of a block as layer 0, and memory for its passes.
Config::Model small_model() {
  Config::Model model;
  model.d_model = D;
  model.layers = 1;
  return model;
}

struct Layer {
  explicit Layer(const BlockSpec& spec) : Layer(specs_of(spec)) {}
  explicit Layer(std::vector<ParamSpec> specs) : store(*device, std::move(specs), {}, {}, true) {
    for (const ParamSpec& param : store.specs()) {
      parameters[param.name] = normal(param.name, param.shape.elements(), param.init.kind == InitKind::ones);
      put(parameters[param.name], store.get(param.name).weight);
    }
  }
  static std::vector<ParamSpec> specs_of(const BlockSpec& spec) {
    ParamList list(small_model());
    add_block_params(list, spec, 0);
    return list.specs;
  }
  Arena arena() {
    return Arena([this](Index bytes) { return device->allocate(bytes); });
  }

  std::unique_ptr<Comm> self = make_comm_self();
  std::unique_ptr<Device> device = make_cpu();
  Mesh mesh = make_mesh(*self, {});
  ParamStore store;
  Parameters parameters;
  Arena saved = arena(), scratch = arena();
  ExecutionContext context{*device, mesh, scratch, DType::f32};
  SublayerCounts counts;
};

TokenStream stream_of(Index sequences, Index seq_len) {
  return {.sequences = sequences, .seq_len = seq_len, .ids = {}, .positions = {}};
}

// The sequences of the first stream have lengths, those of the second one have not.
TEST(Sublayers, AttendToLaterTokensOfTheirStream) {
  const AttentionSpec spec = attention_of_config(false);
  const BlockSpec block{configured()[0].norm, {{{branch("attention", spec)}}}};
  Layer l(block);
  const RopeTables rope(*l.device, {block}, 7);
  const std::string name = "layers.0.attention";
  const auto attention = make_sublayer(spec, {l.store, rope, {}, l.counts}, name + ".");
  l.store.packed_weights().refresh();
  Batch batch{.streams = {stream_of(2, 7), stream_of(3, 4)}, .targets = {}, .step = {{}, 1, 1}};
  const std::vector<Index> length_of = {7, 3};  // of the first stream
  const std::vector<std::int32_t> host_lengths(length_of.begin(), length_of.end());
  const Tensor lengths = l.device->tensor({2}, DType::i32);
  l.device->to_device(host_lengths.data(), lengths);
  batch.streams[0].lengths = lengths;
  for (const TokenStream& stream : batch.streams) {
    const Index B = stream.sequences, S = stream.seq_len, T = stream.tokens();
    Numbers x = normal("x", T * D);
    const Numbers dy = normal("dy", T * D);
    const Tensor device_x = l.device->tensor({T, D}), device_dy = l.device->tensor({T, D}),
                 y = l.device->tensor({T, D}), dx = l.device->tensor({T, D});
    put(x, device_x);
    put(dy, device_dy);
    for (const ParamSpec& param : l.store.specs()) put(Numbers(param.shape.elements()), l.store.get(param.name).grad);
    const LayerContext layer{l.context, batch, stream, l.saved};
    const auto saved = attention->make_saved();
    attention->forward(layer, device_x, {.y = y}, *saved);
    attention->backward(layer, device_dy, *saved, dx);

    const auto compute = [&] {
      return Reference{l.parameters, name, B, S, stream.lengths ? length_of : std::vector<Index>(B, S)}(spec, x);
    };
    expect_near("y", y, compute());
    expect_near("dx", dx, finite_differences(x, dy, compute));
    for (const char* weight : {".q.weight", ".k.weight", ".v.weight", ".out.weight"})
      expect_near(weight, l.store.get(name + weight).grad,
                  finite_differences(l.parameters[name + weight], dy, compute));
  }
}

// Attention from the tokens of the decoder to the output of the encoder, in its simplest form.
class CrossAttention {
 public:
  struct Saved {
    ConstView x, output;   // [T, D] of the decoder, [Te, D] of the encoder
    View q, kv, out, lse;  // [B, S, H, hd], [B, Se, 2 K, hd], [B, S, H, hd], [B, H, S]
  };
  CrossAttention(const AttentionSpec& spec, ParamStore& store, const std::string& prefix)
      : spec_(spec),
        core_(spec, store, prefix, 0),
        q_(store, prefix + "q"),
        kv_(store, prefix + "k", 2),
        out_(store, prefix + "out") {}
  static void add_params(ParamList& list, const std::string& name, const AttentionSpec& a) {
    list.matrix(name + ".q.weight", {a.heads, a.key_width, D}, {.row_dims = 2}, {}, list.scaling().matrix());
    list.matrix(name + ".k.weight", {a.kv_heads, a.key_width, D}, {.row_dims = 2}, {}, list.scaling().matrix());
    list.matrix(name + ".v.weight", {a.kv_heads, a.value_width, D}, {.row_dims = 2}, {}, list.scaling().matrix(), true);
    add_core_params(list, name, a);
  }
  void forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const {
    const ExecutionContext& context = layer.context;
    s.x = gather_tokens(context, layer.saved, x);
    s.output = gather_tokens(context, layer.saved, layer.encoder().output);
    s.q = layer.save(heads_of_stream(layer.stream, spec_.heads));
    s.kv = layer.save(heads_of_stream(layer.encoder(), 2 * spec_.kv_heads));
    s.out = layer.save(s.q.shape());
    s.lse = layer.saved.f32({s.q.dim(0), s.q.dim(2), s.q.dim(1)});
    q_.forward(context, s.x, by_token(s.q));
    kv_.forward(context, s.output, by_token(s.kv));
    core_.forward(context, s.q, keys(s.kv), values(s.kv), s.out, s.lse, {.key_lengths = layer.encoder().lengths});
    out_.forward_sum(context, by_token(s.out), to);
  }
  void backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx) {
    const ExecutionContext& context = layer.context;
    const Arena::Scope scope(context.scratch);
    const View dout = context.temp(s.out.shape()), dq = context.temp(s.q.shape()), dkv = context.temp(s.kv.shape());
    dy = gather_tokens(context, context.scratch, dy);
    out_.backward_input(context, dy, by_token(dout));
    out_.backward_weight(context, dy, by_token(s.out));
    core_.backward(context, dout, s.q, keys(s.kv), values(s.kv), s.out, s.lse, dq, keys(dkv), values(dkv),
                   {.key_lengths = layer.encoder().lengths});
    q_.backward_weight(context, by_token(dq), s.x);
    q_.backward_input_sum(context, by_token(dq), dx);
    kv_.backward_weight(context, by_token(dkv), s.output);
    const View doutput = context.temp(layer.encoder().output.shape());
    kv_.backward_input_sum(context, by_token(dkv), doutput);
    run(context.device, ops::Add{.x = doutput, .y = layer.encoder().doutput});
  }

 private:
  Shape heads_of_stream(const TokenStream& stream, Index heads) const {
    return {stream.sequences, stream.seq_len, heads, spec_.key_width};
  }
  static View by_token(View x) { return x.reshape({x.dim(0) * x.dim(1), x.dim(2) * x.dim(3)}); }
  Heads keys(View kv) const { return heads_of(kv, 0, spec_.kv_heads); }
  Heads values(View kv) const { return heads_of(kv, spec_.kv_heads, spec_.kv_heads); }

  AttentionSpec spec_;
  CoreAttention core_;
  Linear q_, kv_, out_;
};

// Queries of one stream read the output of another one, whose sequences have other lengths. Its
// gradient is a sum over the layers that read it.
TEST(Sublayers, AttendToTheOutputOfAnotherStack) {
  const AttentionSpec spec = attention_of_config(false);
  const std::string name = "layers.0.cross_attention";
  ParamList list(small_model());
  CrossAttention::add_params(list, name, spec);
  Layer l(list.specs);
  CrossAttention attention(spec, l.store, name + ".");
  l.store.packed_weights().refresh();
  for (const ParamSpec& param : l.store.specs()) put(Numbers(param.shape.elements()), l.store.get(param.name).grad);

  constexpr Index B = 2, S = 3, Se = 5, T = B * S, Te = B * Se, layers = 2;
  Numbers x = normal("x", T * D), output = normal("output", Te * D);
  const Numbers dy = normal("dy", T * D);
  const Tensor device_x = l.device->tensor({T, D}), device_dy = l.device->tensor({T, D}), y = l.device->tensor({T, D}),
               dx = l.device->tensor({T, D}), encoded = l.device->tensor({Te, D}), dencoded = l.device->tensor({Te, D});
  put(x, device_x);
  put(dy, device_dy);
  put(output, encoded);
  put(Numbers(Te * D), dencoded);
  Batch batch{.streams = {stream_of(B, Se), stream_of(B, S)}, .targets = {}, .step = {{}, 1, 1}};
  const LayerContext layer{l.context, batch, batch.decoder(), l.saved};
  EXPECT_THROW(layer.encoder(), std::logic_error);
  const Tensor lengths = l.device->tensor({B}, DType::i32);
  const std::int32_t length_of[B] = {Se, 2};
  l.device->to_device(length_of, lengths);
  batch.streams[0].lengths = lengths;
  batch.streams[0].output = encoded;
  batch.streams[0].doutput = dencoded;
  CrossAttention::Saved saved;
  attention.forward(layer, device_x, {.y = y}, saved);
  for (Index i = 0; i < layers; ++i) attention.backward(layer, device_dy, saved, dx);
  l.store.finish_gradients();

  const auto compute = [&] {
    const auto weight = [&](const char* of) { return l.parameters[name + of].data(); };
    const auto heads = [&](const Numbers& of, Index tokens, Index n) {
      return reference::HeadsOf{of.data(), tokens, n, 0, n, spec.key_width};
    };
    const Index H = spec.heads, K = spec.kv_heads, hd = spec.key_width;
    const Numbers q = linear(x, weight(".q.weight"), H * hd, D), k = linear(output, weight(".k.weight"), K * hd, D),
                  v = linear(output, weight(".v.weight"), K * hd, D);
    const Numbers out = reference::attention(B, heads(q, S, H), heads(k, Se, K), heads(v, Se, K), spec.scale, 0,
                                             [&](Index b, Index, Index j) { return j < length_of[b]; })
                            .out;
    return linear(out, weight(".out.weight"), D, H * hd);
  };
  const auto of_all_layers = [&](Numbers gradient) {
    for (double& g : gradient) g *= layers;
    return gradient;
  };
  expect_near("y", y, compute());
  expect_near("dx", dx, finite_differences(x, dy, compute));
  expect_near("doutput", dencoded, of_all_layers(finite_differences(output, dy, compute)));
  for (const char* weight : {".q.weight", ".k.weight", ".v.weight", ".out.weight"})
    expect_near(weight, l.store.get(name + weight).grad,
                of_all_layers(finite_differences(l.parameters[name + weight], dy, compute)));
}

TEST(Blocks, AreListsOfGroupsOfBranches) {
  const BlockSpec spec = unusual_block();
  EXPECT_EQ(spec.all<AttentionSpec>().size(), 2u);
  EXPECT_EQ(count_moe({spec}), 2);
  Layer l(spec);
  const RopeTables rope(*l.device, {spec}, 5);
  Block block(spec, 0, {l.store, rope, {}, l.counts});
  EXPECT_EQ(l.counts.routers, 2);
  std::vector<CacheSpec> caches;
  block.append_cache_specs(caches);
  EXPECT_EQ(caches.size(), 2u);
  l.store.packed_weights().refresh();

  const Index B = 2, S = 5, T = B * S;
  Numbers x = normal("x", T * D);
  const Numbers dy = normal("dy", T * D);
  const Tensor device_x = l.device->tensor({T, D}), y = l.device->tensor({T, D}), d = l.device->tensor({T, D});
  put(x, device_x);
  put(dy, d);
  const Batch batch{.streams = {stream_of(B, S)}, .targets = {}, .step = {{}, B, 1}};
  LayerContext layer{l.context, batch, batch.decoder(), l.saved};
  layer.load_balance = make_load_balance_state(layer, 2, 3);
  Index routed = 0;
  const RoutingHook count = [&](const RoutingView& view) { routed += view.experts.elements(); };
  layer.routing_hook = &count;
  Block::Saved saved;
  block.forward(layer, device_x, y, saved);
  EXPECT_EQ(routed, 2 * 3 * T);
  load_balancing_loss(layer, spec.find<MoeSpec>()->router, layer.load_balance, {});
  block.backward(layer, d, saved);
  l.store.finish_gradients();

  const auto compute = [&] { return reference_block(spec, l.parameters, B, S, x); };
  expect_near("y", y, compute());
  expect_near("dx", d, finite_differences(x, dy, compute));
  for (const ParamSpec& param : l.store.specs())
    expect_near(param.name, l.store.get(param.name).grad, finite_differences(l.parameters[param.name], dy, compute));
}

TEST(Blocks, RefuseANormOfTheStreamBesideAnotherBranch) {
  BlockSpec spec = unusual_block();
  spec.groups[2].branches[1].norms = {false, false, true};
  Layer l(spec);
  const RopeTables rope(*l.device, {spec}, 5);
  EXPECT_THROW(Block(spec, 0, {l.store, rope, {}, l.counts}), std::logic_error);
}

}  // namespace
}  // namespace sy
