// Measures a training step on one rank: tokens/s, and the share of the FMA peak of the same run.
//
// If a Python with PyTorch is found, the same model takes turns there, so that both see the same
// machine. The ratio of the speeds is then printed.
//
//   bench_step [--d-model N] [--layers N] [--heads N] [--kv-heads N] [--experts N] [--top-k N]
//              [--d-ff N] [--vocab N] [--seq-len N] [--batch N] [--dtype f32|bf16] [--steps N]
//              [--turns N] [--python PROGRAM] [--script FILE] [--compile 1]
//
// With bf16, the same model in f32 takes turns, too, and PyTorch may use autocast. --experts 0: the
// dense decoder of configs/nanogpt-cpu.ini in these sizes. PROGRAM: default $SWITCHYARD_PYTHON or
// python3. Without PyTorch there, the reason is printed instead of the ratio. --compile 1:
// torch.compile is one of its settings.
#include <boost/program_options.hpp>
#include <iostream>
#include <optional>

#include "src/model/engine.h"
#include "src/train/distributed_optimizer.h"
#include "tests/bench/arguments.h"
#include "tests/bench/peak.h"
#include "tests/bench/peer.h"

namespace sy::bench {
namespace {

struct Shape {
  Index d_model, layers, heads, kv_heads, experts, top_k, d_ff, vocab, seq_len, batch;
};

// FLOP of the matrix products of one step: forward, and twice that backward. Attention is causal:
// half of S^2.
double step_flops(const Shape& s, const Config& c) {
  const Index T = s.batch * s.seq_len, D = s.d_model, hd = c.model.head_dim;
  const Index qkv = 2 * T * D * (s.heads + 2 * s.kv_heads) * hd, out = 2 * T * s.heads * hd * D;
  const Index attention = 2 * T * s.seq_len * s.heads * hd;
  const Index ffn = 2 * T * D * s.d_ff * (s.experts > 0 ? s.top_k * 3 : 2), router = 2 * T * D * s.experts;
  return static_cast<double>(3 * (s.layers * (qkv + out + attention + ffn + router) + 2 * T * D * s.vocab));
}

// A model that trains on one batch.
struct Training {
  Training(const Config& c, Index vocab)
      : config(c),
        self(make_comm_self()),
        engine(c, vocab, make_cpu(), make_mesh(*self, {}), true),
        optimizer(engine.mesh(), engine.store()) {
    engine.store().initialize(1);
    const Index T = c.train.micro_batch * c.model.seq_len;
    const RandomStream random(1, "bench");
    for (Index i = 0; i < T; ++i) {
      ids.push_back(static_cast<std::int32_t>(random.bits(2 * i) % vocab));
      targets.push_back(static_cast<std::int32_t>(random.bits(2 * i + 1) % vocab));
    }
    seconds(2);
  }
  // Seconds of `steps` steps.
  double seconds(Index steps) {
    const Index B = config.train.micro_batch, S = config.model.seq_len;
    const double started = seconds_now();
    for (Index i = 0; i < steps; ++i) {
      engine.forward_backward({B, S, ids, targets, B * S, B, 1});
      optimizer.step(config.train, 1e-4, ++done);
    }
    return seconds_now() - started;
  }
  Config config;
  std::unique_ptr<Comm> self;
  Engine engine;
  DistributedOptimizer optimizer;
  std::vector<std::int32_t> ids, targets;
  Index done = 0;
};

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  Shape s{};
  Index steps = 0, samples = 0, compile = 0;
  std::string python, script, dtype;
  po::options_description options;
  const auto number = [&](const char* name, Index* to, Index value) {
    options.add_options()(name, po::value<Index>(to)->default_value(value));
  };
  number("d-model", &s.d_model, 256);
  number("layers", &s.layers, 4);
  number("heads", &s.heads, 8);
  number("kv-heads", &s.kv_heads, 8);
  number("experts", &s.experts, 8);
  number("top-k", &s.top_k, 2);
  number("d-ff", &s.d_ff, 704);
  number("vocab", &s.vocab, 257);
  number("seq-len", &s.seq_len, 256);
  number("batch", &s.batch, 8);
  number("steps", &steps, 4);
  number("turns", &samples, 5);
  number("compile", &compile, 0);
  options.add_options()("dtype", po::value(&dtype)->default_value("f32"));
  const char* from_environment = std::getenv("SWITCHYARD_PYTHON");
  options.add_options()("python", po::value(&python)->default_value(from_environment ? from_environment : "python3"));
  options.add_options()("script", po::value(&script)->default_value("tests/bench/pytorch_step.py"));
  po::variables_map values;
  if (!read_arguments(argc, argv, "bench_step",
                      "Measures a training step on one rank, beside PyTorch if it is installed.", options, values))
    return 0;

  const char* const kind =
      s.experts > 0 ? "" : "norm=layernorm\nnorm_bias=false\nposition=learned\nffn=gelu\ntie_embeddings=true\n";
  const auto config_in = [&](const std::string& type) {
    return parse_config(
        fmt::format("[model]\nlayers={}\nd_model={}\nheads={}\nkv_heads={}\nseq_len={}\nd_ff={}\n{}[moe]\nexperts={}\n"
                    "top_k={}\nd_ff={}\ncapacity_factor=0\n[train]\nmicro_batch={}\nglobal_batch={}\n[run]\ndtype={}\n",
                    s.layers, s.d_model, s.heads, s.kv_heads, s.seq_len, s.d_ff, kind, s.experts, s.top_k, s.d_ff,
                    s.batch, s.batch, type),
        "bench");
  };
  const Config config = config_in(dtype);
  const Index T = s.batch * s.seq_len;
  Training ours(config, s.vocab);
  std::optional<Training> exact;
  if (dtype != "f32") exact.emplace(config_in("f32"), s.vocab);
  Peer peer({python, script}, {{"--d-model", s.d_model},
                               {"--layers", s.layers},
                               {"--heads", s.heads},
                               {"--kv-heads", s.kv_heads},
                               {"--experts", s.experts},
                               {"--top-k", s.top_k},
                               {"--d-ff", s.d_ff},
                               {"--vocab", s.vocab},
                               {"--seq-len", s.seq_len},
                               {"--batch", s.batch},
                               {"--compile", compile},
                               {"--bf16", dtype == "bf16"}});
  std::vector<double> our_speed, their_speed, ratio, share, to_exact;
  const double flops = step_flops(s, config);
  for (Index sample = 0; sample < samples; ++sample) {
    const double peak = measured_fma_peak(0.2);
    const double speed = static_cast<double>(steps * T) / ours.seconds(steps);
    our_speed.push_back(speed);
    share.push_back(speed / static_cast<double>(T) * flops / peak);
    if (exact) to_exact.push_back(speed / (static_cast<double>(steps * T) / exact->seconds(steps)));
    if (!peer.ready()) continue;
    their_speed.push_back(static_cast<double>(steps * T) / peer.seconds(steps));
    ratio.push_back(speed / their_speed.back());
  }
  fmt::print("{}, {}, d_model {} layers {} experts {} top-{} d_ff {} vocab {} tokens {} x {}, {:.3g} GFLOP a step\n",
             ours.engine.device().describe(), dtype, s.d_model, s.layers, s.experts, s.top_k, s.d_ff, s.vocab, s.batch,
             s.seq_len, flops / 1e9);
  const auto range = [](const std::vector<double>& x, const char* format) {
    const Spread of = spread_of(x);
    return fmt::format(fmt::runtime(std::string("median ") + format + " (" + format + " to " + format + ")"), of.median,
                       of.least, of.most);
  };
  fmt::print("switchyard  tokens/s {}\n", range(our_speed, "{:.0f}"));
  fmt::print("            share of the measured fp32 FMA peak {}\n", range(share, "{:.2f}"));
  if (exact) fmt::print("            ratio to the same in f32 {}\n", range(to_exact, "{:.2f}"));
  if (ratio.empty()) {
    fmt::print("pytorch     not compared: {} has no PyTorch (give one with --python)\n", python);
    return 0;
  }
  fmt::print("pytorch {} tokens/s {}, best of its settings: {}\n",
             peer.hello().contains("torch") ? peer.hello()["torch"].get<std::string>() : "?",
             range(their_speed, "{:.0f}"), peer.hello().dump());
  fmt::print("ratio       {}\n", range(ratio, "{:.2f}"));
  return 0;
}

}  // namespace
}  // namespace sy::bench

int main(int argc, char** argv) {
  return sy::bench::exit_code_of("bench_step", argv, [&] { return sy::bench::run(argc, argv); });
}
