#include "src/data/prepare.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "src/data/text.h"
#include "src/data/tokenizer.h"
#include "src/io/files.h"
#include "src/io/lock.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

using Report = std::function<void(const PrepareProgress&)>;

constexpr const char* model_name = "tokenizer.model";

void check_options(const PrepareOptions& options) {
  if (options.domains.empty()) bad_input("there is no domain: give --domain NAME=PATH[,PATH...]");
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1))
    bad_input("--valid-fraction {}: it must be at least 0 and below 1", options.valid_fraction);
  if (options.output.empty()) bad_input("--output is empty: name a folder");
  std::set<std::string> names;
  for (const auto& domain : options.domains) {
    check_domain_name(domain.name);
    if (!names.insert(domain.name).second)
      bad_input("domain {} is given twice: join its paths by commas in one --domain", domain.name);
    // Otherwise the walk would read what is being written.
    for (const fs::path& path : domain.paths) {
      std::error_code ignored;
      const fs::path output = fs::weakly_canonical(options.output, ignored);
      const fs::path inside = output.lexically_relative(fs::weakly_canonical(path, ignored));
      if (fs::is_directory(path, ignored) && !inside.empty() && *inside.begin() != "..")
        bad_input("--output {} lies in the folder {} of domain {}: write elsewhere", options.output.string(),
                  path.string(), domain.name);
    }
  }
}

struct Size {
  Index bytes = 0, left_out = 0;
};

// Of all domains; throws when one of them is empty.
Size measure(const PrepareOptions& options) {
  Size size;
  for (const auto& domain : options.domains) {
    const Index before = size.bytes;
    for (const fs::path& path : domain.paths)
      size.left_out += walk_files(path, [&](const fs::path&, Index bytes) { size.bytes += bytes; });
    if (size.bytes == before) bad_input("domain {} is empty: its files hold no text", domain.name);
  }
  return size;
}

void check_utf8(const Document& document) {
  if (const auto bad = invalid_utf8(document.text))
    bad_input(
        "{}: byte {} is not UTF-8: convert the file (iconv -t UTF-8), or use --tokenizer bytes, which takes "
        "any",
        document.file.string(), document.offset + *bad);
}

// Lines of all domains, each kept with the same probability: about training_bytes, never twice that.
std::vector<std::string> sample_lines(const PrepareOptions& options, Index total, const Report& report) {
  // SentencePiece skips longer lines, and lines with a tab (its own mark for boundaries): they are cut there.
  constexpr std::size_t longest_line = 4000;
  const double keep = static_cast<double>(training_bytes) / static_cast<double>(total);
  std::vector<std::string> lines;
  Index kept = 0, read = 0;
  for (const auto& domain : options.domains) {
    const RandomStream draw(options.seed, "tokenizer lines of " + domain.name);
    std::uint64_t number = 0;
    for_each_document(domain.paths, [&](Document&& document) {
      check_utf8(document);
      for (std::string_view rest = document.text; !rest.empty();) {
        const std::size_t end = std::min(rest.find_first_of("\n\t"), rest.size());
        const std::size_t size = end <= longest_line ? end : cut_point(rest, longest_line / 2, longest_line);
        if (size > 0 && draw.uniform(number++) < keep && kept < 2 * training_bytes) {
          lines.emplace_back(rest.substr(0, size));
          kept += static_cast<Index>(size);
        }
        rest.remove_prefix(std::min(size + (size == end), rest.size()));
      }
      report({"sampling lines", read += static_cast<Index>(document.text.size()), total});
    });
  }
  return lines;
}

// Writes `folder`/tokenizer.model for SentencePiece.
std::unique_ptr<Tokenizer> make_tokenizer(const PrepareOptions& options, Index total, const fs::path& folder,
                                          const Report& report) {
  const std::string& spec = options.tokenizer;
  if (spec == "bytes") return make_byte_tokenizer();
  const fs::path model = folder / model_name;
  if (spec.starts_with("spm:")) {
    const fs::path given = spec.substr(4);
    load_sentencepiece(given);  // an error names the given file, not the copy
    write_file(model, read_file(given));
    return load_sentencepiece(model);
  }
  if (spec.starts_with("train-spm:")) {
    const char *begin = spec.data() + 10, *end = spec.data() + spec.size();
    Index vocab = 0;
    if (const auto r = std::from_chars(begin, end, vocab); r.ec != std::errc() || r.ptr != end || vocab < 1)
      bad_input("--tokenizer {}: VOCAB must be a number of pieces, as in train-spm:4096", spec);
    const std::vector<std::string> lines = sample_lines(options, total, report);
    report({"training the tokenizer", 0, 0});
    write_file(model, train_sentencepiece(lines, vocab));
    return load_sentencepiece(model);
  }
  bad_input("--tokenizer {}: choose bytes, spm:FILE or train-spm:VOCAB", spec);
}

class DomainWriter {
 public:
  DomainWriter(const fs::path& folder, const std::string& name, const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        train_(folder / (name + ".train"), tokenizer.vocab()),
        valid_(folder / (name + ".valid"), tokenizer.vocab()) {
    domain_.name = name;
  }

  void add(std::string_view text, SplitName split) {
    ids_.clear();
    tokenizer_.encode(text, ids_);
    ids_.push_back(tokenizer_.end_of_text());
    const bool train = split == SplitName::train;
    (train ? train_ : valid_).add(ids_);
    (train ? domain_.train_bytes : domain_.valid_bytes) += static_cast<Index>(text.size());
  }
  bool has(SplitName split) const { return (split == SplitName::train ? train_ : valid_).documents() > 0; }

  Domain finish() {
    train_.finish();
    valid_.finish();
    domain_.train_documents = train_.documents();
    domain_.train_tokens = train_.tokens();
    domain_.valid_documents = valid_.documents();
    domain_.valid_tokens = valid_.tokens();
    return domain_;
  }

 private:
  const Tokenizer& tokenizer_;
  IndexedWriter train_, valid_;
  std::vector<std::int32_t> ids_;
  Domain domain_;
};

Domain write_domain(const PrepareOptions& options, const PrepareOptions::Source& source, const Tokenizer& tokenizer,
                    const fs::path& folder, const std::function<void(Index)>& have_read) {
  DomainWriter writer(folder, source.name, tokenizer);
  const double fraction = options.valid_fraction;
  const RandomStream draw(options.seed, "validation documents of " + source.name);
  std::uint64_t number = 0;
  const auto drawn = [&] { return draw.uniform(number++) < fraction ? SplitName::valid : SplitName::train; };

  // The last document is decided upon when it is known to be the last.
  std::optional<Document> last;
  for_each_document(source.paths, [&](Document&& document) {
    if (tokenizer.needs_utf8()) check_utf8(document);
    have_read(static_cast<Index>(document.text.size()));
    if (last) writer.add(last->text, drawn());
    last = std::move(document);
  });
  SY_ASSERT(last, "domain {} lost its text", source.name);

  const std::string_view text = last->text;
  if (fraction == 0) {
    writer.add(text, SplitName::train);
  } else if (number == 0) {
    // A single document: its last part is the validation text, if need be a little more of it than asked for.
    const auto wanted = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(text.size())));
    const std::size_t high = text.size() - std::min(wanted, text.size() - 1);
    const std::size_t cut = cut_point(text, high - std::min(high, std::max<std::size_t>(wanted / 2, 3)), high);
    const bool in_two = cut > 0 && cut < text.size();  // not a text of one character
    writer.add(in_two ? text.substr(0, cut) : text, SplitName::train);
    if (in_two) writer.add(text.substr(cut), SplitName::valid);
  } else {
    const SplitName split = drawn();
    const SplitName other = split == SplitName::valid ? SplitName::train : SplitName::valid;
    writer.add(text, writer.has(other) ? split : other);
  }
  return writer.finish();
}

// OUTPUT, held by one process at a time, and in it the folder where files grow until commit().
class Output {
 public:
  explicit Output(const fs::path& folder) : folder_(folder), staging_(folder / "prepare.tmp") {}
  ~Output() {
    if (!lock_) return;
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
    lock_.reset();
    if (made_) fs::remove(folder_, ignored);  // where it stayed empty
  }
  void open() {
    std::error_code error;
    made_ = fs::create_directories(folder_, error);
    if (error) bad_input("cannot make the folder {}: {}: choose another --output", folder_.string(), error.message());
    lock_.emplace(folder_, std::chrono::milliseconds(0), "--output", "choose another --output");
    remove_tree(staging_);
    make_folders(staging_);
  }
  Output(const Output&) = delete;

  const fs::path& staging() const { return staging_; }

  // Without dataset.ini there is no data set: it goes first and comes last.
  void commit(const std::vector<std::string>& files, const std::string& ini) {
    const fs::path last = folder_ / "dataset.ini";
    std::error_code error;
    write_point("remove", last);
    fs::remove(last, error);
    if (error) fail("cannot remove {}: {}", last.string(), error.message());
    sync_folder(folder_);
    for (const std::string& file : files) {
      write_point("rename", folder_ / file);
      fs::rename(staging_ / file, folder_ / file, error);
      if (error) fail("cannot rename {} into {}: {}", (staging_ / file).string(), folder_.string(), error.message());
    }
    write_file(last, ini);
  }

 private:
  fs::path folder_, staging_;
  std::optional<FolderLock> lock_;
  bool made_ = false;
};

}  // namespace

Prepared prepare(const PrepareOptions& options, const Report& progress) {
  check_options(options);
  std::vector<std::string> files;
  for (const auto& domain : options.domains)
    for (const char* suffix : {".train.bin", ".train.idx", ".valid.bin", ".valid.idx"})
      files.push_back(domain.name + suffix);
  if (options.tokenizer != "bytes") files.push_back(model_name);
  files.push_back("dataset.ini");
  for (const std::string& file : files)
    if (!options.overwrite && fs::exists(options.output / file))
      bad_input("{} exists: choose another --output, or give --overwrite to replace the data set",
                (options.output / file).string());
  files.pop_back();
  const Size size = measure(options);

  Output output(options.output);
  output.open();
  const auto tokenizer = make_tokenizer(options, size.bytes, output.staging(), progress);
  DatasetDescription description;
  description.tokenizer = tokenizer->kind();
  description.vocab = tokenizer->vocab();
  if (tokenizer->kind() == "sentencepiece") description.model = model_name;
  Index read = 0;
  for (const auto& source : options.domains)
    description.domains.push_back(write_domain(options, source, *tokenizer, output.staging(), [&](Index bytes) {
      progress({source.name, read += bytes, size.bytes});
    }));

  const std::string origin =
      fmt::format("# Written by switchyard prepare with --tokenizer {} --valid-fraction {} --seed {}\n",
                  options.tokenizer, options.valid_fraction, options.seed);
  output.commit(files, origin + to_ini(description));
  return {Dataset(options.output), size.left_out};
}

}  // namespace sy
