// The texts that become a data set, and their division into training and validation text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/data/prepare.h"
#include "src/system/digest.h"

namespace sy {

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
  void settle(double fraction);

  // Returns the split of a document that is not cut.
  SplitName split_of(std::uint64_t draw) const;
  // Offset at which the validation text of a document begins: 0, its size, or between.
  std::size_t begin_of_valid(std::uint64_t draw, std::string_view text) const;

 private:
  static constexpr int bits = 17;
  static std::size_t bucket_of(std::uint64_t draw) { return draw >> (64 - bits); }

  std::vector<Index> buckets_ = std::vector<Index>(std::size_t{1} << bits);
  Index total_ = 0;
  std::size_t boundary_ = 0;
  double share_ = 0;                    // validation share of a document in the boundary bucket
  SplitName uncut_ = SplitName::train;  // split of a document there that cannot be cut
  SplitName whole_ = SplitName::train;  // split of its documents if none is cut
};

// The text of all domains without binary files and copies, measured by a first pass.
class Corpus {
 public:
  // Throws InputError if a domain is empty or a binary file is named. `options` must outlive this.
  Corpus(const PrepareOptions& options, const PrepareReport& report);

  // Calls `take` with the documents of a domain. Throws InputError if a file is not text.
  void for_each(std::size_t domain, const std::function<void(Document&&)>& take) const;
  // Offset at which the validation text of a document begins.
  std::size_t begin_of_valid(std::size_t domain, std::string_view text) const;
  Index bytes() const { return bytes_; }
  const SkippedFiles& skipped_counts() const { return skipped_counts_; }
  const std::string& first_binary() const { return first_binary_; }

 private:
  std::optional<std::string> text_key(std::size_t domain) const;
  // Reads a domain, finds the files to skip, and adds the documents of the others to its division.
  void measure(std::size_t d, std::unordered_set<std::uint64_t>& known, const PrepareReport& report);
  std::uint64_t draw(const Digest& text) const;

  const PrepareOptions& options_;
  RandomStream draws_;
  std::vector<Division> divisions_;                  // by domain
  std::set<std::pair<std::size_t, Index>> skipped_;  // domain and number of the file
  std::string first_binary_;
  Index bytes_ = 0, read_ = 0;
  SkippedFiles skipped_counts_;
};

}  // namespace sy
