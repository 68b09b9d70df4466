#include "src/tokenizers/added_tokens.h"

#include <algorithm>

#include "src/tokenizers/unicode.h"

namespace sy {
AddedTokens::AddedTokens(const Json& list, const Vocabulary& vocabulary, const Normalizer& normalizer) {
  for (const Json& json : list) {
    AddedToken t;
    t.content = value_of<std::string>(json, "content");
    const auto id = value_of<std::int64_t>(json, "id");
    t.single_word = value_of<bool>(json, "single_word", false);
    t.lstrip = value_of<bool>(json, "lstrip", false);
    t.rstrip = value_of<bool>(json, "rstrip", false);
    t.special = value_of<bool>(json, "special", false);
    t.normalized = value_of<bool>(json, "normalized", !t.special);
    if (t.content.empty()) continue;
    // Bounds the allocation by the file's size.
    if (id < 0 ||
        id >= static_cast<std::int64_t>(2 * (static_cast<std::size_t>(vocabulary.size()) + list.size()) + 1024))
      bad_component("added token '{}': its id {} is far beyond the others", t.content, id);
    t.id = static_cast<std::int32_t>(id);
    const std::int32_t known = vocabulary.find(t.content);
    if (known >= 0 && known != t.id)
      bad_component("added token '{}': its id is {}, and {} in the vocabulary", t.content, id, known);
    if (known < 0 && t.id < vocabulary.size() && !vocabulary.token(t.id).empty())
      bad_component("added token '{}': its id {} is that of '{}' in the vocabulary", t.content, id,
                    vocabulary.token(t.id));
    if (const AddedToken* other = find(t.id))
      bad_component("added tokens '{}' and '{}' have the same id {}", other->content, t.content, id);
    if (find(t.content) >= 0) bad_component("added token '{}' is there twice", t.content);
    t.pattern = t.content;
    if (t.normalized) {
      NormalText text{t.content};
      normalizer(text);
      t.pattern = std::move(text.text);
    }
    const auto index = static_cast<std::int32_t>(tokens_.size());
    contents_.put(t.content, index);
    by_id_.put(static_cast<std::uint64_t>(t.id), static_cast<std::uint64_t>(index));
    if (!t.pattern.empty()) matches_[t.normalized].put(t.pattern, index);
    tokens_.push_back(std::move(t));
  }
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const std::uint64_t* index = by_id_.find(static_cast<std::uint64_t>(id));
  return index ? &tokens_[*index] : nullptr;
}

std::int32_t AddedTokens::find(std::string_view content) const {
  std::int32_t id = -1;
  contents_.for_each_prefix(content, 0, [&](std::size_t end, std::int32_t index) {
    if (end == content.size()) id = tokens_[static_cast<std::size_t>(index)].id;
  });
  return id;
}

std::int32_t AddedTokens::end() const {
  std::int32_t end = 0;
  for (const AddedToken& token : tokens_) end = std::max(end, token.id + 1);
  return end;
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text, bool normalized) const {
  std::vector<Segment> segments;
  std::size_t done = 0;  // the text before is in `segments`
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    std::int32_t index = -1;
    matches_[normalized].for_each_prefix(text, at, [&](std::size_t longer, std::int32_t found) {
      index = found;
      end = longer;
    });
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    std::size_t begin = at;
    at = end;
    if (token.single_word && ((begin > 0 && is_alphanumeric(character_before(text, begin).code)) ||
                              (end < text.size() && is_alphanumeric(character_at(text, end).code))))
      continue;
    if (token.lstrip) {
      // A token before may have taken the white space in which this one begins.
      begin = std::max(begin, done);
      while (begin > done) {
        const Character before = character_before(text, begin);
        if (!is_white_space(before.code)) break;
        begin -= before.size;
      }
    }
    if (token.rstrip)
      while (end < text.size()) {
        const Character after = character_at(text, end);
        if (!is_white_space(after.code)) break;
        end += after.size;
      }
    if (begin >= end) continue;
    if (begin > done) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
  return segments;
}

}  // namespace sy
