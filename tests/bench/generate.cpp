// Measures generation with a cache on one rank: tokens/s of prompts (prefill) and of continuations
// (decode).
//
// It measures a dense decoder, one with experts, and one with a window, at several lengths and
// batches. A decode pass reads the weights that its tokens use, and the keys and values that they
// see, once. The bytes per second of these reads stand beside the read speed of memory in the same
// run. If a Python with transformers is found, the same model with the same weights takes turns
// there. The table then has the ratio of the speeds. It also has the largest difference of the
// logits, as a share of the largest logit.
//
//   bench_generate [--models dense moe window] [--d-model N] [--layers N] [--heads N]
//                  [--kv-heads N] [--d-ff N] [--experts N] [--top-k N] [--expert-ff N] [--window N]
//                  [--vocab N] [--lengths N ...] [--batches N ...] [--window-lengths N ...]
//                  [--passes N] [--turns N] [--python PROGRAM] [--script FILE]
//
// PROGRAM: default $SWITCHYARD_PYTHON or python3. Exit code 1: the logits differ by more than 1 %.
#include <boost/program_options.hpp>
#include <cmath>
#include <fstream>
#include <optional>

#include "src/model/engine.h"
#include "tests/bench/arguments.h"
#include "tests/bench/peak.h"
#include "tests/bench/peer.h"
#include "tests/src/temp_folder.h"

namespace sy::bench {
namespace {

namespace po = boost::program_options;

struct Options {
  Index d_model, layers, heads, kv_heads, d_ff, experts, top_k, expert_ff, window, vocab, passes, samples;
  std::vector<Index> lengths, batches, window_lengths;
  std::vector<std::string> models;
  std::string python, script;
};

// One of the decoders. These values determine the bytes that a pass reads.
struct Model {
  std::string name;
  Index d_ff, experts, window;
  std::vector<Index> batches, lengths;
};

std::vector<Model> models_of(const Options& o) {
  std::vector<Model> models;
  for (const std::string& name : o.models) {
    if (name == "dense") models.push_back({name, o.d_ff, 0, 0, o.batches, o.lengths});
    if (name == "moe") models.push_back({name, o.expert_ff, o.experts, 0, o.batches, o.lengths});
    if (name == "window") models.push_back({name, o.d_ff, 0, o.window, {1}, o.window_lengths});
  }
  return models;
}

Config config_of(const Options& o, const Model& m) {
  return parse_config(
      fmt::format("[model]\nlayers={}\nd_model={}\nheads={}\nkv_heads={}\nd_ff={}\nseq_len=512\nwindow={}\n"
                  "[moe]\nexperts={}\ntop_k={}\nd_ff={}\n",
                  o.layers, o.d_model, o.heads, o.kv_heads, o.d_ff, m.window, m.experts, o.top_k, o.expert_ff),
      "bench");
}

// Bytes that a pass of `batch` sequences of `length` tokens reads, each weight, key and value once.
// Tokens choose each expert with the same probability, independently.
double bytes_of_pass(const Options& o, const Model& m, Index head_dim, Index batch, Index length) {
  const double E = static_cast<double>(m.experts), B = static_cast<double>(batch), D = static_cast<double>(o.d_model);
  const double used = E > 0 ? E * (1 - std::pow(1 - static_cast<double>(o.top_k) / E, B)) : 1;
  const double attention = D * static_cast<double>((2 * o.heads + 2 * o.kv_heads) * head_dim);
  const double ffn = used * 3 * D * static_cast<double>(m.d_ff);
  const double keys =
      2 * B * static_cast<double>((m.window > 0 ? std::min(m.window, length) : length) * o.kv_heads * head_dim);
  return 4 * (static_cast<double>(o.layers) * (attention + ffn + keys) + D * static_cast<double>(o.vocab));
}

// A folder with the weights for the peer, and with the peer's logits.
class Shared {
 public:
  explicit Shared(Engine& engine) {
    std::ofstream values(folder_.path() / "weights.f32", std::ios::binary);
    Json index = Json::object();
    Index first = 0;
    for (const ParamSpec& spec : engine.store().specs()) {
      const View weight = engine.store().get(spec.name).weight;
      std::vector<float> host(static_cast<std::size_t>(weight.elements()));
      engine.device().to_host(weight, host.data());
      values.write(reinterpret_cast<const char*>(host.data()), std::ssize(host) * Index{sizeof(float)});
      Json shape = Json::array();
      for (const Index n : spec.shape) shape.push_back(n);
      index[spec.name] = Json::array({first, std::move(shape)});
      first += weight.elements();
    }
    std::ofstream(folder_.path() / "weights.json") << index.dump();
  }
  std::string path() const { return folder_.path().string(); }
  std::vector<float> logits(std::size_t n) const {
    std::vector<float> x(n);
    std::ifstream(folder_.path() / "logits", std::ios::binary)
        .read(reinterpret_cast<char*>(x.data()), std::ssize(x) * Index{sizeof(float)});
    return x;
  }

 private:
  TempFolder folder_;
};

// Input token of both programs at position i of sequence b.
std::int32_t token(Index i, Index b, Index vocab) {
  return static_cast<std::int32_t>((i * 7919 + b * 104729) % vocab);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max<double>(difference, std::abs(a[i] - b[i]));
    largest = std::max<double>(largest, std::abs(b[i]));
  }
  return difference / largest;
}

std::string text(const Spread& x, const char* format) {
  return fmt::format(fmt::runtime(fmt::format("{{:{0}}} ({{:{0}}}-{{:{0}}})", format)), x.median, x.least, x.most);
}

// Measures one engine, beside the peer. Returns true if their logits agree.
bool measure(const Options& o, const Model& model) {
  constexpr Index at_once = 256;
  const Config config = config_of(o, model);
  const auto self = make_comm_self();
  const Index all_passes = o.passes * (o.samples + 1),
              positions = *std::max_element(model.lengths.begin(), model.lengths.end()) + all_passes;
  Engine engine(config, o.vocab, make_device("auto"), make_mesh(*self, {}), false, {}, 1, positions);
  engine.store().initialize(1);
  const ParamCount count = count_params(config, o.vocab);
  fmt::print("\n{}: {:.0f} M parameters, {:.0f} M active per token; {}\n", model.name,
             static_cast<double>(count.total) / 1e6, static_cast<double>(count.active) / 1e6,
             engine.device().describe());

  std::optional<Shared> shared;
  std::optional<Peer> peer;
  if (engine.device().name() == "cpu") {
    shared.emplace(engine);
    peer.emplace(std::vector<std::string>{o.python, o.script, "--folder", shared->path()},
                 std::vector<std::pair<std::string, Index>>{{"--d-model", o.d_model},
                                                            {"--layers", o.layers},
                                                            {"--heads", o.heads},
                                                            {"--kv-heads", o.kv_heads},
                                                            {"--d-ff", model.d_ff},
                                                            {"--experts", model.experts},
                                                            {"--top-k", o.top_k},
                                                            {"--vocab", o.vocab},
                                                            {"--window", model.window},
                                                            {"--threads", omp_get_max_threads()},
                                                            {"--passes", all_passes}});
    if (!peer->ready()) peer.reset();
  }
  fmt::print("{}\n",
             peer ? peer->hello().dump() : "transformers not compared: give a Python that has them with --python");
  fmt::print("{:>5} {:>6} | {:>16} {:>5} | {:>24} {:>19} | {:>24} {:>18} | {}\n", "batch", "length", "prefill tokens/s",
             "ratio", "decode tokens/s", "GB/s", "transformers tokens/s", "ratio", "logits, setting of transformers");
  bool agree = true;
  for (const Index batch : model.batches) {
    Cache cache = engine.make_cache(batch, positions, at_once);
    for (const Index length : model.lengths) {
      cache.clear();
      std::vector<std::int32_t> ids;
      for (Index i = 0; i < length; ++i) ids.push_back(token(i, 0, o.vocab));
      const auto begin = seconds_now();
      for (Index slot = 0; slot < batch; ++slot)
        for (Index at = 0; at < length; at += at_once)
          engine.decode(cache, slot, 1, std::span(ids).subspan(at, std::min(at_once, length - at)), false);
      const double prefill = static_cast<double>(batch * length) / (seconds_now() - begin);
      std::vector<float> logits;
      const auto ours = [&] {
        const double started = seconds_now();
        for (Index pass = 0; pass < o.passes; ++pass) {
          ids.clear();
          for (Index b = 0; b < batch; ++b) ids.push_back(token(cache.length(b), b, o.vocab));
          logits = engine.decode(cache, 0, batch, ids, true);
        }
        return static_cast<double>(batch * o.passes) / (seconds_now() - started);
      };
      const auto theirs = [&] {
        return static_cast<double>(batch * o.passes) / peer->ask({{"decode", o.passes}})["seconds"].get<double>();
      };
      Json reply;
      if (peer) reply = peer->ask({{"prefill", length}, {"batch", batch}});
      ours();
      if (peer) theirs();
      std::vector<double> our_speed, their_speed, ratio;
      for (Index sample = 0; sample < o.samples; ++sample) {
        our_speed.push_back(ours());
        if (!peer) continue;
        their_speed.push_back(theirs());
        ratio.push_back(our_speed.back() / their_speed.back());
      }
      const double bytes =
          bytes_of_pass(o, model, config.model.head_dim, batch, length) / static_cast<double>(batch) / 1e9;
      Spread read = spread_of(our_speed);
      for (double* x : {&read.least, &read.median, &read.most}) *x *= bytes;
      fmt::print("{:>5} {:>6} | {:>16.0f} ", batch, length, prefill);
      if (!peer) {
        fmt::print("{:>5} | {:>24} {:>19} |\n", "", text(spread_of(our_speed), ".1f"), text(read, ".1f"));
        continue;
      }
      const double difference = largest_difference(logits, shared->logits(logits.size()));
      agree = agree && difference < 0.01;
      fmt::print("{:>5.2f} | {:>24} {:>19} | {:>24} {:>18} | {:.0e}, {}\n",
                 prefill * reply["seconds"].get<double>() / static_cast<double>(length),
                 text(spread_of(our_speed), ".1f"), text(read, ".1f"), text(spread_of(their_speed), ".1f"),
                 text(spread_of(ratio), ".2f"), difference, reply["setting"].get<std::string>());
      std::fflush(stdout);
    }
  }
  return agree;
}

int run(int argc, char** argv) {
  Options o;
  po::options_description options;
  const auto number = [&](const char* name, Index* to, Index value) {
    options.add_options()(name, po::value<Index>(to)->default_value(value));
  };
  const auto numbers = [&](const char* name, std::vector<Index>* to, std::vector<Index> value) {
    options.add_options()(name, po::value<std::vector<Index>>(to)->multitoken()->default_value(
                                    value, fmt::format("{}", fmt::join(value, " "))));
  };
  number("d-model", &o.d_model, 768);
  number("layers", &o.layers, 8);
  number("heads", &o.heads, 12);
  number("kv-heads", &o.kv_heads, 4);
  number("d-ff", &o.d_ff, 2048);
  number("experts", &o.experts, 8);
  number("top-k", &o.top_k, 2);
  number("expert-ff", &o.expert_ff, 1024);
  number("window", &o.window, 256);
  number("vocab", &o.vocab, 32000);
  number("passes", &o.passes, 8);
  number("turns", &o.samples, 5);
  numbers("lengths", &o.lengths, {512, 2048});
  numbers("batches", &o.batches, {1, 16});
  numbers("window-lengths", &o.window_lengths, {512, 2048, 8192});
  const char* from_environment = std::getenv("SWITCHYARD_PYTHON");
  options.add_options()("models", po::value<std::vector<std::string>>(&o.models)->multitoken()->default_value(
                                      {"dense", "moe", "window"}, "all"));
  options.add_options()("python", po::value(&o.python)->default_value(from_environment ? from_environment : "python3"));
  options.add_options()("script", po::value(&o.script)->default_value("tests/bench/transformers_generate.py"));
  po::variables_map option_values;
  if (!read_arguments(argc, argv, "bench_generate",
                      "Measures generation with a cache on one rank, beside transformers if it is installed.", options,
                      option_values))
    return 0;

  fmt::print("memory is read at {:.1f} GB/s by all threads\n", measured_read_bytes() / 1e9);
  bool agree = true;
  for (const Model& model : models_of(o)) agree = measure(o, model) && agree;
  fmt::print("memory is read at {:.1f} GB/s by all threads\n", measured_read_bytes() / 1e9);
  return agree ? 0 : 1;
}

}  // namespace
}  // namespace sy::bench

int main(int argc, char** argv) {
  return sy::bench::exit_code_of(
      "bench_generate", argv, [&] { return sy::bench::run(argc, argv); }, sy::spins_between_short_products);
}
