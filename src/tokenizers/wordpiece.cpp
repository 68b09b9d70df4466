// WordPiece (Schuster and Nakajima, 2012), as BERT uses it.
// It divides a pre-token into the longest tokens, from its start on.
#include <algorithm>

#include "kernels/check.h"
#include "src/tokenizers/models.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

class Wordpiece : public Model {
 public:
  explicit Wordpiece(const Json& component)
      : Model(vocabulary_of(component)),
        unknown_token_(value_of<std::string>(component, "unk_token")),
        prefix_(value_of<std::string>(component, "continuing_subword_prefix")),
        most_(value_of<std::uint64_t>(component, "max_input_chars_per_word")) {
    unknown_id_ = vocabulary().find(unknown_token_);
    for (std::int32_t id = 0; id < vocabulary().size(); ++id)
      longest_ = std::max(longest_, vocabulary().token(id).size());
  }

  void encode(std::string_view pre_token, std::vector<std::int32_t>& ids) const override {
    const std::size_t first = ids.size();
    std::uint64_t characters = 0;
    for_each_character(pre_token, [&](char32_t, std::size_t, std::string_view) { ++characters; });
    if (characters <= most_ && append_tokens(pre_token, ids)) return;
    ids.resize(first);
    if (unknown_id_ < 0)
      bad_input(
          "the tokenizer cannot divide '{}' into tokens, and has no unknown token '{}': it cannot encode this text",
          shown(pre_token), shown(unknown_token_));
    ids.push_back(unknown_id_);
  }

 private:
  // Returns false if a rest of the pre-token begins with no token.
  bool append_tokens(std::string_view pre_token, std::vector<std::int32_t>& ids) const {
    std::string candidate;
    for (std::size_t begin = 0; begin < pre_token.size();) {
      candidate.assign(begin > 0 ? prefix_ : "");
      const std::size_t prefix = candidate.size();
      // No token is longer than the longest one.
      candidate += pre_token.substr(begin, longest_ + 1);
      std::int32_t id = -1;
      while (candidate.size() > prefix && (id = vocabulary().find(candidate)) < 0) {
        do candidate.pop_back();
        while (candidate.size() > prefix && is_within_character(pre_token, begin + candidate.size() - prefix));
      }
      if (id < 0) return false;
      ids.push_back(id);
      begin += candidate.size() - prefix;
    }
    return true;
  }
  // Returns true if the offset is not at the begin of a character.
  static bool is_within_character(std::string_view text, std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  }

  std::string unknown_token_, prefix_;
  std::uint64_t most_;       // characters of a pre-token that is not unknown
  std::size_t longest_ = 0;  // bytes of a token
};

}  // namespace

std::unique_ptr<Model> make_wordpiece(const Json& component) {
  return std::make_unique<Wordpiece>(component);
}

}  // namespace sy
