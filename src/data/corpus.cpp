#include "src/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace sy {

namespace fs = std::filesystem;

namespace {

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

// Returns the first 64 bits of a digest.
std::uint64_t leading_bits(const Digest& digest) {
  std::uint64_t bits;
  std::memcpy(&bits, digest.data(), sizeof bits);
  return bits;
}

}  // namespace

void Division::settle(double fraction) {
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
  whole_ = others_train && (before == 0 || 2 * missing >= here) ? SplitName::valid : SplitName::train;
}

SplitName Division::split_of(std::uint64_t draw) const {
  const std::size_t bucket = bucket_of(draw);
  return bucket == boundary_ ? whole_ : bucket < boundary_ ? SplitName::valid : SplitName::train;
}

std::size_t Division::begin_of_valid(std::uint64_t draw, std::string_view text) const {
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

Corpus::Corpus(const PrepareOptions& options, const PrepareReport& report)
    : options_(options), draws_(options.seed, "validation") {
  for (const auto& domain : options.domains)  // missing paths are reported before the long pass
    for (const fs::path& path : domain.paths)
      skipped_counts_ += walk_files(path, options.filter, [](const fs::path&) {});
  std::unordered_set<std::uint64_t> known;  // digests of the texts of files
  for (std::size_t d = 0; d < options.domains.size(); ++d) measure(d, known, report);
}

void Corpus::for_each(std::size_t domain, const std::function<void(Document&&)>& take) const {
  for_each_document(options_.domains[domain].paths, options_.filter, text_key(domain), [&](Document&& document) {
    if (skipped_.contains({domain, document.file_number})) return false;
    // the file may have changed since the first pass
    if (!options_.binary && !is_json_lines(document.file)) check_text(document);
    take(std::move(document));
    return true;
  });
}

std::size_t Corpus::begin_of_valid(std::size_t domain, std::string_view text) const {
  const std::uint64_t bits = draw(sha256(text));
  if (options_.domains[domain].is_json())
    return divisions_[domain].split_of(bits) == SplitName::valid ? 0 : text.size();
  return divisions_[domain].begin_of_valid(bits, text);
}

std::optional<std::string> Corpus::text_key(std::size_t domain) const {
  return options_.domains[domain].is_json() ? std::nullopt : std::optional(options_.text_key);
}

void Corpus::measure(std::size_t d, std::unordered_set<std::uint64_t>& known, const PrepareReport& report) {
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
    for_each_document({file}, {}, text_key(d), [&](Document&& document) {
      if (added-- == 0) return false;
      division.add(draw(sha256(document.text)), -static_cast<Index>(document.text.size()));
      return true;
    });
  };
  const auto end_file = [&] {
    if (content && !known.insert(leading_bits(content->finish())).second) skip(&SkippedFiles::copies);
  };
  for_each_document(domain.paths, options_.filter, text_key(d), [&](Document&& document) {
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

std::uint64_t Corpus::draw(const Digest& text) const {
  return draws_.bits(leading_bits(text));
}

}  // namespace sy
