// Sublayers of a block, behind one interface: attention, latent attention, MLP, MoE.
//
// A sublayer is a class with
//   a constructor (const Spec&, const SublayerContext&, const std::string& prefix)
//   struct Saved                                 state that forward saves for backward
//   forward(layer, ConstView x, Output to, Saved&)     to.y: [T, D] = to.residual + f(x: [T, D])
//   recompute(layer, ConstView x, Saved&)        tensors that layer.recompute excluded from Saved
//   backward(layer, ConstView dy, Saved&, View dx)     dx = gradient with respect to x
//   static constexpr const char* trace_name      name of its time in traces
//   CacheSpec cache_spec()                       if generation caches keys and values for it
// and is one of the classes of make_sublayer(). The type of its spec selects it.
//
// A kind of attention has instead of forward
//   attend(layer, ConstView x, Saved&)           computes Saved::out, and everything before it.
//                                                Recompute::attention calls it again.
//   const Linear& out()                          output projection of Saved::out
#pragma once

#include <memory>
#include <optional>

#include "src/model/context.h"
#include "src/model/rope.h"
#include "src/params/block_specs.h"
#include "src/params/store.h"

namespace sy {

// Interface of all kinds of sublayers.
class Sublayer {
 public:
  // State of one micro-batch that forward saves for backward.
  struct Saved {
    virtual ~Saved() = default;
  };
  virtual ~Sublayer() = default;

  virtual std::unique_ptr<Saved> make_saved() const = 0;
  // to.y: [T, D] = to.residual + f(x: [T, D]). x must stay valid until backward.
  virtual void forward(const LayerContext& layer, ConstView x, Output to, Saved& s) const = 0;
  // Computes again the tensors of `s` that layer.recompute excludes. x: the input of forward.
  // layer.saved and the scratch memory have them until the caller's scopes end. Collective as
  // forward is, except that no token is dispatched.
  virtual void recompute(const LayerContext& layer, ConstView x, Saved& s) const = 0;
  // Returns true if forward's whole state may be freed in this mode: recompute() restores it.
  virtual bool is_freed(Recompute mode) const = 0;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to the output. Adds the
  // gradients of the parameters to those of the store. dx and dy must not overlap.
  virtual void backward(const LayerContext& layer, ConstView dy, Saved& s, View dx) = 0;
  // Cache entry of a token in generation. Empty if the sublayer caches nothing.
  virtual std::optional<CacheSpec> cache_spec() const = 0;
  virtual const char* trace_name() const = 0;
};

// Numbers of sublayers of a stage that have an entry in its cache, that have a router, and that
// sort tokens by a hash.
struct SublayerCounts {
  Index caches = 0, routers = 0, lsh = 0;
};

// Inputs of L routers that are not parameters. Each may be empty. The tables of one router have no
// dimension L.
struct RouterTables {
  // [L, E] selection biases: added to the scores for the selection only.
  View bias;
  ConstView logical_to_physical;  // [L, E] i32 as in ExpertPartition

  // Returns the tables of the routers of a range.
  RouterTables of(Range routers) const {
    return {bias ? bias.rows(routers.begin, routers.size()) : bias,
            logical_to_physical ? logical_to_physical.rows(routers.begin, routers.size()) : logical_to_physical};
  }
  // Returns the tables of one of L routers.
  RouterTables of(Index router) const {
    const auto row = [&](auto table) { return table ? table.rows(router, 1).reshape({table.dim(1)}) : table; };
    return {row(bias), row(logical_to_physical)};
  }
};

// Inputs of the sublayers of a stage.
struct SublayerContext {
  ParamStore& store;
  const RopeTables& rope;
  RouterTables routers;  // tables of the stage's routers, [routers, E]
  // Sublayers made so far. The counts are the indices of the next sublayer.
  SublayerCounts& counts;
};

// Makes the sublayer of a spec, and advances context.counts.
// prefix: of its parameters' names, for example "layers.3.attention."
std::unique_ptr<Sublayer> make_sublayer(const SublayerSpec& spec, const SublayerContext& context,
                                        const std::string& prefix);

}  // namespace sy
