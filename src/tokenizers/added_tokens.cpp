#include "src/tokenizers/added_tokens.h"

#include <algorithm>

#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

// Returns the last character before `at`, which must not be 0.
Character character_before(std::string_view text, std::size_t at) {
  std::size_t begin = at - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return character_at(text, begin);
}

}  // namespace

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
    const auto place = static_cast<std::int32_t>(tokens_.size());
    contents_.put(t.content, place);
    by_id_.put(static_cast<std::uint64_t>(t.id), static_cast<std::uint64_t>(place));
    if (!t.pattern.empty()) matches_[t.normalized].put(t.pattern, place);
    tokens_.push_back(std::move(t));
  }
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const std::uint64_t* place = by_id_.find(static_cast<std::uint64_t>(id));
  return place ? &tokens_[*place] : nullptr;
}

std::int32_t AddedTokens::find(std::string_view content) const {
  std::uint32_t node = Trie::root;
  for (const char byte : content)
    if ((node = contents_.step(node, byte)) == Trie::nowhere) return -1;
  const std::int32_t place = contents_.number(node);
  return place < 0 ? -1 : tokens_[static_cast<std::size_t>(place)].id;
}

std::int32_t AddedTokens::end() const {
  std::int32_t end = 0;
  for (const AddedToken& token : tokens_) end = std::max(end, token.id + 1);
  return end;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool normalized) const {
  const Trie& trie = matches_[normalized];
  std::vector<Part> parts;
  std::size_t done = 0;  // the text before is in `parts`
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    std::int32_t place = -1;
    std::uint32_t node = Trie::root;
    for (std::size_t next = at; next < text.size();) {
      node = trie.step(node, text[next++]);
      if (node == Trie::nowhere) break;
      if (const std::int32_t found = trie.number(node); found >= 0) {
        place = found;
        end = next;
      }
    }
    if (place < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(place)];
    std::size_t begin = at;
    at = end;
    if (token.single_word && ((begin > 0 && is_word(character_before(text, begin).code)) ||
                              (end < text.size() && is_word(character_at(text, end).code))))
      continue;
    if (token.lstrip)
      while (begin > done) {
        const Character before = character_before(text, begin);
        if (!is_white_space(before.code)) break;
        begin -= before.size;
      }
    if (token.rstrip)
      while (end < text.size()) {
        const Character behind = character_at(text, end);
        if (!is_white_space(behind.code)) break;
        end += behind.size;
      }
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace sy
