#include "src/data/pair_lines.h"

#include "src/text/json.h"

namespace sy {

std::vector<EncodedPair> encode_pairs(const std::vector<Document>& lines, const Tokenizer& tokenizer) {
  std::vector<std::string> texts;  // of each line: source, target
  for (const Document& line : lines) {
    const std::string where = fmt::format("{}: line {}", line.file.string(), line.line);
    Json pair;
    try {
      pair = Json::parse(line.text);
    } catch (const JsonError& e) {
      bad_input("{} is {}: correct it", where, e.what());
    }
    for (const char* key : {"source", "target"}) {
      if (!pair.is_object() || !pair.contains(key) || !pair[key].is_string() || pair[key].get<std::string>().empty())
        bad_input("{} has no {}: write {{\"source\": \"...\", \"target\": \"...\"}} with a text in each", where, key);
      texts.push_back(pair[key].get<std::string>());
    }
  }
  std::vector<std::vector<std::int32_t>> ids = encode_texts(tokenizer, {texts.begin(), texts.end()});
  std::vector<EncodedPair> pairs;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto bytes = static_cast<Index>(texts[2 * i].size() + texts[2 * i + 1].size());
    pairs.push_back({std::move(ids[2 * i]), std::move(ids[2 * i + 1]), bytes});
    for (const auto& [name, of] : {std::pair{"source", &pairs.back().source}, {"target", &pairs.back().target}})
      if (of->empty())
        bad_input("{}: line {} has a {} without a token: correct it", lines[i].file.string(), lines[i].line, name);
  }
  return pairs;
}

}  // namespace sy
