#include "src/generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "src/model/softmax_sum.h"

namespace sy {
namespace {

struct Hypothesis {
  std::vector<std::int32_t> ids;
  double log_probability = 0;  // sum over its tokens
};

// A beam with one more token.
struct Extension {
  Index beam;
  std::int32_t id;
  double log_probability;
};

// Appends the extensions of a beam by its likeliest tokens. logits: of its next token
void append_extensions(std::span<const float> logits, Index beam, double before, std::size_t count,
                       std::vector<Extension>& all) {
  const auto [largest, sum] = softmax_sum(logits);
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  const auto is_likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), is_likelier);
  for (std::size_t i = 0; i < count; ++i) {
    const double z = static_cast<double>(logits[static_cast<std::size_t>(ids[i])]) - largest;
    all.push_back({beam, ids[i], before + z - std::log(sum)});
  }
}

// Search for the target of one source.
class Search {
 public:
  explicit Search(const BeamOptions& options) : options_(options), beams_(1) {}

  bool is_done() const { return done_; }
  Index beams() const { return done_ ? 0 : std::ssize(beams_); }
  // Returns the last token of each beam: the next input of the decoder.
  std::vector<std::int32_t> inputs() const {
    std::vector<std::int32_t> ids;
    for (const Hypothesis& beam : beams_) ids.push_back(beam.ids.empty() ? options_.start : beam.ids.back());
    return ids;
  }
  // Extends all beams. logits: [beams(), vocab]. Returns the former beam of each new one.
  std::vector<Index> extend(std::span<const float> logits, std::size_t vocab) {
    const std::size_t token_ids = options_.token_ids > 0 ? static_cast<std::size_t>(options_.token_ids) : vocab;
    // At most one extension of each beam is an end.
    const auto wanted = static_cast<std::size_t>(2 * options_.beams);
    std::vector<Extension> all;
    for (std::size_t beam = 0; beam < beams_.size(); ++beam)
      append_extensions(logits.subspan(beam * vocab, token_ids), static_cast<Index>(beam), beams_[beam].log_probability,
                        wanted, all);
    std::ranges::stable_sort(all, std::greater{}, &Extension::log_probability);
    std::vector<Hypothesis> next;
    std::vector<Index> parents;
    for (std::size_t rank = 0; rank < std::min(wanted, all.size()) && std::ssize(next) < options_.beams; ++rank) {
      const Extension& extension = all[rank];
      Hypothesis hypothesis{beams_[static_cast<std::size_t>(extension.beam)].ids, extension.log_probability};
      if (extension.id == options_.end) {
        // An end that is not among the best extensions is no result.
        if (static_cast<Index>(rank) < options_.beams) finish(std::move(hypothesis), 1, Finish::end_of_text);
        continue;
      }
      hypothesis.ids.push_back(extension.id);
      next.push_back(std::move(hypothesis));
      parents.push_back(extension.beam);
    }
    beams_ = std::move(next);
    ++length_;
    if (beams_.empty() || cannot_improve()) {
      done_ = true;
    } else if (length_ >= options_.tokens) {
      for (Hypothesis& beam : beams_) finish(std::move(beam), 0, Finish::length);
      done_ = true;
    }
    return parents;
  }
  // Returns the best target. Its search must be done.
  Continuation result() const {
    const auto best = std::ranges::max_element(finished_, {}, &Finished::score);
    return best == finished_.end() ? Continuation{} : Continuation{best->ids, best->reason};
  }

 private:
  struct Finished {
    std::vector<std::int32_t> ids;
    Finish reason;
    double score;
  };
  double score(double log_probability, Index tokens) const {
    return log_probability / std::pow(static_cast<double>(std::max<Index>(1, tokens)), options_.length_penalty);
  }
  void finish(Hypothesis hypothesis, Index ends, Finish reason) {
    const double value = score(hypothesis.log_probability, std::ssize(hypothesis.ids) + ends);
    finished_.push_back({std::move(hypothesis.ids), reason, value});
    std::ranges::stable_sort(finished_, std::greater{}, &Finished::score);
    if (std::ssize(finished_) > options_.beams) finished_.pop_back();
  }
  // Whether there are enough results, none of which the best beam would replace at its length.
  bool cannot_improve() const {
    return std::ssize(finished_) >= options_.beams &&
           finished_.back().score >= score(beams_.front().log_probability, length_);
  }

  const BeamOptions& options_;
  std::vector<Hypothesis> beams_;
  std::vector<Finished> finished_;  // from the best score on
  Index length_ = 0;
  bool done_ = false;
};

}  // namespace

std::vector<Continuation> search_targets(Engine& engine, std::span<const std::vector<std::int32_t>> sources,
                                         const BeamOptions& options) {
  std::vector<Continuation> out(sources.size());
  if (sources.empty() || options.tokens == 0) return out;
  const Mesh& mesh = engine.mesh();
  const auto vocab = static_cast<std::size_t>(engine.vocab()), dp = static_cast<std::size_t>(mesh.layout.dp());
  Cache cache = engine.make_cache(options.beams, options.tokens, 1, required_positions(sources, 0));
  for (std::size_t first = 0; first < sources.size(); first += dp) {
    const std::size_t own = first + static_cast<std::size_t>(mesh.coord.dp);
    std::optional<Search> search;
    if (own < sources.size()) search.emplace(options);
    cache.clear();
    for (bool encodes = true;; encodes = false) {
      const Index beams = search ? search->beams() : 0;
      const std::vector<std::int32_t> ids = beams > 0 ? search->inputs() : std::vector<std::int32_t>();
      std::optional<std::span<const std::int32_t>> source;
      if (encodes) source = beams > 0 ? std::span(sources[own]) : std::span<const std::int32_t>();
      const std::vector<float> logits = engine.decode(cache, 0, beams, ids, true, 0, source);
      if (beams > 0) {
        const std::vector<Index> parents = search->extend(logits, vocab);
        if (!search->is_done()) cache.reorder(parents, engine.scratch());
      }
      // The ranks of a tensor-parallel group have the same beams.
      if (mesh.host->max(search && !search->is_done() ? 1 : 0) == 0) break;
    }
    // Every rank gets the targets of all: first their lengths, then their ids.
    for (std::size_t rank = 0; rank < dp && first + rank < sources.size(); ++rank) {
      const bool sends = static_cast<int>(rank) == mesh.coord.dp && mesh.coord.tp == 0;
      Continuation found;
      if (sends) found = search->result();
      std::vector<std::int32_t> header{sends ? static_cast<std::int32_t>(found.added.size()) : 0,
                                       sends ? static_cast<std::int32_t>(found.finish) : 0};
      mesh.host->all_reduce(view_of(header.data(), {2}));
      found.added.resize(static_cast<std::size_t>(header[0]), 0);
      found.finish = static_cast<Finish>(header[1]);
      if (!found.added.empty()) mesh.host->all_reduce(view_of(found.added.data(), {std::ssize(found.added)}));
      out[first + rank] = std::move(found);
    }
  }
  return out;
}

}  // namespace sy
