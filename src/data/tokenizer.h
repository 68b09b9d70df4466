// Text to token ids and back. A new kind is a class, and a row of the table in tokenizer.cpp.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view kind() const = 0;  // of a TokenizerKind
  virtual Index vocab() const = 0;            // ids are below this
  virtual int end_of_text() const = 0;        // closes every document
  // Appends the ids of one document's text, without end_of_text. Threads may encode at the same time.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // end_of_text and other control ids are no text. Ids must be in [0, vocab).
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  virtual bool needs_utf8() const = 0;
  // How many bytes of the encoded text the id stands for, 0 for control ids. Negative: not known, as where the model
  // normalises text or adds blanks.
  virtual Index text_bytes(std::int32_t id) const = 0;
};

// Encodes texts by all threads of OpenMP. The result does not depend on the number of threads. If
// several texts cannot be encoded, throws the error of the first one.
std::vector<std::vector<std::int32_t>> encode_texts(const Tokenizer& tokenizer,
                                                    const std::vector<std::string_view>& texts);

std::unique_ptr<Tokenizer> make_byte_tokenizer();  // ids 0..255 are bytes, 256 ends a text
// Throws InputError when the file is missing, is no model, or has no end-of-sentence piece.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& model);
// A tokenizer.json of Hugging Face (src/tokenizers). Its end_of_text is the eos_token of the tokenizer_config.json beside it, and
// else a special token of a name that is known for it. A special token's name within a text is that token, as it is there.
// Throws InputError, naming the file, where it cannot be used or has no such token.
std::unique_ptr<Tokenizer> load_huggingface(const std::filesystem::path& file);
// The content of that tokenizer_config.json; where there is none, of one that names the end_of_text.
std::string huggingface_config(const std::filesystem::path& file);
constexpr const char* huggingface_config_name = "tokenizer_config.json";
// The id of the bos_token of that tokenizer_config.json; -1 if there is none.
int huggingface_begin_of_text(const std::filesystem::path& file);

// Writes a SentencePiece model as the tokenizer.json and tokenizer_config.json of a folder. Returns
// whether they give the model's ids and texts, which holds for Unigram models that do not
// normalise; otherwise it removes them again. Throws InputError if the model cannot be read,
// Failure if the disk fails.
bool write_sentencepiece_as_json(const std::filesystem::path& model, const std::filesystem::path& folder);
int sentencepiece_begin_of_text(const std::filesystem::path& model);  // -1 if there is none

// What dataset.ini may call a tokenizer.
struct TokenizerKind {
  std::string_view name;
  const char* model;   // file name of its model in a data set; nullptr: it has none
  const char* option;  // of `prepare --tokenizer`; a file follows after a colon
  std::unique_ptr<Tokenizer> (*open)(const std::filesystem::path& model);
};
const std::vector<TokenizerKind>& tokenizer_kinds();
const TokenizerKind* find_tokenizer_kind(std::string_view name);  // nullptr: there is none

// SHA-256 (hex) of the model file, or of the kind's name if it has no model: equal digests mean
// equal ids. Throws InputError if the file cannot be read.
std::string tokenizer_sha256(const TokenizerKind& kind, const std::filesystem::path& model);

// Whether the text_bytes of texts' ids add up to their sizes: not where the model adds, merges or strips blanks, normalises, or
// does not know a letter.
bool bytes_add_up(const Tokenizer& tokenizer);

// The tokenizer of a prepared data set; InputError where dataset.ini says `tokenizer = none`.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& dataset_dir);

// Trains a unigram model with exactly `vocab` pieces on lines of UTF-8 text, and returns the content of the
// model file. Characters without a piece fall back to bytes and nothing is normalised, so that
// decode(encode(x)) == x for all UTF-8 text. The same lines give the same model on every machine. Throws
// InputError when the text has too little variety for so many pieces, or too much for so few.
// progress: called after each round of the training, with the number of rounds that is expected in
// all.
std::string train_sentencepiece(const std::vector<std::string>& lines, Index vocab,
                                const std::function<void(Index done, Index total)>& progress = {});

}  // namespace sy
