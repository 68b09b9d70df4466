#include "src/evaluate/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "src/data/masking.h"
#include "src/data/sequence_pairs.h"

namespace sy {

double DomainScore::loss() const {
  return tokens > 0 ? nats / static_cast<double>(tokens) : std::numeric_limits<double>::quiet_NaN();
}
double DomainScore::perplexity() const {
  return std::exp(loss());
}
double DomainScore::bits_per_byte() const {
  return bytes > 0 ? nats / std::log(2.0) / static_cast<double>(bytes) : std::numeric_limits<double>::quiet_NaN();
}

std::vector<DomainScore> evaluate(Engine& engine, const Dataset& dataset, const EvaluateOptions& options,
                                  const std::function<void(Index, Index)>& progress) {
  const Mesh& mesh = engine.mesh();
  const Index S = engine.config().model.seq_len, dp = mesh.layout.dp();
  std::vector<EvalStream> streams;
  std::vector<Index> windows;
  const Index layers = engine.model().moe_layers(), experts = engine.config().moe.experts;
  Index total = 0, done = 0;
  const Config::Data& data = engine.config().data;
  const std::optional<TokenMasking> masking = training_masking(engine.config(), dataset);
  SY_ASSERT(masking || !options.hide_each, "tokens are hidden one by one without a mask token");
  const std::optional<SequencePairs> pairs = training_pairs(engine.config(), dataset);
  const bool has_prefix = engine.config().has_visible_prefix();
  const bool ignores = data.ignores_document_begins() || dataset.has_loss_mask() || masking || pairs || has_prefix;
  const std::vector<Index>* const text_bytes = target_text_bytes(engine.config(), dataset, options.max_windows);
  for (std::size_t d = 0; d < dataset.domains().size(); ++d) {
    streams.emplace_back(dataset, static_cast<int>(d), S, pairs || has_prefix ? 0 : std::min(options.stride, S), data,
                         masking ? &*masking : nullptr, pairs ? &*pairs : nullptr, has_prefix);
    const Index all = streams.back().windows();
    windows.push_back(options.max_windows > 0 ? std::min(options.max_windows, all) : all);
    total += windows.back();
  }

  std::vector<DomainScore> scores;
  for (std::size_t d = 0; d < streams.size(); ++d) {
    Index tokens = 0, bytes = 0, unknown = 0;  // of the windows that this rank counts
    // Sums over this rank's passes: nats, and assignments to each expert of each layer.
    double nats = 0;
    std::vector<double> assignments(layers * experts);
    const auto collect = [&](bool counts) {
      const Statistics found = engine.take_statistics();
      if (!counts) return;
      nats += found.loss_sum;
      auto to = assignments.begin();
      for (const RouterStats& s : found.layers)
        for (Index c : s.routed) *to++ += static_cast<double>(c);
    };
    // All sequences of a pass have the same length: full windows together, a short last one alone.
    // Every rank makes equally many passes, some without sequences, since others need its experts.
    const auto pass = [&](const SampleBatch& batch) {
      const Index sequences = std::ssize(batch.ids) / batch.seq_len;
      engine.evaluate({.sequences = sequences,
                       .seq_len = batch.seq_len,
                       .ids = batch.ids,
                       .targets = batch.targets,
                       .document_start = batch.document_start,
                       .encoder_length = batch.encoder_length,
                       .encoder_ids = batch.encoder_ids,
                       .prefix_end = batch.prefix_end},
                      options.dropless);
    };
    const auto count_targets = [&](std::span<const std::int32_t> of) {
      for (const std::int32_t id : of) {
        if (id < 0) continue;  // no loss counts it, or it belongs to another window
        const bool known = text_bytes && id < std::ssize(*text_bytes);
        const Index size = known ? (*text_bytes)[static_cast<std::size_t>(id)] : -1;
        (size < 0 ? unknown : bytes) += std::abs(size);
        ++tokens;
      }
    };
    const Index all = streams[d].windows(), n = windows[d];
    const Index tail = all > 0 ? streams[d].length(all - 1) : S;
    const bool short_tail = n == all && n > 0 && tail < S;
    // A window is computed once for each token that is hidden alone.
    const auto read = [&](Index window, Index copy, const Sample& to) {
      options.hide_each ? streams[d].read_hidden(window, copy, to) : streams[d].read(window, to);
    };
    const Index copies_of_full = options.hide_each ? S : 1;
    const Index full = (n - (short_tail ? 1 : 0)) * copies_of_full;
    const Index per_pass = std::clamp<Index>(options.windows_per_pass, 1, std::max<Index>(1, full));
    const Index passes = ceil_div(full, dp * per_pass);
    Index shown = 0;  // of this domain's windows
    for (Index p = 0; p < passes; ++p) {
      const Index first = (p * dp + mesh.coord.dp) * per_pass;
      SampleBatch batch(engine.config(), std::clamp<Index>(full - first, 0, per_pass));
      for (Index i = first; i < std::min(first + per_pass, full); ++i)
        read(streams[d].spread(i / copies_of_full, n), i % copies_of_full, batch[i - first]);
      pass(batch);
      if (mesh.coord.tp == 0) count_targets(batch.targets);
      const Index finished = std::min(full, (p + 1) * dp * per_pass) / copies_of_full;
      done += finished - std::exchange(shown, finished);
      progress(done, total);
    }
    collect(true);
    for (Index copy = 0; short_tail && copy < (options.hide_each ? tail : 1); ++copy) {
      const bool evaluates_tail = mesh.coord.dp == 0;
      // The tokens may not be divisible by tp, and padding would be routed like text. Each
      // tensor-parallel rank therefore gets a copy as its own sequence; the first copy counts.
      SampleBatch window(S, data, 1, has_prefix), copies(tail, data, evaluates_tail ? mesh.layout.tp : 0, has_prefix);
      if (evaluates_tail) read(n - 1, copy, window[0]);
      for (Index i = 0; evaluates_tail && i < mesh.layout.tp; ++i) copies[i].assign(window[0]);
      pass(copies);
      collect(mesh.coord.tp == 0);
      if (evaluates_tail && mesh.coord.tp == 0) count_targets(window.targets);
    }
    if (short_tail) progress(++done, total);

    std::vector<double> reduced = {nats, static_cast<double>(tokens), static_cast<double>(bytes),
                                   static_cast<double>(unknown)};
    reduced.insert(reduced.end(), assignments.begin(), assignments.end());
    mesh.host->all_reduce(view_of(reduced.data(), {static_cast<Index>(reduced.size())}));
    DomainScore score;
    score.name = dataset.domains()[d].name;
    score.nats = reduced[0];
    score.tokens = static_cast<Index>(reduced[1]);
    score.windows = n;
    score.total_windows = all;
    if (n < all || ignores)
      score.bytes = reduced[3] > 0 ? -1 : static_cast<Index>(reduced[2]);
    else if (const Index valid_bytes = dataset.domains()[d].valid_bytes; valid_bytes > 0 || n == 0)
      score.bytes = valid_bytes;
    else
      score.bytes = -1;
    for (auto of_layer = reduced.begin() + 4; of_layer != reduced.end(); of_layer += experts)
      score.experts.emplace_back(of_layer, of_layer + experts);
    scores.push_back(std::move(score));
  }
  return scores;
}

DomainScore total_of(const std::vector<DomainScore>& scores) {
  DomainScore all;
  all.name = "all";
  for (const DomainScore& s : scores) {
    all.tokens += s.tokens;
    all.windows += s.windows;
    all.total_windows += s.total_windows;
    all.bytes = all.bytes < 0 || s.bytes < 0 ? -1 : all.bytes + s.bytes;
    all.nats += s.nats;
  }
  return all;
}

std::string evaluation_file(const EvaluationInfo& info) {
  return fmt::format("evaluation{}{}{}{}.json", info.scoring == Scoring::each_token ? "-pseudo" : "",
                     info.own_dataset ? "" : "-" + info.dataset_digest.substr(0, 8),
                     info.capacity_factor > 0 ? "-capacity" : "",
                     info.stride < info.window ? fmt::format("-stride-{}", info.stride) : "");
}

Json to_json(const std::vector<DomainScore>& scores, const std::vector<std::int64_t>& layer_ids,
             const EvaluationInfo& info) {
  const auto one = [&](const DomainScore& s) {
    return Json{{"windows", s.windows},
                {"of", s.total_windows},
                {"tokens", s.tokens},
                {"bytes", s.bytes < 0 ? Json() : Json(s.bytes)},
                {"loss", s.loss()},
                {"perplexity", info.scoring == Scoring::masked_tokens ? Json() : Json(s.perplexity())},
                {"bits_per_byte", s.bits_per_byte()}};
  };
  Json j = one(total_of(scores));
  constexpr const char* names[] = {"next_tokens", "masked_tokens", "each_token"};
  if (info.scoring != Scoring::next_tokens) j["scoring"] = names[static_cast<int>(info.scoring)];
  j["step"] = info.step;
  j["dataset"] = info.dataset;
  j["dataset_digest"] = info.dataset_digest;
  j["capacity_factor"] = info.capacity_factor;
  j["window"] = info.window;
  j["stride"] = info.stride;
  j["provenance"] = info.provenance;
  j["layers"] = layer_ids;
  j["domains"] = Json::array();
  for (const DomainScore& s : scores) {
    Json d = one(s);
    d["name"] = s.name;
    d["experts"] = s.experts;
    j["domains"].push_back(std::move(d));
  }
  return j;
}

}  // namespace sy
