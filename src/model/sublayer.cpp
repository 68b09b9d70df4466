#include "src/model/sublayer.h"

#include <type_traits>

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
  template <class Spec>
  SublayerOf(const Spec& spec, const SublayerContext& context, const std::string& prefix)
      : layer_(spec, context, prefix) {}

  std::unique_ptr<Saved> make_saved() const override { return std::make_unique<State>(); }
  void forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const override {
    if constexpr (is_attention) {
      layer_.attend(layer, x, state(s));
      layer_.out().forward_sum(layer.context, state(s).out, to);
    } else {
      layer_.forward(layer, x, to, state(s));
    }
  }
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const override {
    if constexpr (is_attention)
      if (layer.recompute == Recompute::attention) return layer_.attend(layer, x, state(s));
    layer_.recompute(layer, x, state(s));
  }
  bool is_freed(Recompute mode) const override { return is_attention && mode == Recompute::attention; }
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
  static constexpr bool is_attention = requires { &Layer::attend; };
  struct State : Saved {
    typename Layer::Saved value;
  };
  static typename Layer::Saved& state(Saved& s) { return static_cast<State&>(s).value; }

  Layer layer_;
};

// Makes a sublayer of the first of these classes that takes the spec.
template <class Layer, class... Others>
std::unique_ptr<Sublayer> make_one_of(const auto& spec, const SublayerContext& context, const std::string& prefix) {
  if constexpr (std::is_constructible_v<Layer, decltype(spec), const SublayerContext&, const std::string&>)
    return std::make_unique<SublayerOf<Layer>>(spec, context, prefix);
  else
    return make_one_of<Others...>(spec, context, prefix);
}

}  // namespace

std::unique_ptr<Sublayer> make_sublayer(const SublayerSpec& spec, const SublayerContext& context,
                                        const std::string& prefix) {
  return std::visit(
      [&](const auto& of_kind) {
        return make_one_of<Attention, LatentAttention, LshAttention, CrossAttention, Mlp, Moe>(of_kind, context,
                                                                                               prefix);
      },
      spec);
}

}  // namespace sy
