#include "src/data/run_tokenizer.h"

#include <algorithm>

#include "src/data/chat.h"
#include "src/io/manifest.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/text/strings.h"
#include "src/tokenizers/unicode.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

std::string short_text(const TokenizerIdentities& tokenizers) {
  std::vector<std::string> texts;
  for (const TokenizerIdentity& t : tokenizers)
    texts.push_back(
        t.kind == "bytes" ? t.kind : fmt::format("{}{}", t.kind == "none" ? "" : t.kind + " ", t.sha256.substr(0, 12)));
  return join(texts, " or ");
}

// The effect of another version of Unicode, for warnings.
constexpr const char* unicode_effect = "characters newer than Unicode 16 may have other ids";

bool have_common(const TokenizerIdentities& a, const TokenizerIdentities& b) {
  constexpr auto digest = &TokenizerIdentity::sha256;
  return std::ranges::find_first_of(a, b, {}, digest, digest) != a.end();
}

}  // namespace

std::string to_text(const TokenizerIdentities& tokenizers) {
  std::vector<std::string> texts;
  for (const TokenizerIdentity& t : tokenizers) texts.push_back(t.kind + " " + t.sha256);
  return join(texts, ", ");
}

TokenizerIdentities parse_tokenizers(const std::string& text) {
  TokenizerIdentities tokenizers;
  for (const std::string& item : split_list(text)) {
    const std::size_t blank = item.find(' ');
    if (blank != item.npos) tokenizers.push_back({item.substr(0, blank), item.substr(blank + 1)});
  }
  return tokenizers;
}

TokenizerIdentities tokenizers_of(const DatasetDescription& description) {
  const std::string sha256 = tokenizer_sha256(description);
  if (sha256.empty()) return {};
  return {{description.tokenizer, sha256, description.unicode_versions}};
}

TokenizerIdentities tokenizers_in(const fs::path& folder) {
  TokenizerIdentities tokenizers;
  for (const TokenizerKind& kind : tokenizer_kinds())
    if (kind.model && is_file(folder / kind.model))
      tokenizers.push_back({std::string(kind.name), to_hex(sha256_file(folder / kind.model))});
  return tokenizers;
}

void check_tokenizer_files(const fs::path& folder) {
  for (const char* name : tokenizer_files)
    if (file_exists(folder / name, Links::keep)) InputFile(folder / name);
}

std::string other_tokenizer(const fs::path& step_dir, const TrainState& state) {
  const auto run = run_of(step_dir);
  const fs::path folder = run ? *run / tokenizer_folder_name : fs::path();
  const TokenizerIdentities of_run = tokenizers_in(folder), of_model = tokenizers_of(step_dir, state);
  if (of_run.empty() || of_model.empty() || have_common(of_run, of_model)) return "";
  return fmt::format("{} holds the tokenizer {}, and {} was trained with {}", folder.string(), short_text(of_run),
                     step_dir.string(), short_text(of_model));
}

TokenizerIdentities tokenizers_of(const fs::path& step_dir, const TrainState& state) {
  if (!state.tokenizer.empty()) {
    TokenizerIdentities known = parse_tokenizers(state.tokenizer);
    for (TokenizerIdentity& tokenizer : known) tokenizer.unicode_versions = state.unicode_versions;
    return known;
  }
  const auto run = run_of(step_dir);
  return run && state.dataset.empty() ? tokenizers_in(*run / huggingface_folder_name) : TokenizerIdentities();
}

std::string StoredTokenizer::option() const {
  const bool folder_is_enough = kind->name == "huggingface";
  return std::string(kind->option) + (folder_is_enough ? model.parent_path() : model).string();
}

std::optional<StoredTokenizer> find_stored_tokenizer(const fs::path& step_dir, const TokenizerIdentities& tokenizers) {
  const auto run = run_of(step_dir);
  for (const TokenizerKind& kind : tokenizer_kinds()) {
    if (!kind.model) {
      if (have_common(tokenizers, {{"", tokenizer_sha256(kind, {})}})) return StoredTokenizer{&kind, {}};
      continue;
    }
    for (const char* name : {tokenizer_folder_name, huggingface_folder_name}) {
      const fs::path model = run ? *run / name / kind.model : fs::path();
      if (run && is_file(model) && have_common(tokenizers, {{"", tokenizer_sha256(kind, model)}}))
        return StoredTokenizer{&kind, model};
    }
  }
  return std::nullopt;
}

void store_tokenizer(const DatasetDescription& description, const fs::path& run_dir) {
  const TokenizerKind* kind = find_tokenizer_kind(description.tokenizer);
  if (!kind || !kind->model) return;
  const fs::path folder = run_dir / tokenizer_folder_name;
  make_folders(folder);
  write_file(folder / kind->model, read_file(description.model));
  if (kind->name == "huggingface") write_file(folder / huggingface_config_name, huggingface_config(description.model));
}

void store_chat_template(const DatasetDescription& description, const fs::path& run_dir) {
  if (description.chat_template.empty()) return;
  const fs::path folder = run_dir / tokenizer_folder_name;
  make_folders(folder);
  write_file(folder / chat_template_name, read_file(description.chat_template));
}

void store_tokenizer(const StoredTokenizer& tokenizer, const fs::path& run_dir) {
  const fs::path folder = run_dir / tokenizer_folder_name, from = tokenizer.model.parent_path();
  std::error_code ignored;
  if (!tokenizer.kind->model || fs::equivalent(from, folder, ignored)) return;
  make_folders(folder);
  copy_tokenizer_files(from, folder);
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  for (const char* name : tokenizer_files)
    if (is_file(from / name, Links::keep)) write_file(to / name, read_file(from / name));
}

std::string check_unicode(const std::string& what, const std::string& versions) {
  if (versions.empty() || versions == unicode_versions()) return "";
  return fmt::format("the ids of {} were made with the Unicode tables of {}, and this program has {}: {}", what,
                     versions, unicode_versions(), unicode_effect);
}

std::string check_tokenizer(const fs::path& data, const TokenizerIdentities& of_data, const fs::path& step_dir,
                            const TrainState& state, bool force, const std::string& force_advice) {
  const TokenizerIdentities of_model = tokenizers_of(step_dir, state);
  if (of_data.empty() || of_model.empty()) {
    const std::string unknown = !of_data.empty()    ? step_dir.string()
                                : !of_model.empty() ? data.string()
                                                    : data.string() + " and that of " + step_dir.string();
    const std::string known = !of_data.empty()    ? fmt::format("{} ({})", short_text(of_data), data.string())
                              : !of_model.empty() ? fmt::format("{} ({})", short_text(of_model), step_dir.string())
                                                  : "one and the same";
    return fmt::format("the tokenizer of {} is not known: see that it is {}", unknown, known);
  }
  if (have_common(of_data, of_model)) {
    const std::string &here = of_data.front().unicode_versions, &there = of_model.front().unicode_versions;
    if (here.empty() || there.empty() || here == there) return "";
    return fmt::format("{} was prepared with the Unicode tables of {}, and {} was trained with data of {}: {}",
                       data.string(), here, step_dir.string(), there, unicode_effect);
  }
  const std::string difference =
      fmt::format("{} was prepared with the tokenizer {}, and {} was trained with {}", data.string(),
                  short_text(of_data), step_dir.string(), short_text(of_model));
  if (force) return difference + ": its ids are taken as they are";
  const auto stored = find_stored_tokenizer(step_dir, of_model);
  bad_input("{}: prepare the text with --tokenizer {}, or {} to take its ids as they are", difference,
            stored ? stored->option() : "and the model's tokenizer", force_advice);
}

std::string check_tokenizer(const Dataset& dataset, const fs::path& step_dir, const TrainState& state, bool force,
                            const std::string& force_advice) {
  if (!state.dataset_digest.empty() && state.dataset_digest == dataset.digest()) return "";
  return check_tokenizer(dataset.dir(), tokenizers_of(dataset.description()), step_dir, state, force, force_advice);
}

}  // namespace sy
