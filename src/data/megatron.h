// Megatron-LM's indexed data set, version 1. PREFIX.bin holds the tokens of all documents, one
// after another. PREFIX.idx (little-endian, unaligned) has the begin of each:
//
//   "MMIDIDX\0\0"            9 bytes
//   version      u64 = 1
//   token type   u8          1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16
//   sequences    u64
//   boundaries   u64         documents + 1
//   lengths      i32 [sequences]    tokens
//   pointers     i64 [sequences]    byte offset in .bin
//   boundaries   i64 [boundaries]   first sequence of each document; from 0 to `sequences`
//   modes        u8 [sequences]     optional; with a loss mask 1 if no loss counts the sequence
//
// A document has one or more sequences. Tokens are read whatever the mode. The layout is that of
// megatron/core/datasets/indexed_dataset.py.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "dist/shard.h"
#include "kernels/tensor.h"

namespace sy {

// The checked content of an idx: all of it (20 bytes a document), or its header and the sizes of
// both files. The latter is enough if another rank has checked all of it.
enum class IndexCheck { whole, header };

// A pair that is open for reading. Copies share the open file, and threads may read concurrently.
// The constructor checks the idx. It throws InputError that names the file if it is truncated,
// foreign, or if idx and bin disagree.
// Files are read and not mapped. If a file is truncated later, read() throws InputError; a mapping
// would end the process by SIGBUS.
class IndexedTokens {
 public:
  IndexedTokens() = default;  // no documents
  // prefix: without .bin/.idx. loss_mask: the modes are a loss mask. Throws InputError if they are
  // absent then, or are neither 0 nor 1.
  explicit IndexedTokens(const std::filesystem::path& prefix, bool loss_mask = false,
                         IndexCheck check = IndexCheck::whole);

  Index documents() const;
  Index tokens() const;
  Range document(Index i) const;  // range of the document's tokens
  // Returns the first tokens of documents [first, first + count). Document documents() begins at
  // tokens().
  std::vector<Index> document_begins(Index first, Index count) const;
  // Returns the first tokens of the documents that begin in the range, in ascending order. Empty
  // documents have none.
  std::vector<Index> document_begins_in(Range tokens) const;
  // Copies tokens [begin, begin + out.size()) of the concatenated documents. Throws InputError with
  // file and position if an id is not in [0, vocab).
  void read(Index begin, Index vocab, std::span<std::int32_t> out) const;

  // Sets the targets that no loss counts to -1. targets: the tokens from `begin` on.
  void ignore_masked(Index begin, std::span<std::int32_t> targets) const;

 private:
  struct Pair;
  std::shared_ptr<const Pair> pair_;
};

// Writes a pair document by document in constant memory. Lengths go to the idx at once; finish()
// reads them back to write pointers and boundaries. Before finish(), the idx has no valid header.
// Tokens are u16 if vocab < 65500 (Megatron's own limit), otherwise i32. With a loss mask, memory
// holds 9 bytes for each document and each run of equal mask bits. Throws Failure if the disk
// fails.
class IndexedWriter {
 public:
  IndexedWriter(const std::filesystem::path& prefix, Index vocab, bool loss_mask = false);
  void add(std::span<const std::int32_t> document);
  // counted: for each token, whether a loss counts it. Only with a loss mask.
  void add(std::span<const std::int32_t> document, const std::vector<bool>& counted);
  void finish();
  Index documents() const { return documents_; }
  Index tokens() const { return tokens_; }

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  void add_sequence(std::span<const std::int32_t> document);
  void write(std::FILE* file, const std::filesystem::path& path, const void* data, std::size_t bytes);

  std::filesystem::path bin_path_, idx_path_;
  File bin_, idx_;
  bool narrow_;  // u16
  bool loss_mask_;
  Index documents_ = 0, sequences_ = 0, tokens_ = 0;
  // With a loss mask: the mode of each sequence, and the first sequence of each document.
  std::vector<std::uint8_t> modes_;
  std::vector<Index> boundaries_;
};

}  // namespace sy
