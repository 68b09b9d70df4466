// Generation on one rank: tokens/s of prompts (prefill) and of continuations (decode) at several lengths, for one sequence and
// for a batch, with all keys and with a window. A decode pass reads the weights that its tokens use and the keys and values
// that they see once: the bytes that this makes, over its time, stand beside it.
//
//   bench_generate [--d-model N] [--layers N] [--heads N] [--kv-heads N] [--d-ff N] [--experts N] [--top-k N] [--vocab N]
//                  [--window N] [--passes N] [--lengths N ...] [--batches N ...]
#include <boost/program_options.hpp>

#include "src/model/engine.h"
#include "tests/bench/timing.h"

namespace sy::bench {
namespace {

namespace po = boost::program_options;

int run(int argc, char** argv) {
  Index d_model, layers, heads, kv_heads, d_ff, experts, top_k, vocab, window, passes;
  std::vector<Index> lengths, batches;
  po::options_description options;
  const auto number = [&](const char* name, Index* to, Index value) {
    options.add_options()(name, po::value<Index>(to)->default_value(value));
  };
  number("d-model", &d_model, 512);
  number("layers", &layers, 6);
  number("heads", &heads, 8);
  number("kv-heads", &kv_heads, 8);
  number("d-ff", &d_ff, 1408);
  number("experts", &experts, 0);
  number("top-k", &top_k, 2);
  number("vocab", &vocab, 4096);
  number("window", &window, 256);
  number("passes", &passes, 16);
  options.add_options()("lengths",
                        po::value<std::vector<Index>>(&lengths)->multitoken()->default_value({512, 2048}, "512 2048"))(
      "batches", po::value<std::vector<Index>>(&batches)->multitoken()->default_value({1, 16}, "1 16"));
  po::variables_map given;
  po::store(po::parse_command_line(argc, argv, options), given);
  po::notify(given);

  fmt::print("{:>7} {:>6} {:>7} {:>16} {:>16} {:>12} {:>9}\n", "window", "batch", "length", "prefill tokens/s",
             "decode tokens/s", "cache MB", "GB/s");
  for (const Index of_window : {Index{0}, window})
    for (const Index batch : batches)
      for (const Index length : lengths) {
        const Config config = parse_config(
            fmt::format("[model]\nlayers={}\nd_model={}\nheads={}\nkv_heads={}\nd_ff={}\nseq_len=512\nwindow={}\n"
                        "[moe]\nexperts={}\ntop_k={}\nd_ff={}\n",
                        layers, d_model, heads, kv_heads, d_ff, of_window, experts, top_k, d_ff),
            "bench");
        const auto self = make_comm_self();
        constexpr Index at_once = 256;
        const Index positions = length + passes + 1;
        Engine engine(config, vocab, make_backend("auto"), make_mesh(*self, {}), false, 0, 1, positions);
        engine.store().initialize(1);
        Cache cache = engine.make_cache(batch, positions, at_once);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(at_once));
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7919 % vocab);
        engine.extend(cache, 0, 1, std::span(ids).first(1), true);  // weights are prepared
        cache.clear();
        const double started = seconds_now();
        for (Index slot = 0; slot < batch; ++slot)
          for (Index begin = 0; begin < length; begin += at_once)
            engine.extend(cache, slot, 1, std::span(ids).first(std::min(at_once, length - begin)), false);
        const double prefill = seconds_now() - started;
        const auto last = std::span(ids).first(batch);
        engine.extend(cache, 0, batch, last, true);
        const double begun = seconds_now();
        for (Index pass = 0; pass < passes; ++pass) engine.extend(cache, 0, batch, last, true);
        const double pass = (seconds_now() - begun) / static_cast<double>(passes);
        const double chosen = experts > 0 ? std::min(experts, batch * top_k) : 1;
        const double weights = static_cast<double>(layers) * d_model *
                                   ((2.0 * heads + 2.0 * kv_heads) * config.model.head_dim + chosen * 3 * d_ff) +
                               static_cast<double>(vocab) * d_model;
        const double seen = of_window > 0 ? std::min(of_window, length) : length;
        const double keys = 2.0 * layers * batch * seen * kv_heads * config.model.head_dim;
        fmt::print("{:>7} {:>6} {:>7} {:>16.0f} {:>16.1f} {:>12.1f} {:>9.1f}\n", of_window, batch, length,
                   static_cast<double>(batch * length) / prefill, static_cast<double>(batch) / pass,
                   static_cast<double>(cache.bytes()) / 1e6, 4 * (weights + keys) / pass / 1e9);
        std::fflush(stdout);
      }
  return 0;
}

}  // namespace
}  // namespace sy::bench

int main(int argc, char** argv) {
  return sy::bench::run(argc, argv);
}
