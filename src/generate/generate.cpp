#include "src/generate/generate.h"

#include <algorithm>
#include <optional>

#include "kernels/philox.h"

namespace sy {
namespace {

// A wave is the set of prompts that are computed at the same time. Prompt i of a wave belongs to
// data-parallel rank i % dp.
class Wave {
 public:
  Wave(Engine& engine, Cache& cache, const GenerateOptions& options, std::span<const std::vector<std::int32_t>> prompts,
       std::size_t first_prompt, std::span<Continuation> out)
      : engine_(engine),
        cache_(cache),
        options_(options),
        random_(options.seed, "generate"),
        prompts_(prompts),
        first_prompt_(first_prompt),
        out_(out),
        active_(prompts.size(), true) {
    const Mesh& mesh = engine.mesh();
    for (std::size_t i = 0; i < prompts.size(); ++i)
      if (static_cast<int>(i) % mesh.layout.dp() == mesh.coord.dp) mine_.push_back(i);
    cache_.clear();
  }

  // Runs the wave. `progress` gets the prompt's number among the prompts of all waves.
  void run(const std::function<void(std::size_t prompt, std::span<const std::int32_t> added)>& progress) {
    std::vector<float> logits = prefill();  // [mine_, vocab]
    for (;;) {
      const std::vector<Told> told = tell(choose(logits));
      take(told, progress);
      if (std::find(active_.begin(), active_.end(), true) == active_.end()) return;
      restart();
      std::vector<std::int32_t> last;
      for (const std::size_t i : mine_) last.push_back(out_[i].added.back());
      logits = engine_.extend(cache_, 0, std::ssize(mine_), last, true);
    }
  }

 private:
  // A token, and the reason if the text ends with it.
  struct Told {
    std::int32_t id = 0;
    std::optional<Finish> finish;
  };

  // Returns the logits after each of this rank's prompts.
  std::vector<float> prefill() { return compute({prompts_.begin(), prompts_.end()}, 0); }

  // Recomputes the cached keys of texts whose rope table changes at their new length.
  void restart() {
    std::vector<std::size_t> changed;
    for (std::size_t i = 0; i < prompts_.size(); ++i)
      if (active_[i] && engine_.restarts_at(std::ssize(prompts_[i]) + std::ssize(out_[i].added))) changed.push_back(i);
    if (changed.empty()) return;
    std::vector<std::vector<std::int32_t>> texts(prompts_.size());
    for (const std::size_t i : changed) {
      const std::vector<std::int32_t>& added = out_[i].added;
      texts[i] = prompts_[i];
      texts[i].insert(texts[i].end(), added.begin(), added.end() - 1);
    }
    for (std::size_t slot = 0; slot < mine_.size(); ++slot)
      if (!texts[mine_[slot]].empty()) cache_.restart(static_cast<Index>(slot));
    compute(texts, 1);
  }

  // Computes the non-empty texts into the slots of their prompts.
  // more: number of tokens that follow in each text. Returns the logits after each of this rank's
  // texts if `more` is 0; otherwise the result is empty.
  std::vector<float> compute(const std::vector<std::vector<std::int32_t>>& texts, Index more) {
    const Index dp = engine_.mesh().layout.dp(), at_once = options_.prefill;
    // Passes of each data-parallel rank. All ranks make as many as the busiest one.
    std::vector<Index> passes(static_cast<std::size_t>(dp));
    for (std::size_t i = 0; i < texts.size(); ++i) passes[i % passes.size()] += ceil_div(std::ssize(texts[i]), at_once);
    Index to_do = *std::max_element(passes.begin(), passes.end());
    std::vector<float> logits;
    for (std::size_t slot = 0; slot < mine_.size(); ++slot) {
      const std::span<const std::int32_t> text = texts[mine_[slot]];
      for (Index begin = 0; begin < std::ssize(text); begin += at_once, --to_do) {
        const Index end = std::min(begin + at_once, std::ssize(text));
        const auto ids = text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        const auto of_last = engine_.extend(cache_, static_cast<Index>(slot), 1, ids,
                                            more == 0 && end == std::ssize(text), std::ssize(text) + more);
        logits.insert(logits.end(), of_last.begin(), of_last.end());
      }
    }
    for (; to_do > 0; --to_do) engine_.extend(cache_, 0, 0, {}, false);
    return logits;
  }

  // Returns the next token of each of this rank's sequences.
  std::vector<Told> choose(const std::vector<float>& logits) {
    std::vector<Told> all(prompts_.size());
    const auto vocab = static_cast<std::size_t>(engine_.vocab());
    const auto token_ids = options_.token_ids > 0 ? static_cast<std::size_t>(options_.token_ids) : vocab;
    for (std::size_t slot = 0; slot < mine_.size(); ++slot) {
      const std::size_t i = mine_[slot];
      std::vector<std::int32_t> seen(prompts_[i]), added = out_[i].added;
      seen.insert(seen.end(), added.begin(), added.end());
      const double u = random_.uniform((first_prompt_ + i) << 32 | added.size());
      Told& told = all[i];
      told.id = sample_token(std::span(logits).subspan(slot * vocab, token_ids), options_.sampling, u, seen);
      added.push_back(told.id);
      if (told.id == options_.end_of_text)
        told.finish = Finish::end_of_text;
      else if (options_.stops && options_.stops(first_prompt_ + i, added))
        told.finish = Finish::stop;
      else if (std::ssize(added) == options_.tokens)
        told.finish = Finish::length;
    }
    return all;
  }

  // Returns the choices of all ranks. The ranks of a tensor-parallel group have the same choices,
  // and only the first of them sends them.
  std::vector<Told> tell(std::vector<Told> mine) const {
    const Mesh& mesh = engine_.mesh();
    std::vector<std::int32_t> words;  // for each prompt: the id, and 1 + the finish or 0
    for (const Told& told : mine) {
      const bool speaks = mesh.coord.tp == 0;
      words.push_back(speaks ? told.id : 0);
      words.push_back(speaks && told.finish ? 1 + static_cast<std::int32_t>(*told.finish) : 0);
    }
    mesh.host->all_reduce(view_of(words.data(), {static_cast<Index>(words.size())}));
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i].id = words[2 * i];
      mine[i].finish.reset();
      if (words[2 * i + 1] > 0) mine[i].finish = static_cast<Finish>(words[2 * i + 1] - 1);
    }
    return mine;
  }

  void take(const std::vector<Told>& told,
            const std::function<void(std::size_t prompt, std::span<const std::int32_t> added)>& progress) {
    for (std::size_t i = 0; i < told.size(); ++i) {
      if (!active_[i]) continue;
      Continuation& to = out_[i];
      if (told[i].finish != Finish::end_of_text) {
        to.added.push_back(told[i].id);
        if (progress) progress(first_prompt_ + i, to.added);
      }
      if (!told[i].finish) continue;
      to.finish = *told[i].finish;
      active_[i] = false;
    }
    for (std::size_t slot = 0; slot < mine_.size();) {
      if (active_[mine_[slot]]) {
        ++slot;
        continue;
      }
      cache_.remove(static_cast<Index>(slot), std::ssize(mine_) - 1);
      mine_[slot] = mine_.back();
      mine_.pop_back();
    }
  }

  Engine& engine_;
  Cache& cache_;
  const GenerateOptions& options_;
  const RandomStream random_;
  const std::span<const std::vector<std::int32_t>> prompts_;
  const std::size_t first_prompt_;
  const std::span<Continuation> out_;
  std::vector<bool> active_;       // [prompt]
  std::vector<std::size_t> mine_;  // prompt of each slot of this rank
};

}  // namespace

Index positions_of(std::span<const std::vector<std::int32_t>> prompts, Index tokens) {
  Index longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, static_cast<Index>(prompt.size()));
  return longest + tokens;
}

std::vector<Continuation> generate(
    Engine& engine, std::span<const std::vector<std::int32_t>> prompts, const GenerateOptions& options,
    const std::function<void(std::size_t prompt, std::span<const std::int32_t> added)>& progress) {
  SY_ASSERT(options.tokens >= 0 && options.batch > 0 && options.prefill > 0, "{} tokens, {} sequences, {} at once",
            options.tokens, options.batch, options.prefill);
  for (const auto& prompt : prompts) SY_ASSERT(!prompt.empty(), "a prompt without a token");
  std::vector<Continuation> out(prompts.size());
  if (prompts.empty() || options.tokens == 0) return out;
  const std::size_t dp = static_cast<std::size_t>(engine.mesh().layout.dp());
  const std::size_t at_once = std::min(dp * static_cast<std::size_t>(options.batch), prompts.size());
  const Index positions = positions_of(prompts, options.tokens);
  Cache cache =
      engine.make_cache(static_cast<Index>((at_once + dp - 1) / dp), positions, std::min(options.prefill, positions));
  for (std::size_t first = 0; first < prompts.size(); first += at_once) {
    const std::size_t count = std::min(at_once, prompts.size() - first);
    Wave(engine, cache, options, prompts.subspan(first, count), first, std::span(out).subspan(first, count))
        .run(progress);
  }
  return out;
}

}  // namespace sy
