// Conversion of text files to a data set (src/data/dataset.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/dataset.h"
#include "src/data/text.h"

namespace sy {

struct PrepareOptions {
  struct Source {
    std::string name;
    std::vector<std::filesystem::path> paths;  // files, or folders to walk
    bool chat = false;                         // JSON lines of conversations (src/data/chat.h)
    bool pairs = false;                        // JSON lines with "source" and "target"
    // Whether a document is a line of JSON, which is not cut.
    bool is_json() const { return chat || pairs; }
  };
  std::vector<Source> domains;
  FileFilter filter;                // applied to the files in folders
  bool binary = false;              // accepts binary files; only with the tokenizer `bytes`
  std::string tokenizer = "bytes";  // bytes | spm:FILE | train-spm:VOCAB | hf:FILE
  std::string text_key = "text";    // key of the text in JSON lines
  std::string chat_template;        // hf:FOLDER; empty if there is none
  Index max_tokens = 0;             // of a conversation's example; 0 means unlimited
  double valid_fraction = 0.05;     // share of each domain's bytes, in [0, 1)
  std::filesystem::path output;
  std::uint64_t seed = 1;
  bool overwrite = false;
};

struct PrepareProgress {
  // "reading", "sampling lines", "training the tokenizer", or "encoding NAME" for a domain.
  std::string_view phase;
  // Bytes of text that this phase has read, or encoded in all domains. Rounds while a tokenizer is
  // trained. total = 0 means unknown.
  Index done = 0, total = 0;
  std::string_view unit = "bytes";
};

using PrepareReport = std::function<void(const PrepareProgress&)>;

struct Prepared {
  Dataset dataset;
  SkippedFiles skipped;
  // path of the first binary file that was left out; empty if there is none
  std::string first_binary;
};

// Throws InputErrors with all errors of the options, the output folder and the input paths. Does
// not read the text.
void check_prepare_options(const PrepareOptions& options);

// Writes a data set from text files. Documents end with end_of_text.
//
// Split: valid_fraction of a domain's bytes becomes validation text. It consists of the documents
// with the smallest draws, which are keyed by (seed, text). If the next document is too long, only
// its last part is included. A domain of at least two characters has text in both splits (if
// valid_fraction > 0).
// Equal documents get the same draw, and a file with the text of an earlier file is left out, so
// the splits do not overlap.
// A conversation is not cut: it is training or validation text. Its idx has a loss mask. Nor is a
// source with its target, which are two documents without end_of_text.
// A binary file (binary_byte) in a folder is left out; one that is named is an error. JSON lines
// are never binary: a line that is not UTF-8 is an error.
//
// The text is read twice; the first pass measures it. Memory does not grow with the text:
// - 1 MiB of documents (src/data/text.h) for each thread; all threads encode at the same time
// - a few words for every file
// - about training_bytes (less than twice that) to train a tokenizer
// - IndexedWriter's constant memory for the idx
// The files grow in OUTPUT/prepare.tmp and are renamed when all are complete, dataset.ini last.
// Without dataset.ini there is no data set.
// OUTPUT must be new, empty, or a data set. With `overwrite` the new data set replaces the old one:
// files that only the old one has are removed, and no other file changes.
// Throws InputError for wrong options or text, Failure if the disk fails.
Prepared prepare(const PrepareOptions& options, const PrepareReport& progress);

// Size of the text that a tokenizer is trained on: lines drawn at random from the whole corpus.
constexpr Index training_bytes = 8 << 20;

}  // namespace sy
