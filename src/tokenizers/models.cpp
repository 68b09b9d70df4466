#include "src/tokenizers/models.h"

#include <algorithm>

namespace sy {

Vocabulary::Vocabulary(std::vector<std::pair<std::string, std::int64_t>>&& tokens) {
  std::int64_t largest = -1;
  for (const auto& [token, id] : tokens) {
    if (id < 0) bad_component("the token '{}' has the id {}", token, id);
    largest = std::max(largest, id);
  }
  // Bounds the allocation by the file's size.
  if (largest >= static_cast<std::int64_t>(8 * tokens.size() + 1024) || largest >= INT32_MAX)
    bad_component("there are {} tokens, and the largest id is {}", tokens.size(), largest);
  tokens_.resize(static_cast<std::size_t>(largest + 1));
  for (auto& [token, id] : tokens) {
    std::string& here = tokens_[static_cast<std::size_t>(id)];
    if (!here.empty()) bad_component("'{}' and '{}' have the same id {}", here, token, id);
    here = std::move(token);
  }
  ids_.reserve(tokens.size());
  for (std::int32_t id = 0; id < size(); ++id)
    if (!token(id).empty() && !ids_.emplace(token(id), id).second)
      bad_component("'{}' is there twice, as {} and {}", token(id), find(token(id)), id);
}

std::int32_t Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

std::vector<std::int32_t> Vocabulary::bytes() const {
  std::vector<std::int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) ids.push_back(find(fmt::format("<0x{:02X}>", byte)));
  return ids;
}

bool append_bytes(std::string_view text, const std::vector<std::int32_t>& of_bytes, std::vector<std::int32_t>& ids) {
  const auto id = [&](char byte) { return of_bytes[static_cast<unsigned char>(byte)]; };
  if (of_bytes.empty() || std::ranges::any_of(text, [&](char byte) { return id(byte) < 0; })) return false;
  std::ranges::transform(text, std::back_inserter(ids), id);
  return true;
}

std::unique_ptr<const Vocabulary> vocabulary_of(const Json& component) {
  std::vector<std::pair<std::string, std::int64_t>> tokens;
  for (const Json::Member& member : component.at("vocab").members())
    tokens.emplace_back(member.name, member.value.get<std::int64_t>());
  return std::make_unique<const Vocabulary>(std::move(tokens));
}

std::unique_ptr<Model> make_model(const Json& component) {
  constexpr Kind<std::unique_ptr<Model>> kinds[] = {
      {"BPE", make_bpe}, {"Unigram", make_unigram}, {"WordPiece", make_wordpiece}};
  // The first files of BERT name no type.
  if (!component.contains("type") && component.contains("max_input_chars_per_word")) {
    Json typed = component;
    typed["type"] = "WordPiece";
    return make_model(typed);
  }
  return make_component<std::unique_ptr<Model>>("model", component, kinds);
}

}  // namespace sy
