#include "src/data/prepare.h"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "src/data/text.h"
#include "src/data/tokenizer.h"
#include "src/io/lock.h"
#include "src/io/manifest.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/text/error_list.h"
#include "src/tokenizers/unicode.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

using Report = std::function<void(const PrepareProgress&)>;

// The values of --tokenizer and their tokenizer kinds.
struct Choice {
  std::string_view prefix;  // of --tokenizer; a prefix with a colon is followed by a value
  std::string_view kind;
};
constexpr Choice choices[] = {
    {"bytes", "bytes"}, {"spm:", "sentencepiece"}, {"train-spm:", "sentencepiece"}, {"hf:", "huggingface"}};

const Choice& choice_of(const std::string& tokenizer) {
  for (const Choice& choice : choices)
    if (choice.prefix.ends_with(':') ? tokenizer.starts_with(choice.prefix) : tokenizer == choice.prefix) return choice;
  bad_input("--tokenizer {}: choose bytes, spm:FILE, train-spm:VOCAB or hf:FILE", tokenizer);
}

// Divides the bytes of a domain into training and validation text. Whole documents are divided by
// their draws, those at the boundary by their bytes. Draws fall into buckets, so memory does not
// depend on the number of documents.
class Division {
 public:
  void add(std::uint64_t draw, Index bytes) {
    buckets_[bucket_of(draw)] += bytes;
    total_ += bytes;
  }
  Index bytes() const { return total_; }

  // Finds the boundary. Call it after all documents are added.
  void settle(double fraction) {
    const std::vector<Index> buckets = std::move(buckets_);
    if (fraction == 0 || total_ < 2) return;
    const Index wanted =
        std::clamp<Index>(static_cast<Index>(std::ceil(fraction * static_cast<double>(total_))), 1, total_ - 1);
    Index before = 0;
    while (before + buckets[boundary_] <= wanted) before += buckets[boundary_++];
    // The documents in the boundary bucket are cut if whole documents would miss `wanted` by more
    // than a twentieth or leave a split empty.
    const Index here = buckets[boundary_], missing = wanted - before, tolerance = wanted / 20;
    const bool others_train = before + here < total_;
    if (missing <= tolerance && before > 0)
      share_ = 0;
    else if (here - missing <= tolerance && others_train)
      share_ = 1;
    else
      share_ = static_cast<double>(missing) / static_cast<double>(here);
    uncut_ = before == 0 && others_train ? SplitName::valid : SplitName::train;
  }

  // Offset at which the validation text of a document begins: 0, its size, or between.
  std::size_t begin_of_valid(std::uint64_t draw, std::string_view text) const {
    const std::size_t bucket = bucket_of(draw), size = text.size();
    const double share = bucket < boundary_ ? 1 : bucket > boundary_ ? 0 : share_;
    if (share == 0 || share == 1) return share == 0 ? size : 0;
    // Rounded up: the validation text may become a little longer than its share.
    const auto wanted = static_cast<std::size_t>(std::ceil(share * static_cast<double>(size)));
    const std::size_t high = size - std::min(wanted, size - 1);
    const std::size_t cut = cut_point(text, high - std::min(high, std::max<std::size_t>(wanted / 8, 3)), high);
    if (cut > 0 && cut < size) return cut;
    return uncut_ == SplitName::valid ? 0 : size;  // a single character
  }

 private:
  static constexpr int bits = 17;
  static std::size_t bucket_of(std::uint64_t draw) { return draw >> (64 - bits); }

  std::vector<Index> buckets_ = std::vector<Index>(std::size_t{1} << bits);
  Index total_ = 0;
  std::size_t boundary_ = 0;
  double share_ = 0;                    // validation share of a document in the boundary bucket
  SplitName uncut_ = SplitName::train;  // split of a document there that cannot be cut
};

// Throws InputError if the document is not UTF-8 text. The file must not be JSON lines.
void check_text(const Document& document) {
  const auto bad = binary_byte(document.text);
  if (!bad) return;
  const std::string_view text = document.text;
  bad_input("{}: byte {} is {}, in line {}: {}, or leave the file out; --binary with --tokenizer bytes takes any file",
            document.file.string(), document.offset + *bad,
            text[static_cast<std::size_t>(*bad)] == '\0' ? "NUL" : "not UTF-8",
            document.line + std::count(text.begin(), text.begin() + *bad, '\n'),
            "convert the file if it is text (iconv -t UTF-8)");
}

// The text of all domains without binary files and copies, measured by a first pass.
class Corpus {
 public:
  // Throws InputError if a domain is empty or a binary file is named.
  Corpus(const PrepareOptions& options, const Report& report) : options_(options), draws_(options.seed, "validation") {
    for (const auto& domain : options.domains)  // missing paths are reported before the long pass
      for (const fs::path& path : domain.paths)
        skipped_counts_ += walk_files(path, options.filter, [](const fs::path&, Index) {});
    std::unordered_set<std::uint64_t> known;  // digests of the texts of files
    for (std::size_t d = 0; d < options.domains.size(); ++d) measure(d, known, report);
  }

  void for_each(std::size_t domain, const std::function<void(Document&&)>& take) const {
    for_each_document(options_.domains[domain].paths, options_.filter, options_.text_key, [&](Document&& document) {
      if (skipped_.contains({domain, document.file_number})) return false;
      // the file may have changed since the first pass
      if (!options_.binary && !is_json_lines(document.file)) check_text(document);
      take(std::move(document));
      return true;
    });
  }
  std::size_t begin_of_valid(std::size_t domain, std::string_view text) const {
    return divisions_[domain].begin_of_valid(draw(sha256(text)), text);
  }
  Index bytes() const { return bytes_; }
  const SkippedFiles& skipped_counts() const { return skipped_counts_; }
  const std::string& first_binary() const { return first_binary_; }

 private:
  // Reads a domain, finds the files to skip, and adds the documents of the others to its division.
  void measure(std::size_t d, std::unordered_set<std::uint64_t>& known, const Report& report) {
    const auto& domain = options_.domains[d];
    Division& division = divisions_.emplace_back();
    const SkippedFiles before = skipped_counts_;
    fs::path file;  // the file being read
    Index number = -1, added = 0;
    std::optional<Sha256> content;
    const auto skip = [&](Index SkippedFiles::*reason) {
      skipped_.emplace(d, number);
      ++(skipped_counts_.*reason);
      content.reset();
      for_each_document({file}, {}, options_.text_key, [&](Document&& document) {
        if (added-- == 0) return false;
        division.add(draw(sha256(document.text)), -static_cast<Index>(document.text.size()));
        return true;
      });
    };
    const auto end_file = [&] {
      if (content && !known.insert(head(content->finish())).second) skip(&SkippedFiles::copies);
    };
    for_each_document(domain.paths, options_.filter, options_.text_key, [&](Document&& document) {
      if (document.file_number != number) {
        end_file();
        number = document.file_number;
        file = document.file;
        added = 0;
        content.emplace();
      }
      if (!options_.binary && !is_json_lines(file)) {
        if (document.named) check_text(document);
        if (binary_byte(document.text)) {
          if (first_binary_.empty()) first_binary_ = file.string();
          skip(&SkippedFiles::binary);
          return false;
        }
      }
      const Digest digest = sha256(document.text);
      content->update(digest.data(), digest.size());
      division.add(draw(digest), static_cast<Index>(document.text.size()));
      ++added;
      report({"reading", read_ += static_cast<Index>(document.text.size()), 0});
      return true;
    });
    end_file();
    if (division.bytes() == 0)
      bad_input("domain {} is empty: {}", domain.name,
                skipped_counts_.copies > before.copies   ? "its files are copies of files before them"
                : skipped_counts_.binary > before.binary ? "its files are binary, such as " + first_binary_
                : !options_.filter.include.empty() || !options_.filter.exclude.empty()
                    ? "its files hold no text, or --include and --exclude leave none"
                    : "its files hold no text");
    division.settle(options_.valid_fraction);
    bytes_ += division.bytes();
  }

  static std::uint64_t head(const Digest& digest) {
    std::uint64_t bits;
    std::memcpy(&bits, digest.data(), sizeof bits);
    return bits;
  }
  std::uint64_t draw(const Digest& text) const { return draws_.bits(head(text)); }

  const PrepareOptions& options_;
  RandomStream draws_;
  std::vector<Division> divisions_;                  // by domain
  std::set<std::pair<std::size_t, Index>> skipped_;  // domain and number of the file
  std::string first_binary_;
  Index bytes_ = 0, read_ = 0;
  SkippedFiles skipped_counts_;
};

// Draws lines of all domains with equal probability: about training_bytes, less than twice that.
std::vector<std::string> sample_lines(const PrepareOptions& options, const Corpus& corpus, const Report& report) {
  // SentencePiece skips longer lines and lines with a tab (its own boundary mark), so lines are cut
  // there.
  constexpr std::size_t longest_line = 4000;
  const double keep = static_cast<double>(training_bytes) / static_cast<double>(corpus.bytes());
  std::vector<std::string> lines;
  Index sampled = 0, read = 0;
  for (std::size_t d = 0; d < options.domains.size(); ++d) {
    const RandomStream draw(options.seed, "tokenizer lines of " + options.domains[d].name);
    std::uint64_t number = 0;
    corpus.for_each(d, [&](Document&& document) {
      for (std::string_view rest = document.text; !rest.empty();) {
        const std::size_t end = std::min(rest.find_first_of("\n\t"), rest.size());
        const std::size_t size = end <= longest_line ? end : cut_point(rest, longest_line / 2, longest_line);
        if (size > 0 && draw.uniform(number++) < keep && sampled < 2 * training_bytes) {
          lines.emplace_back(rest.substr(0, size));
          sampled += static_cast<Index>(size);
        }
        rest.remove_prefix(std::min(size + (size == end), rest.size()));
      }
      report({"sampling lines", read += static_cast<Index>(document.text.size()), corpus.bytes()});
    });
  }
  return lines;
}

// Returns VOCAB of train-spm:VOCAB.
Index vocab_to_train(const std::string& tokenizer) {
  const char *begin = tokenizer.data() + choice_of(tokenizer).prefix.size(), *end = tokenizer.data() + tokenizer.size();
  Index vocab = 0;
  if (const auto r = std::from_chars(begin, end, vocab); r.ec != std::errc() || r.ptr != end || vocab < 1)
    bad_input("--tokenizer {}: VOCAB must be a number of pieces, as in train-spm:4096", tokenizer);
  return vocab;
}

// Returns FILE of spm:FILE and hf:FILE. A folder stands for the model file in it.
fs::path tokenizer_file(const std::string& tokenizer) {
  const Choice& choice = choice_of(tokenizer);
  fs::path file = tokenizer.substr(choice.prefix.size());
  if (std::error_code ignored; fs::is_directory(file, ignored)) file /= find_tokenizer_kind(choice.kind)->model;
  return file;
}

// Writes the tokenizer's files into `folder`.
std::unique_ptr<Tokenizer> make_tokenizer(const PrepareOptions& options, const Corpus& corpus, const fs::path& folder,
                                          const Report& report) {
  const std::string& spec = options.tokenizer;
  const Choice& choice = choice_of(spec);
  const TokenizerKind& kind = *find_tokenizer_kind(choice.kind);
  if (!kind.model) return kind.open({});
  const fs::path model = folder / kind.model;
  if (choice.prefix == "train-spm:") {
    const Index vocab = vocab_to_train(spec);
    const std::vector<std::string> lines = sample_lines(options, corpus, report);
    constexpr std::string_view phase = "training the tokenizer";
    report({phase, 0, 0, "rounds"});
    write_file(model, train_sentencepiece(lines, vocab, [&](Index done, Index total) {
                 report({phase, done, total, "rounds"});
               }));
  } else {
    const fs::path source = tokenizer_file(spec);
    kind.open(source);  // an error names the source, not the copy
    write_file(model, read_file(source));
    if (kind.name == "huggingface") write_file(folder / huggingface_config_name, huggingface_config(source));
  }
  return kind.open(model);
}

class SplitWriter {
 public:
  SplitWriter(const fs::path& prefix, const Tokenizer& tokenizer)
      : prefix_(prefix), end_of_text_(tokenizer.end_of_text()), writer_(prefix, tokenizer.vocab()) {}

  // Adds a document. ids: the ids of the text, without end_of_text.
  void add(std::string_view text, std::vector<std::int32_t>& ids) {
    if (text.empty()) return;
    ids.push_back(end_of_text_);
    writer_.add(ids);
    bytes_ += static_cast<Index>(text.size());
  }
  void finish(Index& documents, Index& tokens, Index& bytes, PairDigests& digests) {
    writer_.finish();
    documents = writer_.documents();
    tokens = writer_.tokens();
    bytes = bytes_;
    digests = digests_of(prefix_, false);
  }

 private:
  fs::path prefix_;
  std::int32_t end_of_text_;
  IndexedWriter writer_;
  Index bytes_ = 0;
};

Domain write_domain(const std::string& name, std::size_t number, const Corpus& corpus, const Tokenizer& tokenizer,
                    const fs::path& folder, const std::function<void(Index)>& have_encoded) {
  SplitWriter train(folder / (name + ".train"), tokenizer), valid(folder / (name + ".valid"), tokenizer);
  std::vector<Document> batch;  // encoded together
  const Index largest_batch = (Index{1} << 20) * omp_get_max_threads();
  Index bytes = 0;
  const auto write_batch = [&] {
    std::vector<std::string_view> texts;  // of each document: training text, validation text
    for (const Document& document : batch) {
      const std::string_view text = document.text;
      const std::size_t cut = corpus.begin_of_valid(number, text);
      texts.push_back(text.substr(0, cut));
      texts.push_back(text.substr(cut));
    }
    std::vector<std::vector<std::int32_t>> ids = encode_texts(tokenizer, texts);
    for (std::size_t i = 0; i < texts.size(); ++i) (i % 2 == 0 ? train : valid).add(texts[i], ids[i]);
    have_encoded(bytes);
    batch.clear();
    bytes = 0;
  };
  corpus.for_each(number, [&](Document&& document) {
    bytes += static_cast<Index>(document.text.size());
    batch.push_back(std::move(document));
    if (bytes >= largest_batch) write_batch();
  });
  if (!batch.empty()) write_batch();
  Domain domain;
  domain.name = name;
  train.finish(domain.train_documents, domain.train_tokens, domain.train_bytes, domain.train_digests);
  valid.finish(domain.valid_documents, domain.valid_tokens, domain.valid_bytes, domain.valid_digests);
  return domain;
}

constexpr const char *description_name = "dataset.ini", *staging_name = "prepare.tmp";
// Exists while a data set is replaced. It lists the file names of both data sets, one a line. The
// next `prepare` may remove these files if this one is interrupted.
constexpr const char* replaced_name = "prepare.replaced";

// Returns the file names of a data set. A model that dataset.ini names elsewhere is not included.
std::set<std::string> files_of(const DatasetDescription& description) {
  std::set<std::string> files{description_name};
  for (const Domain& domain : description.domains)
    for (const char* suffix : {".train.bin", ".train.idx", ".valid.bin", ".valid.idx"})
      files.insert(domain.name + suffix);
  if (!description.model.empty()) files.insert(description.model.filename().string());
  if (description.tokenizer == "huggingface") files.insert(huggingface_config_name);
  return files;
}

// Returns the files of the folder's data set, or of one whose replacement was interrupted. Throws
// InputError if the folder holds other files and no data set.
std::set<std::string> old_files(const fs::path& folder) {
  const std::set<std::string> names = names_in(folder);
  std::set<std::string> files;
  if (names.contains(replaced_name)) {
    std::istringstream lines(read_file(folder / replaced_name));
    for (std::string name; std::getline(lines, name);)
      if (name.find('/') == name.npos) files.insert(name);
  }
  if (names.contains(description_name)) {
    DatasetDescription old = read_dataset_ini(folder);
    if (old.model.parent_path() != folder) old.model.clear();
    files.merge(files_of(old));
    return files;
  }
  // it was a data set, so other files may be present
  if (names.contains(replaced_name)) return files;
  for (const std::string& name : names)
    if (!files.contains(name) && !name.starts_with('.') && !name.starts_with(staging_name) &&
        !name.starts_with(replaced_name) && name != lock_name)
      bad_input("--output {} holds '{}', and is no data set: choose a new or an empty folder", folder.string(), name);
  return files;
}

// Returns old_files. Throws InputError if the folder holds a file that conflicts with `files`.
std::set<std::string> check_output(const fs::path& folder, const std::set<std::string>& files, bool overwrite) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return {};
  std::set<std::string> old = old_files(folder);
  for (const std::set<std::string>& names : {old, files})
    for (const std::string& name : names) {
      if (!fs::exists(fs::symlink_status(folder / name, ignored))) continue;
      if (!overwrite)
        bad_input("{} exists: choose another --output, or give --overwrite to replace the data set",
                  (folder / name).string());
      if (!old.contains(name))
        bad_input("{} exists, and is not of the data set that is there: move it, or choose another --output",
                  (folder / name).string());
    }
  return old;
}

// The folder OUTPUT, locked by one process. Its staging folder holds growing files until commit().
class Output {
 public:
  explicit Output(const fs::path& folder) : folder_(folder), staging_(folder / staging_name) {}
  ~Output() {
    if (!lock_) return;
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
    lock_.reset();
    if (made_) fs::remove(folder_, ignored);  // fails, as intended, if it is not empty
  }
  // Throws InputError if the folder holds other files and no data set, or a file that conflicts
  // with `files`.
  void open(std::set<std::string> files, bool overwrite) {
    old_ = check_output(folder_, files, overwrite);
    std::error_code error;
    made_ = fs::create_directories(folder_, error);
    if (error)
      throw_write_error(error.value(), fmt::format("cannot make the folder {}: {}: choose another --output",
                                                   folder_.string(), error.message()));
    lock_.emplace(folder_, std::chrono::milliseconds(0), "--output", "choose another --output");
    old_ = check_output(folder_, files, overwrite);  // again, now that no other process changes it
    files_ = std::move(files);
    remove_tree(staging_);
    make_folders(staging_);
  }
  Output(const Output&) = delete;

  const fs::path& staging() const { return staging_; }

  // Replaces the old data set. Without dataset.ini there is no data set, so it is removed first and
  // written last.
  void commit(const std::string& ini) {
    std::string both;
    for (const auto& names : {files_, old_})
      for (const std::string& name : names) both += name + "\n";
    write_file(folder_ / replaced_name, both);
    remove(description_name);
    sync_folder(folder_);
    for (const std::string& name : old_)
      if (!files_.contains(name)) remove(name);
    for (const std::string& name : files_) {
      if (name == description_name) continue;
      write_point("rename", folder_ / name);
      std::error_code error;
      fs::rename(staging_ / name, folder_ / name, error);
      if (error) fail("cannot rename {} into {}: {}", (staging_ / name).string(), folder_.string(), error.message());
    }
    write_file(folder_ / description_name, ini);
    remove(replaced_name);
  }

 private:
  void remove(const std::string& name) {
    write_point("remove", folder_ / name);
    std::error_code error;
    fs::remove(folder_ / name, error);
    if (error) fail("cannot remove {}: {}", (folder_ / name).string(), error.message());
  }

  fs::path folder_, staging_;
  std::set<std::string> files_, old_;  // of the new data set; of the data set it replaces
  std::optional<FolderLock> lock_;
  bool made_ = false;
};

DatasetDescription description_of(const PrepareOptions& options) {
  const TokenizerKind& kind = *find_tokenizer_kind(choice_of(options.tokenizer).kind);
  DatasetDescription description;
  description.tokenizer = kind.name;
  if (kind.model) description.model = kind.model;
  for (const auto& domain : options.domains) description.domains.emplace_back().name = domain.name;
  return description;
}

}  // namespace

void check_prepare_options(const PrepareOptions& options) {
  ErrorList errors("prepare");
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1))
    errors.add("--valid-fraction {}: it must be at least 0 and below 1", options.valid_fraction);
  if (options.binary && options.tokenizer != "bytes")
    errors.add("--binary: --tokenizer {} takes UTF-8 text alone: use --tokenizer bytes", options.tokenizer);
  for (const std::vector<std::string>* globs : {&options.filter.include, &options.filter.exclude})
    for (const std::string& glob : *globs)
      if (glob.empty() || glob.ends_with('/'))
        errors.add("--{} '{}': give a pattern such as '*.txt' or 'build'",
                   globs == &options.filter.include ? "include" : "exclude", glob);
  std::set<std::string> names;
  for (const auto& domain : options.domains) {
    errors.run([&] { check_domain_name(domain.name); });
    if (!names.insert(domain.name).second)
      errors.add("domain {} is given twice: join its paths by commas in one --domain", domain.name);
    for (const fs::path& path : domain.paths) {
      std::error_code ignored;
      errors.run([&] { check_text_path(path); });
      // Otherwise the walk would read files that are being written.
      const fs::path output = fs::weakly_canonical(options.output, ignored);
      const fs::path inside = output.lexically_relative(fs::weakly_canonical(path, ignored));
      if (!options.output.empty() && fs::is_directory(path, ignored) && !inside.empty() && *inside.begin() != "..")
        errors.add("--output {} lies in the folder {} of domain {}: write elsewhere", options.output.string(),
                   path.string(), domain.name);
    }
  }
  const bool known = errors.run([&] { choice_of(options.tokenizer); });
  const std::string_view prefix = known ? choice_of(options.tokenizer).prefix : "";
  if (known && !options.output.empty())
    errors.run([&] { check_output(options.output, files_of(description_of(options)), options.overwrite); });
  if (prefix == "train-spm:") errors.run([&] { vocab_to_train(options.tokenizer); });
  if (prefix == "spm:" || prefix == "hf:") {
    const fs::path file = tokenizer_file(options.tokenizer);
    const bool there = errors.run([&] { InputFile{file}; });
    // Reading a large tokenizer takes time. If there is no other error, its errors appear when it
    // is used.
    if (there && !errors.empty())
      errors.run([&] { find_tokenizer_kind(choice_of(options.tokenizer).kind)->open(file); });
  }
  errors.raise();
}

Prepared prepare(const PrepareOptions& options, const Report& progress) {
  if (options.domains.empty()) bad_input("there is no domain: give --domain NAME=PATH[,PATH...]");
  if (options.output.empty()) bad_input("--output is empty: name a folder");
  check_prepare_options(options);
  const TokenizerKind& kind = *find_tokenizer_kind(choice_of(options.tokenizer).kind);
  DatasetDescription description = description_of(options);
  Output output(options.output);
  output.open(files_of(description), options.overwrite);

  const Corpus corpus(options, progress);
  const auto tokenizer = make_tokenizer(options, corpus, output.staging(), progress);
  description.vocab = tokenizer->vocab();
  description.tokenizer_sha256 = tokenizer_sha256(kind, kind.model ? output.staging() / kind.model : fs::path());
  if (kind.model) description.model_sha256 = description.tokenizer_sha256;
  if (kind.name == "huggingface") {
    description.end_of_text = tokenizer->end_of_text();
    description.unicode_versions = unicode_versions();
  }
  Index encoded = 0;
  for (std::size_t d = 0; d < options.domains.size(); ++d) {
    const std::string& name = options.domains[d].name;
    description.domains[d] = write_domain(name, d, corpus, *tokenizer, output.staging(), [&](Index bytes) {
      progress({"encoding " + name, encoded += bytes, corpus.bytes()});
    });
  }

  std::string origin =
      fmt::format("# Written by switchyard prepare with --tokenizer {} --valid-fraction {} --seed {}\n",
                  options.tokenizer, options.valid_fraction, options.seed);
  if (const std::string skipped = corpus.skipped_counts().text(); !skipped.empty())
    origin += fmt::format("# Left out: {}\n", skipped);
  output.commit(origin + to_ini(description));
  return {Dataset(options.output), corpus.skipped_counts(), corpus.first_binary()};
}

}  // namespace sy
