#include "src/evaluate/fill_mask.h"

#include <algorithm>
#include <cmath>

#include "src/evaluate/logits.h"
#include "src/model/softmax_sum.h"

namespace sy {

std::vector<std::int32_t> encode_masked(const Tokenizer& tokenizer, std::int32_t mask_token, const std::string& text) {
  std::vector<std::int32_t> ids;
  // A tokenizer that knows the name itself may take the blank before it, too.
  tokenizer.encode(text, ids);
  if (std::ranges::count(ids, mask_token) > 0) return ids;
  ids.clear();
  for (std::size_t at = 0;;) {
    std::size_t next = text.npos, length = 0;
    for (const std::string_view name : mask_names)
      if (const std::size_t found = text.find(name, at); found < next) {
        next = found;
        length = name.size();
      }
    tokenizer.encode(std::string_view(text).substr(at, next - at), ids);
    if (next == text.npos) return ids;
    ids.push_back(mask_token);
    at = next + length;
  }
}

std::vector<std::vector<Filling>> fill_mask(Engine& engine, std::span<const std::int32_t> ids, std::int32_t mask_token,
                                            Index token_ids, Index count) {
  const std::vector<float> logits = sequence_logits(engine, ids, [](Index, Index) {});
  const auto vocab = static_cast<std::size_t>(engine.vocab());
  std::vector<std::vector<Filling>> fillings;
  for (std::size_t p = 0; p < ids.size(); ++p) {
    if (ids[p] != mask_token) continue;
    const std::span<const float> row = std::span(logits).subspan(p * vocab, vocab);
    const auto [largest, sum] = softmax_sum(row);
    std::vector<Filling>& of_token = fillings.emplace_back();
    for (std::int32_t id = 0; id < std::min(token_ids, engine.vocab()); ++id)
      if (id != mask_token)
        of_token.push_back({id, std::exp(static_cast<double>(row[static_cast<std::size_t>(id)]) - largest) / sum});
    std::ranges::stable_sort(of_token, std::ranges::greater(), &Filling::probability);
    of_token.resize(std::min(of_token.size(), static_cast<std::size_t>(count)));
  }
  return fillings;
}

}  // namespace sy
