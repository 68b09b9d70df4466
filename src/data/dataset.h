// A data set as `prepare` writes it: DIR/dataset.ini, and for each domain NAME the Megatron-LM pairs
// DIR/NAME.{train,valid}.{bin,idx}, memory-mapped.
//
// dataset.ini:  [dataset] tokenizer = bytes | sentencepiece   model = tokenizer.model (sentencepiece)   vocab = 257
//                         domains = a,b,c
//               [NAME]    train_documents train_tokens train_bytes valid_documents valid_tokens valid_bytes
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/philox.h"
#include "dist/shard.h"
#include "kernels/tensor.h"

namespace sy {

enum class SplitName { train, valid };

// A .bin/.idx pair (MMIDIDX, version 1), read-only. Throws InputError naming the file when it is truncated, foreign, or
// when idx and bin disagree.
class IndexedTokens {
 public:
  explicit IndexedTokens(const std::filesystem::path& prefix);  // without .bin/.idx
  ~IndexedTokens();
  IndexedTokens(IndexedTokens&&) noexcept;
  IndexedTokens(const IndexedTokens&) = delete;

  Index documents() const;
  Index tokens() const;
  Range document(Index i) const;  // its tokens
  // Copies tokens [begin, begin + out.size()) of the concatenated documents. Throws InputError naming file and position
  // when an id is not below `vocab`.
  void read(Index begin, Index vocab, std::span<std::int32_t> out) const;

 private:
  struct Mapped;
  std::unique_ptr<Mapped> mapped_;
};

struct Domain {
  std::string name;
  Index train_tokens = 0, train_bytes = 0, valid_tokens = 0, valid_bytes = 0;
};

class Dataset {
 public:
  explicit Dataset(const std::filesystem::path& dir);
  const std::filesystem::path& dir() const { return dir_; }
  Index vocab() const { return vocab_; }
  const std::string& tokenizer() const { return tokenizer_; }  // "bytes" | "sentencepiece"
  const std::vector<Domain>& domains() const { return domains_; }
  IndexedTokens open(int domain, SplitName split) const;

 private:
  std::filesystem::path dir_;
  Index vocab_ = 0;
  std::string tokenizer_;
  std::vector<Domain> domains_;
};

// Training samples. Sample i is a pure function of (data set, seq_len, seed, i): seq_len + 1 consecutive tokens of one
// domain, whose windows are visited in a keyed permutation, epoch after epoch, in proportion to the domains' sizes.
// No rank or batch size enters, so a run is resumed from one integer.
class SampleStream {
 public:
  SampleStream(const Dataset& dataset, Index seq_len, std::uint64_t seed);
  // tokens: [seq_len + 1]. Returns the domain.
  int read(Index sample, std::span<std::int32_t> tokens) const;
  Index samples_per_epoch() const;
  // Which domain and which window of it: what read() reads.
  struct Where {
    int domain;
    Index window;
  };
  Where where(Index sample) const;

 private:
  const Dataset& dataset_;
  Index seq_len_;
  std::uint64_t seed_;
  std::vector<IndexedTokens> tokens_;
  std::vector<Index> windows_;  // of each domain
};

}  // namespace sy
