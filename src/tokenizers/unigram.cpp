// Unigram language model (Kudo, 2018).
// It divides a pre-token into the tokens with the largest sum of scores.
#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "src/tokenizers/models.h"
#include "src/tokenizers/trie.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

std::unique_ptr<const Vocabulary> list_of(const Json& component) {
  std::vector<std::pair<std::string, std::int64_t>> tokens;
  for (const Json& entry : component.at("vocab"))
    tokens.emplace_back(entry.at(0).get<std::string>(), static_cast<std::int64_t>(tokens.size()));
  return std::make_unique<const Vocabulary>(std::move(tokens));
}

class Unigram : public Model {
 public:
  explicit Unigram(const Json& component) : Model(list_of(component)) {
    const auto unknown = value_of<std::int64_t>(component, "unk_id", -1);
    if (unknown < -1 || unknown >= vocabulary().size())
      bad_component("unk_id {} is none of {} tokens", unknown, vocabulary().size());
    unknown_id_ = static_cast<std::int32_t>(unknown);
    for (const Json& entry : component.at("vocab")) {
      const double score = entry.at(1).get<double>();
      tokens_.put(vocabulary().token(static_cast<std::int32_t>(scores_.size())),
                  static_cast<std::int32_t>(scores_.size()));
      scores_.push_back(score);
      unknown_score_ = std::min(unknown_score_, score - 10);
    }
    if (value_of<bool>(component, "byte_fallback", false)) bytes_ = vocabulary().bytes();
  }

  void encode(std::string_view pre_token, std::vector<std::int32_t>& ids) const override {
    thread_local std::vector<Best> best;
    best.assign(pre_token.size() + 1, Best());
    best[0] = {0, 0, -1};
    for_each_character(pre_token, [&](char32_t, std::size_t begin, std::string_view character) {
      const double before = best[begin].score;
      const auto offer = [&](std::size_t end, double score, std::int32_t id) {
        if (best[end].id == none || before + score > best[end].score) best[end] = {before + score, begin, id};
      };
      bool known = false;  // true if the character alone is a token
      tokens_.for_each_prefix(pre_token, begin, [&](std::size_t end, std::int32_t id) {
        offer(end, scores_[static_cast<std::size_t>(id)], id);
        known |= end == begin + character.size();
      });
      if (known) return;
      if (unknown_id_ < 0)
        bad_input("the tokenizer has no token for '{}', and no unk_id: it cannot encode this text", character);
      offer(begin + character.size(), unknown_score_, unknown_id_);
    });

    // Walks from the end to the start. Adjacent unknown tokens become one.
    const std::size_t first = ids.size();
    for (std::size_t end = pre_token.size(); end > 0;) {
      std::size_t begin = best[end].begin;
      std::int32_t id = best[end].id;
      if (id == unknown_id_) {
        while (begin > 0 && best[begin].id == unknown_id_) begin = best[begin].begin;
        id = vocabulary().find(pre_token.substr(begin, end - begin));
      }
      const auto added = std::ssize(ids);
      if (id >= 0)
        ids.push_back(id);
      else if (append_bytes(pre_token.substr(begin, end - begin), bytes_, ids))
        std::reverse(ids.begin() + added, ids.end());
      else
        ids.push_back(unknown_id_);
      end = begin;
    }
    std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
  }

 private:
  static constexpr std::int32_t none = -2;
  // Last token of the best segmentation of the text before a position.
  struct Best {
    double score = 0;
    std::size_t begin = 0;
    std::int32_t id = none;
  };

  Trie tokens_;
  std::vector<double> scores_;
  double unknown_score_ = HUGE_VAL;  // 10 below the lowest score
  std::vector<std::int32_t> bytes_;  // as Bpe::bytes_
};

}  // namespace

std::unique_ptr<Model> make_unigram(const Json& component) {
  return std::make_unique<Unigram>(component);
}

}  // namespace sy
