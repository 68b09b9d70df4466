#include "src/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "src/system/files.h"
#include "src/text/strings.h"
#include "src/tokenizers/unicode.h"

namespace sy {

// Cache of encoded pre-tokens. Most pre-tokens of a text repeat.
class TokenizerJson::EncodingCache {
 public:
  void encode(const Model& model, std::string_view pre_token, std::vector<std::int32_t>& ids) {
    constexpr std::size_t longest = 64, most = 1 << 17, most_ids = 1 << 21;
    if (pre_token.size() > longest) return model.encode(pre_token, ids);
    if (const auto known = ranges_.find(pre_token); known != ranges_.end()) {
      const auto begin = ids_.begin() + known->second.first;
      ids.insert(ids.end(), begin, begin + known->second.second);
      return;
    }
    const std::size_t begin = ids.size();
    model.encode(pre_token, ids);
    if (ranges_.size() >= most || ids_.size() >= most_ids) {
      ranges_.clear();
      ids_.clear();
    }
    ranges_.emplace(pre_token,
                    std::pair{static_cast<std::int32_t>(ids_.size()), static_cast<std::int32_t>(ids.size() - begin)});
    ids_.insert(ids_.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::pair<std::int32_t, std::int32_t>, Hash, std::equal_to<>>
      // begin and count in ids_
      ranges_;
  std::vector<std::int32_t> ids_;
};

// Exclusive use of a cache while it lives.
struct TokenizerJson::CacheLease {
  explicit CacheLease(const TokenizerJson& tokenizer) : owner(tokenizer) {
    const std::lock_guard lock(owner.mutex_);
    if (owner.idle_caches_.empty()) {
      cache = std::make_unique<EncodingCache>();
    } else {
      cache = std::move(owner.idle_caches_.back());
      owner.idle_caches_.pop_back();
    }
  }
  ~CacheLease() {
    const std::lock_guard lock(owner.mutex_);
    owner.idle_caches_.push_back(std::move(cache));
  }
  const TokenizerJson& owner;
  std::unique_ptr<EncodingCache> cache;
};

TokenizerJson::TokenizerJson(const std::filesystem::path& file) {
  try {
    const std::string content = read_file(file);
    const MatchTime time(content.size());  // for normalising the added tokens
    const Json json = Json::parse(content);
    const auto component = [&](const char* key) {
      const Json* found = json.find(key);
      return found ? *found : Json();
    };
    if (value_of<std::string>(json, "version", "1.0") != "1.0")
      bad_component("version {} is not supported", value_of<std::string>(json, "version"));
    normalizer_ = make_normalizer(component("normalizer"));
    pre_tokenizer_ = make_pre_tokenizer(component("pre_tokenizer"));
    decoder_ = make_decoder(component("decoder"));
    model_ = make_model(json.at("model"));
    if (json.contains("added_tokens")) added_ = AddedTokens(json.at("added_tokens"), model_->vocabulary(), normalizer_);
    vocab_ = std::max(model_->vocabulary().size(), added_.end());
    if (vocab_ == 0) bad_component("the vocabulary is empty");
  } catch (const JsonError& e) {
    bad_input("{} is no tokenizer.json: {}", file.string(), e.what());
  } catch (const BadComponent& e) {
    bad_input("{}: {}", file.string(), e.what());
  }
}

TokenizerJson::~TokenizerJson() = default;

void TokenizerJson::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::string valid = as_utf8(text);
  const MatchTime time(text.size());
  const CacheLease lease(*this);
  for (const AddedTokens::Segment& segment : added_.split(valid, false))
    if (segment.id >= 0)
      ids.push_back(segment.id);
    else
      encode_text(std::string_view(valid).substr(segment.begin, segment.end - segment.begin), segment.begin == 0,
                  *lease.cache, ids);
}

void TokenizerJson::encode_text(std::string_view text, bool first, EncodingCache& cache,
                                std::vector<std::int32_t>& ids) const {
  NormalText normal{std::string(text), first};
  normalizer_(normal);
  for (const AddedTokens::Segment& segment : added_.split(normal.text, true)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    PreTokenizedText x;
    x.text = normal.text.substr(segment.begin, segment.end - segment.begin);
    x.pre_tokens = {{0, x.text.size(), normal.first && segment.begin == 0}};
    x.most = normal.most;
    pre_tokenizer_(x);
    for (const PreTokenizedText::PreToken& pre_token : x.pre_tokens)
      cache.encode(*model_, std::string_view(x.text).substr(pre_token.begin, pre_token.end - pre_token.begin), ids);
  }
}

std::string TokenizerJson::decode(const std::vector<std::int32_t>& ids) const {
  DecodedTokens x;
  std::vector<std::string>& tokens = x.tokens;
  for (const std::int32_t id : ids) {
    SY_ASSERT(id >= 0 && id < vocab_, "id {}", id);
    const AddedToken* added = added_.find(id);
    if (added && !added->special)
      tokens.push_back(added->pattern);
    else if (!added && id < model_->vocabulary().size() && !model_->vocabulary().token(id).empty())
      tokens.push_back(model_->vocabulary().token(id));
  }
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  x.most = max_output_bytes(bytes);
  const MatchTime time(bytes);
  decoder_(x);
  return join(tokens, "");
}

std::int32_t TokenizerJson::find(std::string_view token) const {
  const std::int32_t added = added_.find(token);
  return added >= 0 ? added : model_->vocabulary().find(token);
}

bool TokenizerJson::is_special(std::int32_t id) const {
  const AddedToken* added = added_.find(id);
  return added && added->special;
}

}  // namespace sy
