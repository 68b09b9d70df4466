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
        recomputes_texts_(engine.config().num_lsh_layers() > 0),
        active_(prompts.size(), true) {
    const Mesh& mesh = engine.mesh();
    for (std::size_t i = 0; i < prompts.size(); ++i)
      if (static_cast<int>(i) % mesh.layout.dp() == mesh.coord.dp) local_prompts_.push_back(i);
    cache_.clear();
  }

  // Runs the wave. `progress` gets the prompt's number among the prompts of all waves.
  void run(const GenerateProgress& progress) {
    // [local_prompts_, vocab]
    std::vector<float> logits = compute({prompts_.begin(), prompts_.end()}, 0);
    for (;;) {
      const std::vector<NextToken> tokens = exchange_choices(sample(logits));
      append(tokens, progress);
      if (std::find(active_.begin(), active_.end(), true) == active_.end()) return;
      if (recomputes_texts_) {
        logits = recompute_texts();
        continue;
      }
      recompute_changed_keys();
      std::vector<std::int32_t> last;
      for (const std::size_t i : local_prompts_) last.push_back(out_[i].added.back());
      logits = engine_.decode(cache_, 0, std::ssize(local_prompts_), last, true);
    }
  }

 private:
  // A token, and the reason if the text ends with it.
  struct NextToken {
    std::int32_t id = 0;
    std::optional<Finish> finish;
  };

  // Returns a prompt and the tokens added to it.
  std::vector<std::int32_t> text_of(std::size_t i) const {
    std::vector<std::int32_t> text = prompts_[i];
    text.insert(text.end(), out_[i].added.begin(), out_[i].added.end());
    return text;
  }

  // Computes all texts that have not ended, in one pass each. Returns the logits after each of this
  // rank's texts.
  std::vector<float> recompute_texts() {
    std::vector<std::vector<std::int32_t>> texts(prompts_.size());
    for (std::size_t i = 0; i < prompts_.size(); ++i)
      if (active_[i]) texts[i] = text_of(i);
    cache_.clear();
    return compute(texts, 0);
  }

  // Recomputes the cached keys of texts whose rope table changes at their new length.
  void recompute_changed_keys() {
    std::vector<std::vector<std::int32_t>> texts(prompts_.size());
    bool changed = false;
    for (std::size_t i = 0; i < prompts_.size(); ++i)
      if (active_[i] && engine_.requires_recompute(std::ssize(prompts_[i]) + std::ssize(out_[i].added))) {
        texts[i] = text_of(i);
        texts[i].pop_back();  // the pass that follows computes the last token
        changed = true;
      }
    if (!changed) return;
    for (std::size_t slot = 0; slot < local_prompts_.size(); ++slot)
      if (!texts[local_prompts_[slot]].empty()) cache_.reset(static_cast<Index>(slot));
    compute(texts, 1);
  }

  // Computes the non-empty texts into the slots of their prompts.
  // more: number of tokens that follow in each text. Returns the logits after each of this rank's
  // texts if `more` is 0; otherwise the result is empty.
  std::vector<float> compute(const std::vector<std::vector<std::int32_t>>& texts, Index more) {
    const Index dp = engine_.mesh().layout.dp(), chunk = options_.prefill;
    // The tokens of a visible prefix, which is the prompt, see each other: one pass computes it.
    const bool has_prefix = engine_.config().has_visible_prefix();
    const auto first_pass = [&](std::size_t i) {
      return recomputes_texts_ ? std::ssize(texts[i]) : has_prefix ? std::ssize(prompts_[i]) : chunk;
    };
    // Passes of each data-parallel rank. All ranks make as many as the busiest one.
    std::vector<Index> passes(static_cast<std::size_t>(dp));
    for (std::size_t i = 0; i < texts.size(); ++i)
      if (const Index size = std::ssize(texts[i]); size > 0)
        passes[i % passes.size()] += 1 + ceil_div(std::max<Index>(0, size - first_pass(i)), chunk);
    Index remaining_passes = *std::max_element(passes.begin(), passes.end());
    std::vector<float> logits;
    for (std::size_t slot = 0; slot < local_prompts_.size(); ++slot) {
      const std::span<const std::int32_t> text = texts[local_prompts_[slot]];
      for (Index begin = 0, end = 0; begin < std::ssize(text); begin = end, --remaining_passes) {
        end = std::min(begin == 0 ? first_pass(local_prompts_[slot]) : begin + chunk, std::ssize(text));
        const auto ids = text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        const auto last_logits = engine_.decode(cache_, static_cast<Index>(slot), 1, ids,
                                                more == 0 && end == std::ssize(text), std::ssize(text) + more);
        logits.insert(logits.end(), last_logits.begin(), last_logits.end());
      }
    }
    for (; remaining_passes > 0; --remaining_passes) engine_.decode(cache_, 0, 0, {}, false);
    return logits;
  }

  // Returns the next token of each of this rank's sequences.
  std::vector<NextToken> sample(const std::vector<float>& logits) {
    std::vector<NextToken> all(prompts_.size());
    const auto vocab = static_cast<std::size_t>(engine_.vocab());
    const auto token_ids = options_.token_ids > 0 ? static_cast<std::size_t>(options_.token_ids) : vocab;
    for (std::size_t slot = 0; slot < local_prompts_.size(); ++slot) {
      const std::size_t i = local_prompts_[slot];
      const std::vector<std::int32_t> seen = text_of(i);
      std::vector<std::int32_t> added = out_[i].added;
      const double u = random_.uniform((first_prompt_ + i) << 32 | added.size());
      NextToken& token = all[i];
      token.id = sample_token(std::span(logits).subspan(slot * vocab, token_ids), options_.sampling, u, seen);
      added.push_back(token.id);
      if (token.id == options_.end_of_text)
        token.finish = Finish::end_of_text;
      else if (options_.stops && options_.stops(first_prompt_ + i, added))
        token.finish = Finish::stop;
      else if (std::ssize(added) == options_.tokens)
        token.finish = Finish::length;
    }
    return all;
  }

  // Returns the choices of all ranks. The ranks of a tensor-parallel group have the same choices,
  // and only the first rank sends them.
  std::vector<NextToken> exchange_choices(std::vector<NextToken> choices) const {
    const Mesh& mesh = engine_.mesh();
    std::vector<std::int32_t> encoded;  // for each prompt: the id, and 1 + the finish or 0
    for (const NextToken& token : choices) {
      const bool is_first_tp_rank = mesh.coord.tp == 0;
      encoded.push_back(is_first_tp_rank ? token.id : 0);
      encoded.push_back(is_first_tp_rank && token.finish ? 1 + static_cast<std::int32_t>(*token.finish) : 0);
    }
    mesh.host->all_reduce(view_of(encoded.data(), {static_cast<Index>(encoded.size())}));
    for (std::size_t i = 0; i < choices.size(); ++i) {
      choices[i].id = encoded[2 * i];
      choices[i].finish.reset();
      if (encoded[2 * i + 1] > 0) choices[i].finish = static_cast<Finish>(encoded[2 * i + 1] - 1);
    }
    return choices;
  }

  // Appends the tokens to the texts of all ranks, and removes the sequences that have ended.
  void append(const std::vector<NextToken>& tokens, const GenerateProgress& progress) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!active_[i]) continue;
      Continuation& to = out_[i];
      if (tokens[i].finish != Finish::end_of_text) {
        to.added.push_back(tokens[i].id);
        if (progress) progress(first_prompt_ + i, to.added);
      }
      if (!tokens[i].finish) continue;
      to.finish = *tokens[i].finish;
      active_[i] = false;
    }
    for (std::size_t slot = 0; slot < local_prompts_.size();) {
      if (active_[local_prompts_[slot]]) {
        ++slot;
        continue;
      }
      cache_.remove(static_cast<Index>(slot), std::ssize(local_prompts_) - 1);
      local_prompts_[slot] = local_prompts_.back();
      local_prompts_.pop_back();
    }
  }

  Engine& engine_;
  Cache& cache_;
  const GenerateOptions& options_;
  const RandomStream random_;
  const std::span<const std::vector<std::int32_t>> prompts_;
  const std::size_t first_prompt_;
  const std::span<Continuation> out_;
  // True: there is no cache, because a new token changes the results of earlier ones.
  const bool recomputes_texts_;
  std::vector<bool> active_;                // [prompt]
  std::vector<std::size_t> local_prompts_;  // prompt of each slot of this rank
};

}  // namespace

Index required_positions(std::span<const std::vector<std::int32_t>> prompts, Index tokens) {
  Index longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, static_cast<Index>(prompt.size()));
  return longest + tokens;
}

std::vector<Continuation> generate(Engine& engine, std::span<const std::vector<std::int32_t>> prompts,
                                   const GenerateOptions& options, const GenerateProgress& progress) {
  SY_ASSERT(options.tokens >= 0 && options.batch > 0 && options.prefill > 0, "{} tokens, {} sequences, {} at once",
            options.tokens, options.batch, options.prefill);
  for (const auto& prompt : prompts) SY_ASSERT(!prompt.empty(), "a prompt without a token");
  std::vector<Continuation> out(prompts.size());
  if (prompts.empty() || options.tokens == 0) return out;
  const std::size_t dp = static_cast<std::size_t>(engine.mesh().layout.dp());
  const std::size_t batch = std::min(static_cast<std::size_t>(options.batch), prompts.size());
  const std::size_t wave_size = std::min(dp * batch, prompts.size());
  const Index positions = required_positions(prompts, options.tokens);
  const bool whole_passes = engine.config().has_visible_prefix() || engine.config().num_lsh_layers() > 0;
  const Index longest_pass = whole_passes ? positions : std::min(options.prefill, positions);
  Cache cache = engine.make_cache(static_cast<Index>((wave_size + dp - 1) / dp), positions, longest_pass);
  for (std::size_t first = 0; first < prompts.size(); first += wave_size) {
    const std::size_t count = std::min(wave_size, prompts.size() - first);
    Wave(engine, cache, options, prompts.subspan(first, count), first, std::span(out).subspan(first, count))
        .run(progress);
  }
  return out;
}

}  // namespace sy
