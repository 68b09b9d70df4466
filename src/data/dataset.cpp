#include "src/data/dataset.h"

#include <map>
#include <set>

#include "dist/rank_settings.h"
#include "src/data/tokenizer.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/text/ini.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

constexpr const char* ini_name = "dataset.ini";

struct CountKey {
  const char* name;
  Index Domain::*field;
};
constexpr CountKey count_keys[] = {
    {"train_documents", &Domain::train_documents}, {"train_tokens", &Domain::train_tokens},
    {"train_bytes", &Domain::train_bytes},         {"valid_documents", &Domain::valid_documents},
    {"valid_tokens", &Domain::valid_tokens},       {"valid_bytes", &Domain::valid_bytes}};

struct SplitFiles {
  const char* name;  // of the split, in "NAME.train.bin" and in its keys
  PairDigests Domain::*digests;
};
constexpr SplitFiles split_files[] = {{"train", &Domain::train_digests}, {"valid", &Domain::valid_digests}};

struct DigestKey {
  const char* name;  // after "train_"
  std::string PairDigests::*field;
};
constexpr DigestKey digest_keys[] = {
    {"bin_sha256", &PairDigests::bin}, {"idx_sha256", &PairDigests::idx}, {"sample", &PairDigests::sample}};

// SHA-256 (hex) of the known counts of a domain.
std::string counts_sha256(const Domain& domain) {
  std::string text;
  for (const CountKey& key : count_keys)
    if (domain.*key.field >= 0) text += fmt::format("{} = {}\n", key.name, domain.*key.field);
  return to_hex(sha256(text));
}

// SHA-256 (hex) of the ids and domains in [dataset].
std::string ids_sha256(const DatasetDescription& d, const std::vector<std::string>& domains) {
  return to_hex(sha256(
      fmt::format("vocab = {}\nend_of_text = {}\ndomains = {}\n", d.vocab, d.end_of_text, fmt::join(domains, ","))));
}

// The entries of dataset.ini by "section.key". Reading an entry removes it, so the remaining
// entries are unknown keys.
class Entries {
 public:
  Entries(const fs::path& file, const std::string& text) : file_(file.string()) {
    // Files written by hand may have a comment directly after a value.
    const IniText ini = read_ini(text, Comments::anywhere);
    for (const IniProblem& problem : ini.problems) bad_input("{}:{}: {}", file_, problem.line, problem.what);
    for (const IniEntry& entry : ini.entries)
      if (!values_.emplace(entry.key, entry.value).second)
        bad_input("{}:{}: {} is given twice: keep one", file_, entry.line, entry.key);
  }

  std::string take(const std::string& key, const std::string& otherwise = "") {
    const auto entry = values_.extract(key);
    return entry ? entry.mapped() : otherwise;
  }
  template <class T>
  T take_number(const std::string& key, T otherwise) {
    const std::string text = take(key);
    if (text.empty()) return otherwise;
    const auto value = parse_number<T>(text);
    if (!value || !(*value >= 0) || *value > static_cast<T>(0x1p62))
      bad_input("{}: {} = {} is not a number from 0 on: correct it", file_, key, text);
    return *value;
  }
  bool take_boolean(const std::string& key) {
    const std::string text = take(key, "false");
    if (text != "true" && text != "false") bad_input("{}: {} = {}: set it to true or false", file_, key, text);
    return text == "true";
  }
  std::string take_digest(const std::string& key) {
    const std::string text = take(key);
    const bool hex = text.find_first_not_of("0123456789abcdef") == text.npos;
    if (!text.empty() && (text.size() != 64 || !hex))
      bad_input("{}: {} = {} is not a SHA-256 of 64 lower-case hexadecimal digits: correct or remove it", file_, key,
                text);
    return text;
  }
  void check_unknown_keys(const std::vector<std::string>& sections) const {
    if (values_.empty()) return;
    const std::string& key = values_.begin()->first;
    const std::string section = key.substr(0, key.find('.'));
    if (std::ranges::find(sections, section) != sections.end()) bad_input("{}: unknown key {}: remove it", file_, key);
    bad_input("{}: dataset.domains does not name {}: add it there, or remove the section [{}]", file_, section,
              section);
  }
  const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::map<std::string, std::string> values_;
};

// Sets the counts of a split from its files. If dataset.ini has counts, they must be equal.
void settle(const fs::path& prefix, const IndexedTokens& tokens, Index& documents, Index& count) {
  if ((documents >= 0 && documents != tokens.documents()) || (count >= 0 && count != tokens.tokens()))
    bad_input(
        "{}.idx has {} documents and {} tokens, but {} says {} and {}: the files belong to different data sets; "
        "prepare them again",
        prefix.string(), tokens.documents(), tokens.tokens(), ini_name, documents, count);
  documents = tokens.documents();
  count = tokens.tokens();
}

// Returns true if dataset.ini shows that this pair existed when the data set was made.
bool described(const PairDigests& digests) {
  return !digests.bin.empty() || !digests.idx.empty() || !digests.sample.empty();
}

// Opens a pair. Returns no documents if the files are absent and not needed.
IndexedTokens open_pair(const fs::path& prefix, bool needed, bool loss_mask, Index& documents, Index& tokens,
                        PairDigests& digests) {
  IndexedTokens pair;
  if (needed || described(digests) || file_exists(prefix.string() + ".idx") || file_exists(prefix.string() + ".bin")) {
    pair = IndexedTokens(prefix, loss_mask);
    const std::string sample = digests_of(prefix, true).sample;
    if (!digests.sample.empty() && digests.sample != sample)
      bad_input(
          "{}.{{bin,idx}} are not what {} describes (their sampled blocks have another digest): copy or prepare them "
          "again; `switchyard inspect {}` says which is damaged",
          prefix.string(), ini_name, prefix.parent_path().string());
    digests.sample = sample;
  }
  settle(prefix, pair, documents, tokens);
  return pair;
}

// Opens a pair that another rank has checked, and compares its counts with those of that rank.
// Returns no documents if there is no such pair.
IndexedTokens open_checked_pair(const fs::path& prefix, bool loss_mask, Index documents, Index tokens,
                                const PairDigests& digests) {
  if (!described(digests)) return {};
  IndexedTokens pair(prefix, loss_mask, IndexCheck::header);
  if (pair.documents() != documents || pair.tokens() != tokens)
    bad_input(
        "{}.{{bin,idx}} have {} documents and {} tokens, and rank 0 has {} and {}: let all ranks read the same files, "
        "and leave data in use alone",
        prefix.string(), pair.documents(), pair.tokens(), documents, tokens);
  return pair;
}

}  // namespace

void check_domain_name(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (name.empty() || !plain || name == "dataset")
    bad_input("'{}' cannot name a domain: use letters, digits, _ and - (but not 'dataset')", name);
}

namespace {

// Parses the text of DIR/dataset.ini. Throws InputError.
DatasetDescription parse_dataset_ini(const std::string& text, const fs::path& dir) {
  Entries entries(dir / ini_name, text);
  if (const Index version = entries.take_number<Index>("dataset.format_version", 1);
      version < 1 || version > dataset_format)
    bad_input("{} has format version {}, this program reads versions up to {}: use the program that wrote it",
              entries.file(), version, dataset_format);
  DatasetDescription d;
  d.tokenizer = entries.take("dataset.tokenizer");
  const TokenizerKind* kind = find_tokenizer_kind(d.tokenizer);
  if (!kind && d.tokenizer != "none") {
    std::vector<std::string_view> names;
    for (const TokenizerKind& known : tokenizer_kinds()) names.push_back(known.name);
    bad_input("{}: dataset.tokenizer = {}: set it to {} or none", entries.file(), d.tokenizer, fmt::join(names, ", "));
  }
  if (kind && kind->model) {
    const std::string model = entries.take("dataset.model");
    if (model.empty())
      bad_input("{}: dataset.model is missing: name the file of the {} tokenizer", entries.file(), kind->name);
    d.model = dir / model;
    d.model_sha256 = entries.take_digest("dataset.model_sha256");
  }
  d.tokenizer_sha256 = entries.take_digest("dataset.tokenizer_sha256");
  const std::string expected = kind && !kind->model ? tokenizer_sha256(*kind, {}) : d.model_sha256;
  if (!d.tokenizer_sha256.empty() && !expected.empty() && d.tokenizer_sha256 != expected)
    bad_input("{}: dataset.tokenizer_sha256 is not the digest of the tokenizer, {}: correct or remove it",
              entries.file(), expected);
  d.unicode_versions = entries.take("dataset.unicode_versions");
  if (const std::string name = entries.take("dataset.chat_template"); !name.empty()) d.chat_template = dir / name;
  d.vocab = entries.take_number<Index>("dataset.vocab", 0);
  if (d.vocab == 0 && d.tokenizer == "none")
    bad_input("{}: dataset.vocab is missing: set it to the number of token ids", entries.file());
  d.end_of_text = entries.take_number<Index>("dataset.end_of_text", -1);
  if (d.vocab > INT32_MAX) bad_input("{}: dataset.vocab = {}: ids have 31 bits", entries.file(), d.vocab);

  const std::vector<std::string> names = split_list(entries.take("dataset.domains"));
  const std::string ids = entries.take_digest("dataset.ids_sha256");
  d.has_ids_digest = !ids.empty();
  if (d.has_ids_digest && ids != ids_sha256(d, names))
    bad_input(
        "{}: vocab, end_of_text and domains of [dataset] are not those that its ids_sha256 is of: copy the file or prepare "
        "the data again; if you changed them on purpose, remove ids_sha256, and the sections of domains that are gone",
        entries.file());
  std::set<std::string> seen;
  int weights = 0;
  for (const std::string& name : names) {
    check_domain_name(name);
    if (!seen.insert(name).second) bad_input("{}: dataset.domains names {} twice: keep one", entries.file(), name);
    Domain domain;
    domain.name = name;
    for (const CountKey& key : count_keys) domain.*key.field = entries.take_number<Index>(name + "." + key.name, -1);
    const std::string counts = entries.take_digest(name + ".counts_sha256");
    if (!counts.empty() && counts != counts_sha256(domain))
      bad_input(
          "{}: the counts of [{}] are not those that its counts_sha256 is of: copy the file or prepare the data again; "
          "if you changed a count on purpose, remove counts_sha256",
          entries.file(), name);
    for (const SplitFiles& split : split_files)
      for (const DigestKey& key : digest_keys)
        domain.*split.digests.*key.field = entries.take_digest(fmt::format("{}.{}_{}", name, split.name, key.name));
    domain.weight = entries.take_number<double>(name + ".weight", -1);
    weights += domain.weight >= 0;
    domain.loss_mask = entries.take_boolean(name + ".loss_mask");
    domain.pairs = entries.take_boolean(name + ".pairs");
    d.domains.push_back(domain);
  }
  if (d.domains.empty()) bad_input("{}: dataset.domains is missing: name at least one domain", entries.file());
  if (weights != 0 && weights != static_cast<int>(d.domains.size()))
    bad_input("{}: {} of {} domains have a weight: give one to every domain, or to none", entries.file(), weights,
              d.domains.size());
  if (weights != 0 && std::none_of(d.domains.begin(), d.domains.end(), [](const Domain& x) { return x.weight > 0; }))
    bad_input("{}: every weight is 0: give a domain a share of the samples", entries.file());
  std::vector<std::string> sections = names;
  sections.emplace_back("dataset");
  entries.check_unknown_keys(sections);
  return d;
}

// SHA-256 (hex) of everything that determines the samples.
std::string content_digest(const DatasetDescription& d) {
  std::string content = fmt::format("{} {} {}\n", d.tokenizer, d.vocab, d.model_sha256);
  for (const Domain& domain : d.domains) {
    content += fmt::format("{} {}{}{}", domain.name, domain.weight, domain.loss_mask ? " loss_mask" : "",
                           domain.pairs ? " pairs" : "");
    for (const PairDigests* pair : {&domain.train_digests, &domain.valid_digests})
      content += " " + (pair->bin.empty() || pair->idx.empty() ? pair->sample : pair->bin + pair->idx);
    content += '\n';
  }
  return to_hex(sha256(content));
}

// Content of Dataset::shared_text(). Its first line has the numbers of the tokenizer, as JSON. A
// dataset.ini follows.
struct SharedText {
  std::map<std::string, std::vector<Index>> tokenizer_numbers;
  DatasetDescription description;
  SharedText(const std::string& text, const fs::path& dir) {
    const std::size_t end = text.find('\n');
    const Json numbers = Json::parse(text.substr(0, end));
    for (const Json::Member& member : numbers.members())
      tokenizer_numbers[member.name] = member.value.get<std::vector<std::int64_t>>();
    description = parse_dataset_ini(text.substr(end + 1), dir);
  }
};

}  // namespace

DatasetDescription read_dataset_ini(const fs::path& dir) {
  const fs::path file = dir / ini_name;
  if (!file_exists(file))
    bad_input("{} is not a data set: it has no {}; make one with `switchyard prepare ... --output {}`", dir.string(),
              ini_name, dir.string());
  return parse_dataset_ini(read_file(file), dir);
}

std::string to_ini(const DatasetDescription& d) {
  std::vector<std::string> names;
  for (const Domain& domain : d.domains) names.push_back(domain.name);
  const bool masked = std::ranges::any_of(d.domains, &Domain::loss_mask),
             pairs = std::ranges::any_of(d.domains, &Domain::pairs);
  std::string text = fmt::format("[dataset]\nformat_version = {}\ntokenizer = {}\n",
                                 pairs    ? 3
                                 : masked ? 2
                                          : 1,
                                 d.tokenizer);
  if (!d.model.empty()) text += fmt::format("model = {}\n", ini_value(d.model.filename().string()));
  if (!d.model_sha256.empty()) text += fmt::format("model_sha256 = {}\n", d.model_sha256);
  if (!d.tokenizer_sha256.empty()) text += fmt::format("tokenizer_sha256 = {}\n", d.tokenizer_sha256);
  if (!d.unicode_versions.empty()) text += fmt::format("unicode_versions = {}\n", d.unicode_versions);
  if (!d.chat_template.empty())
    text += fmt::format("chat_template = {}\n", ini_value(d.chat_template.filename().string()));
  if (d.end_of_text >= 0) text += fmt::format("end_of_text = {}\n", d.end_of_text);
  text +=
      fmt::format("vocab = {}\ndomains = {}\nids_sha256 = {}\n", d.vocab, fmt::join(names, ","), ids_sha256(d, names));
  for (const Domain& domain : d.domains) {
    text += fmt::format("\n[{}]\n", domain.name);
    if (domain.loss_mask) text += "loss_mask = true\n";
    if (domain.pairs) text += "pairs = true\n";
    if (domain.weight >= 0) text += fmt::format("weight = {}\n", domain.weight);
    for (const CountKey& key : count_keys)
      if (domain.*key.field >= 0) text += fmt::format("{} = {}\n", key.name, domain.*key.field);
    text += fmt::format("counts_sha256 = {}\n", counts_sha256(domain));
    for (const SplitFiles& split : split_files)
      for (const DigestKey& key : digest_keys)
        if (const std::string& hex = domain.*split.digests.*key.field; !hex.empty())
          text += fmt::format("{}_{} = {}\n", split.name, key.name, hex);
  }
  return text;
}

PairDigests digests_of(const fs::path& prefix, bool sample_alone) {
  const std::string bin = prefix.string() + ".bin", idx = prefix.string() + ".idx";
  PairDigests digests;
  digests.sample = to_hex(sha256(to_hex(sha256_sampled(bin)) + to_hex(sha256_sampled(idx))));
  if (sample_alone) return digests;
  digests.bin = to_hex(sha256_file(bin));
  digests.idx = to_hex(sha256_file(idx));
  return digests;
}

std::string tokenizer_sha256(const DatasetDescription& d) {
  if (!d.tokenizer_sha256.empty()) return d.tokenizer_sha256;
  if (!d.model_sha256.empty()) return d.model_sha256;
  const TokenizerKind* kind = find_tokenizer_kind(d.tokenizer);
  return kind ? tokenizer_sha256(*kind, d.model) : "";
}

void check_model(const DatasetDescription& d) {
  if (!d.model_sha256.empty() && to_hex(sha256_file(d.model)) != d.model_sha256)
    bad_input("{} is not the model that {} describes (another SHA-256): copy it again", d.model.string(), ini_name);
}

Dataset::Dataset(const fs::path& dir) : dir_(dir), description_(read_dataset_ini(dir)) {
  DatasetDescription& d = description_;
  check_model(d);
  d.tokenizer_sha256 = tokenizer_sha256(d);
  if (d.vocab == 0) d.vocab = open_tokenizer(dir)->vocab();
  for (Domain& domain : d.domains) {
    const fs::path train = dir / (domain.name + ".train"), valid = dir / (domain.name + ".valid");
    train_.push_back(
        open_pair(train, true, domain.loss_mask, domain.train_documents, domain.train_tokens, domain.train_digests));
    valid_.push_back(
        open_pair(valid, false, domain.loss_mask, domain.valid_documents, domain.valid_tokens, domain.valid_digests));
    // With `bytes`, a byte is a token, and end_of_text ends each document.
    const bool bytes = d.tokenizer == "bytes" && !domain.loss_mask;
    if (domain.train_bytes < 0) domain.train_bytes = bytes ? domain.train_tokens - domain.train_documents : 0;
    if (domain.valid_bytes < 0) domain.valid_bytes = bytes ? domain.valid_tokens - domain.valid_documents : 0;
    for (const Index documents : {domain.train_documents, domain.valid_documents})
      if (domain.pairs && documents % 2 != 0)
        bad_input("{}: domain {} has {} documents, and pairs have a source and a target: prepare it again",
                  (dir / ini_name).string(), domain.name, documents);
  }
  digest_ = content_digest(d);
}

std::string Dataset::shared_text() const {
  Json numbers = Json::object();
  for (const auto& [name, values] : *tokenizer_numbers_) numbers[name] = values;
  return numbers.dump() + '\n' + to_ini(description_);
}

Dataset::Dataset(const fs::path& dir, const std::string& shared) : dir_(dir) {
  SharedText text(shared, dir);
  *tokenizer_numbers_ = std::move(text.tokenizer_numbers);
  description_ = std::move(text.description);
  for (const Domain& domain : description_.domains) {
    train_.push_back(open_checked_pair(dir / (domain.name + ".train"), domain.loss_mask, domain.train_documents,
                                       domain.train_tokens, domain.train_digests));
    valid_.push_back(open_checked_pair(dir / (domain.name + ".valid"), domain.loss_mask, domain.valid_documents,
                                       domain.valid_tokens, domain.valid_digests));
  }
  digest_ = content_digest(description_);
}

const std::vector<Index>& Dataset::tokenizer_numbers(const std::string& name, TokenizerNumbers* compute) const {
  const auto known = tokenizer_numbers_->find(name);
  if (known != tokenizer_numbers_->end()) return known->second;
  return (*tokenizer_numbers_)[name] = compute(*open_tokenizer(dir_));
}

void check_same_data(Comm& world, const fs::path& dir, const std::string& shared) {
  const DatasetDescription d = SharedText(shared, dir).description;
  std::vector<RankSetting> settings = {{"the digest of the data", content_digest(d).substr(0, 16)},
                                       {"the data's tokenizer", d.tokenizer},
                                       {"the data's vocabulary", std::to_string(d.vocab)}};
  std::vector<std::string> names;
  for (const Domain& domain : d.domains) {
    names.push_back(domain.name);
    settings.push_back({fmt::format("weight of domain {}", domain.name), fmt::format("{}", domain.weight)});
    for (const CountKey& key : count_keys)
      settings.push_back({fmt::format("{} of domain {}", key.name, domain.name), std::to_string(domain.*key.field)});
    for (const SplitFiles& split : split_files)
      for (const DigestKey& key : digest_keys)
        settings.push_back({fmt::format("{}_{} of domain {}", split.name, key.name, domain.name),
                            (domain.*split.digests.*key.field).substr(0, 16)});
  }
  settings.push_back({"the data's domains", join(names, ", ")});
  check_rank_settings(world, settings, fmt::format("give all ranks the data of {}", dir.string()));
}

std::vector<DatasetFile> verify_dataset(const fs::path& dir) {
  const DatasetDescription d = read_dataset_ini(dir);
  std::vector<DatasetFile> files;
  const bool has_digests = d.has_ids_digest || std::ranges::any_of(d.domains, [](const Domain& domain) {
                             return described(domain.train_digests) || described(domain.valid_digests);
                           });
  const auto check = [&](const fs::path& path, const std::string& expected) {
    DatasetFile file;
    file.name = path.lexically_relative(dir).string();
    file.expected = expected;
    try {
      file.sha256 = to_hex(sha256_file(path));
      file.bytes = static_cast<Index>(fs::file_size(path));
      if (expected.empty() && has_digests)
        file.problem =
            "dataset.ini has other digests, but none of this file: copy dataset.ini or prepare the data again";
      else if (!expected.empty() && expected != file.sha256)
        file.problem = "another SHA-256 than dataset.ini says";
    } catch (const std::exception& e) {
      file.problem = e.what();
    }
    files.push_back(file);
  };
  for (const Domain& domain : d.domains)
    for (const SplitFiles& split : split_files) {
      const fs::path prefix = dir / fmt::format("{}.{}", domain.name, split.name);
      const PairDigests& digests = domain.*split.digests;
      const std::string bin = prefix.string() + ".bin", idx = prefix.string() + ".idx";
      const bool optional = std::string_view(split.name) == "valid" && !described(digests);
      if (optional && !file_exists(bin) && !file_exists(idx)) continue;
      check(bin, digests.bin);
      check(idx, digests.idx);
    }
  if (!d.model.empty()) check(d.model, d.model_sha256);
  return files;
}

Index Dataset::valid_tokens() const {
  Index tokens = 0;
  for (const Domain& domain : domains()) tokens += domain.valid_tokens;
  return tokens;
}

bool Dataset::has_loss_mask() const {
  return std::ranges::any_of(domains(), &Domain::loss_mask);
}

IndexedTokens Dataset::open(int domain, SplitName split) const {
  return (split == SplitName::train ? train_ : valid_).at(static_cast<std::size_t>(domain));
}

}  // namespace sy
