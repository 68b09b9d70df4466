// Byte pair encoding (Sennrich et al., 2016). The adjacent pair with the lowest rank in the table
// of merges becomes one token, until no pair is in the table.
#include <algorithm>

#include "kernels/check.h"
#include "src/tokenizers/models.h"
#include "src/tokenizers/trie.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

// Parses "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_of(const Json& json) {
  if (!json.is_string()) {
    if (json.size() != 2) bad_component("a merge of {} tokens", json.size());
    return {json.at(0).get<std::string>(), json.at(1).get<std::string>()};
  }
  const std::string text = json.get<std::string>();
  const std::size_t blank = text.find(' ');
  if (blank == text.npos || text.find(' ', blank + 1) != text.npos)
    bad_component("the merge '{}' is not two tokens with a blank between", text);
  return {text.substr(0, blank), text.substr(blank + 1)};
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

class Bpe : public Model {
 public:
  explicit Bpe(const Json& component)
      : Model(vocabulary_of(component)),
        prefix_(value_of<std::string>(component, "continuing_subword_prefix", "")),
        suffix_(value_of<std::string>(component, "end_of_word_suffix", "")),
        unknown_(value_of<std::string>(component, "unk_token", "")),
        fuse_unknown_(value_of<bool>(component, "fuse_unk", false)),
        ignore_merges_(value_of<bool>(component, "ignore_merges", false)) {
    unknown_id_ = vocabulary().find(unknown_);
    if (value_of<double>(component, "dropout", 0.0) != 0)
      bad_component("dropout would make ids random: set it to null");
    if (value_of<bool>(component, "byte_fallback", false)) bytes_ = vocabulary().bytes();
    std::uint64_t rank = 0;
    for (const Json& merge : component.at("merges")) {
      if (merge.is_string() && merge.get<std::string>().starts_with("#version")) continue;
      const std::pair<std::string, std::string> tokens = merge_of(merge);
      const std::string &left = tokens.first, &right = tokens.second;
      if (right.size() < prefix_.size()) bad_component("the merge '{} {}' lacks the prefix", left, right);
      const std::string merged = left + right.substr(prefix_.size());
      const auto id = [&](const std::string& token) {
        const std::int32_t found = vocabulary().find(token);
        if (found < 0)
          bad_component("the merge '{} {}' needs the token '{}', which is not in the vocabulary", left, right, token);
        return found;
      };
      const std::uint64_t pair = pair_of(id(left), id(right));
      merges_.put(pair, rank++ << 32 | static_cast<std::uint32_t>(id(merged)));
    }
    for (std::int32_t i = 0; i < vocabulary().size(); ++i)
      if (const std::string& token = vocabulary().token(i); !token.empty())
        if (const Character c = character_at(token, 0); c.size == token.size())
          characters_.put(c.code, static_cast<std::uint64_t>(i));
  }

  void encode(std::string_view pre_token, std::vector<std::int32_t>& ids) const override {
    if (ignore_merges_)
      if (const std::int32_t id = vocabulary().find(pre_token); id >= 0) return ids.push_back(id);
    const std::size_t begin = ids.size();
    characters_of(pre_token, ids);
    if (ids.size() > begin + 1) merge(ids, begin);
  }

 private:
  // Returns the id of a character: with the prefix unless it is the first, with the suffix if it is
  // the last. -1 if there is none.
  std::int32_t id_of(char32_t c, std::string_view character, bool first, bool last) const {
    if ((first || prefix_.empty()) && (!last || suffix_.empty())) {
      const std::uint64_t* id = characters_.find(c);
      return id ? static_cast<std::int32_t>(*id) : -1;
    }
    return vocabulary().find(marked(character, first, last));
  }
  std::string marked(std::string_view character, bool first, bool last) const {
    return fmt::format("{}{}{}", first ? "" : prefix_, character, last ? suffix_ : "");
  }

  void characters_of(std::string_view pre_token, std::vector<std::int32_t>& ids) const {
    bool pending = false;  // an unknown character, which may be fused with the next ones
    const auto flush = [&] {
      if (pending) ids.push_back(unknown_id_);
      pending = false;
    };
    for_each_character(pre_token, [&](char32_t c, std::size_t at, std::string_view character) {
      const bool first = at == 0, last = at + character.size() == pre_token.size();
      if (const std::int32_t id = id_of(c, character, first, last); id >= 0) {
        flush();
        ids.push_back(id);
        return;
      }
      if (!bytes_.empty() && append_bytes(marked(character, first, last), bytes_, ids)) return;
      if (unknown_.empty()) return;  // as in `tokenizers`: dropped
      if (unknown_id_ < 0)
        bad_input("the tokenizer has no token for '{}', nor for its unk_token '{}': it cannot encode this text",
                  character, shown(unknown_));
      if (!fuse_unknown_) flush();
      pending = true;
    });
    flush();
  }

  // A possible merge of adjacent symbols. The lowest rank comes first; among equal ones, the
  // leftmost. It may be outdated when it is taken from the heap.
  struct Candidate {
    std::uint64_t order;  // rank << 32 | index of the left symbol
    std::int32_t merged;
    bool operator<(const Candidate& other) const { return order > other.order; }  // for a min-heap
  };
  struct Symbol {
    // before, after: indices of the neighbours, or -1. id: -1 after a merge into the symbol before.
    std::int32_t id, before, after;
  };

  // Merges the symbols ids[begin...].
  void merge(std::vector<std::int32_t>& ids, std::size_t begin) const {
    thread_local std::vector<Symbol> symbols;
    thread_local std::vector<Candidate> heap;
    const auto count = static_cast<std::int32_t>(ids.size() - begin);
    symbols.clear();
    heap.clear();
    for (std::int32_t i = 0; i < count; ++i)
      symbols.push_back({ids[begin + static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    const auto candidate = [&](std::int32_t left) -> bool {
      const Symbol& l = symbols[static_cast<std::size_t>(left)];
      const std::uint64_t* found = merges_.find(pair_of(l.id, symbols[static_cast<std::size_t>(l.after)].id));
      if (found)
        heap.push_back({(*found >> 32) << 32 | static_cast<std::uint32_t>(left), static_cast<std::int32_t>(*found)});
      return found != nullptr;
    };
    for (std::int32_t i = 0; i + 1 < count; ++i) candidate(i);
    std::make_heap(heap.begin(), heap.end());
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const Candidate top = heap.back();
      heap.pop_back();
      const auto at = static_cast<std::int32_t>(top.order);
      Symbol& left = symbols[static_cast<std::size_t>(at)];
      if (left.id < 0 || left.after < 0) continue;
      Symbol& right = symbols[static_cast<std::size_t>(left.after)];
      const std::uint64_t* now = merges_.find(pair_of(left.id, right.id));
      // Skips an outdated pair: one of its symbols was merged.
      if (!now || static_cast<std::int32_t>(*now) != top.merged) continue;
      left.id = top.merged;
      left.after = right.after;
      right.id = -1;
      if (left.after >= 0) symbols[static_cast<std::size_t>(left.after)].before = at;
      if (left.before >= 0 && candidate(left.before)) std::push_heap(heap.begin(), heap.end());
      if (left.after >= 0 && candidate(at)) std::push_heap(heap.begin(), heap.end());
    }
    ids.resize(begin);
    for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].after)
      ids.push_back(symbols[static_cast<std::size_t>(i)].id);
  }

  std::string prefix_, suffix_;  // of all tokens of a pre-token but the first; of the last
  std::string unknown_;
  bool fuse_unknown_, ignore_merges_;
  std::vector<std::int32_t> bytes_;  // tokens of the bytes; empty: no byte fallback
  FlatMap merges_;                   // pair -> rank << 32 | merged token
  FlatMap characters_;               // character -> its token
};

}  // namespace

std::unique_ptr<Model> make_bpe(const Json& component) {
  return std::make_unique<Bpe>(component);
}

}  // namespace sy
