#include "tests/bench/gpu/attention.h"

#include <cmath>

#include "kernels/dry/dry.h"
#include "kernels/ops/attention.h"

namespace sy::bench {
namespace {

// Operands of both passes. The views of q, k and v are those of their heads in `qkv`.
struct Problem {
  View qkv, out, lse;
  AttentionSizes sizes;
  AttentionDesc desc;

  Problem(Operands& o, const AttentionSizes& s)
      : qkv(o.random({s.sequences, s.positions, s.heads + 2 * s.kv_heads, s.width})),
        out(o.zeros({s.sequences, s.positions, s.heads, s.width})),
        lse(o.f32({s.sequences, s.heads, s.positions})),
        sizes(s),
        desc{.scale = 1 / std::sqrt(static_cast<float>(s.width))} {}

  Heads queries(View x) const { return heads_of(x, 0, sizes.heads); }
  Heads keys(View x) const { return heads_of(x, sizes.heads, sizes.kv_heads); }
  Heads values(View x) const { return heads_of(x, sizes.heads + sizes.kv_heads, sizes.kv_heads); }

  void forward(Device& device) const {
    run(device, ops::AttentionForward{
                    .q = queries(qkv), .k = keys(qkv), .v = values(qkv), .desc = desc, .out = out, .lse = lse});
  }
};

// A pass of attention, by name.
struct Pass {
  const char* name;
  Run (*prepare)(Operands&, const AttentionSizes&);
};
constexpr Pass attention_passes[] = {{"forward", attention_forward}, {"backward", attention_backward}};

}  // namespace

Run attention_forward(Operands& o, const AttentionSizes& sizes) {
  const Problem p(o, sizes);
  return [&o, p] { p.forward(o.b); };
}

Run attention_backward(Operands& o, const AttentionSizes& sizes) {
  const Problem p(o, sizes);
  const View dout = o.random(p.out.shape()), dqkv = o.zeros(p.qkv.shape());
  p.forward(o.b);
  return [&o, p, dout, dqkv] {
    run(o.b, ops::AttentionBackward{.dout = dout,
                                    .q = p.queries(p.qkv),
                                    .k = p.keys(p.qkv),
                                    .v = p.values(p.qkv),
                                    .out = p.out,
                                    .lse = p.lse,
                                    .desc = p.desc,
                                    .dq = p.queries(dqkv),
                                    .dk = p.keys(dqkv),
                                    .dv = p.values(dqkv)});
  };
}

void measure_attention(const Setup& setup, std::vector<Section>& sections) {
  const std::vector<AttentionSizes> cases =
      setup.small ? std::vector<AttentionSizes>{{2, 24, 4, 2, 32}}
                  : std::vector<AttentionSizes>{{16, 1024, 16, 16, 64}, {2, 4096, 32, 8, 128}, {1, 16384, 32, 8, 128}};
  sections.push_back({"Causal attention",
                      fmt::format("{}, by the kernels of Switchyard and, in a build with SWITCHYARD_CUDNN, by those of "
                                  "cuDNN.",
                                  info(setup.dtype).name),
                      {}});
  for (const char* cudnn : {"0", "1"}) {
    const Environment variable("SWITCHYARD_CUDNN", cudnn);
    const std::unique_ptr<Device> device = setup.make(), dry = make_dry(device.get());
    if (*cudnn == '1' && !device->allocates_in_attention()) continue;
    for (const AttentionSizes& sizes : cases)
      for (const Pass& pass : attention_passes) {
        Operands counted(*dry, setup.dtype), operands(*device, setup.dtype);
        const Run count = pass.prepare(counted, sizes);
        dry_counts(*dry) = {};
        count();
        sections.back().lines.push_back(
            {.what = fmt::format("{}, {} x {} tokens, {} heads and {} kv heads of {}, {}", pass.name, sizes.sequences,
                                 sizes.positions, sizes.heads, sizes.kv_heads, sizes.width,
                                 *cudnn == '1' ? "cuDNN" : "Switchyard"),
             .flops = dry_counts(*dry).flops,
             .bytes = dry_counts(*dry).bytes,
             .seconds = measure(*device, setup, pass.prepare(operands, sizes))});
      }
  }
}

}  // namespace sy::bench
