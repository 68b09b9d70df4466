// Text files to a data set (src/data/dataset.h).
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
  };
  std::vector<Source> domains;
  FileFilter filter;                // of the files in folders
  bool binary = false;              // takes binary files, too; with the tokenizer bytes alone
  std::string tokenizer = "bytes";  // bytes | spm:FILE | train-spm:VOCAB | hf:FILE
  std::string text_key = "text";    // of JSON lines
  double valid_fraction = 0.05;     // of each domain's bytes, in [0, 1)
  std::filesystem::path output;
  std::uint64_t seed = 1;
  bool overwrite = false;
};

struct PrepareProgress {
  // "reading", "sampling lines", "training the tokenizer", or the domain that is being tokenized.
  std::string_view phase;
  // Of text: read by this phase, or encoded of all domains. While a tokenizer is trained, rounds.
  // total 0: unknown.
  Index done = 0, total = 0;
  std::string_view unit = "bytes";
};

struct Prepared {
  Dataset dataset;
  LeftOut left_out;
  std::string first_binary;  // path of the first binary file that was left out; empty if there is none
};

// Throws InputErrors that names all that is wrong with the options, with the folder to write and with the paths to read; none
// is needed to find the errors of the others. The text itself is not read.
void check_prepare_options(const PrepareOptions& options);

// valid_fraction of a domain's bytes are validation text: the documents with the smallest draws, which are keyed by
// (seed, text), and the last part of the next one where it is too long to be taken whole. Where there are two
// characters, both splits have text. Documents of the same text share their fate, and of two files with the same text
// the second is left out: what one split has, the other has not. Documents end with end_of_text.
//
// A binary file of a folder (binary_byte) is left out, and one that is named is an error. JSON
// lines are never binary: a line that is not UTF-8 is an error.
//
// The text is read twice, first to measure it. Memory does not grow with it: 1 MiB of documents
// (src/data/text.h) for each thread, which encode them at the same time, the idx in IndexedWriter's
// way, a few words for every file, and about training_bytes (never twice that) to train a
// tokenizer. The files grow in OUTPUT/prepare.tmp and are renamed when all are whole, dataset.ini
// last: without it there is no data set. OUTPUT is new, empty, or a data set. With `overwrite` the
// new data set replaces the old one: files of the old one that the new one lacks are removed, and
// no other file changes. Throws InputError for what is wrong with options or text, Failure when the
// disk fails.
Prepared prepare(const PrepareOptions& options, const std::function<void(const PrepareProgress&)>& progress);

// The text that a tokenizer is trained on: lines drawn at random from the whole corpus.
constexpr Index training_bytes = 8 << 20;

}  // namespace sy
