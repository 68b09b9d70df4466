#include "src/model/sublayer.h"

#include "src/model/attention.h"
#include "src/model/cross_attention.h"
#include "src/model/latent_attention.h"
#include "src/model/lsh_attention.h"
#include "src/model/mlp.h"
#include "src/model/moe.h"

namespace sy {
namespace {

// A class of sublayers as a Sublayer.
template <class Layer>
class SublayerOf final : public Sublayer {
 public:
  explicit SublayerOf(Layer layer) : layer_(std::move(layer)) {}

  std::unique_ptr<Saved> make_saved() const override { return std::make_unique<State>(); }
  void forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const override {
    layer_.forward(layer, x, to, state(s));
  }
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const override {
    layer_.recompute(layer, x, state(s));
  }
  bool is_freed(Recompute mode) const override { return mode == Recompute::attention && Layer::recomputable; }
  void backward(const LayerContext& layer, ConstView dy, Saved& s, View dx) override {
    layer_.backward(layer, dy, state(s), dx);
  }
  std::optional<CacheSpec> cache_spec() const override {
    if constexpr (requires { layer_.cache_spec(); })
      return layer_.cache_spec();
    else
      return {};
  }
  const char* trace_name() const override { return Layer::trace_name; }

 private:
  struct State : Saved {
    typename Layer::Saved value;
  };
  static typename Layer::Saved& state(Saved& s) { return static_cast<State&>(s).value; }

  Layer layer_;
};

CrossAttention make(const CrossAttentionSpec& spec, const SublayerContext& c, const std::string& prefix) {
  return {spec, c.d_model, c.store, prefix, c.rope.positions(), c.counts.caches++};
}

Attention make(const AttentionSpec& spec, const SublayerContext& c, const std::string& prefix) {
  return {spec, c.d_model, c.store, prefix, c.rope.of(spec.rope), c.rope.positions(), c.counts.caches++};
}

LatentAttention make(const LatentAttentionSpec& spec, const SublayerContext& c, const std::string& prefix) {
  return {spec, c.d_model, c.store, prefix, c.rope.of(spec.rope), c.rope.positions(), c.counts.caches++};
}

LshAttention make(const LshAttentionSpec& spec, const SublayerContext& c, const std::string& prefix) {
  return {spec, c.d_model, c.store, prefix, c.counts.lsh++};
}

Mlp make(const MlpSpec& spec, const SublayerContext& c, const std::string& prefix) {
  return {spec, c.store, prefix};
}

Moe make(const MoeSpec& spec, const SublayerContext& c, const std::string& prefix) {
  const Index index = c.counts.routers++;
  return {spec, c.d_model, c.store, prefix, c.routers.of(index), index};
}

}  // namespace

std::unique_ptr<Sublayer> make_sublayer(const SublayerSpec& spec, const SublayerContext& context,
                                        const std::string& prefix) {
  return std::visit(
      [&](const auto& of_kind) -> std::unique_ptr<Sublayer> {
        using Layer = decltype(make(of_kind, context, prefix));
        return std::make_unique<SublayerOf<Layer>>(make(of_kind, context, prefix));
      },
      spec);
}

}  // namespace sy
