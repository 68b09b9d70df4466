// Conversion of text to token ids and back. A new kind is a class and a row of the table in
// tokenizer.cpp.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Names of the token that stands for a hidden one.
constexpr std::string_view mask_names[] = {"[MASK]", "<mask>"};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual Index vocab() const = 0;               // ids are below this
  virtual int end_of_text() const = 0;           // ends every document
  virtual int mask_token() const { return -1; }  // stands for a hidden token; -1 if there is none
  // Returns the id of the token with this name, such as <extra_id_0>; -1 if there is none.
  virtual std::int32_t find(std::string_view) const { return -1; }
  // Appends the ids of one document's text, without end_of_text. Threads may encode concurrently.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // Returns the text of ids in [0, vocab). end_of_text and other control ids give no text.
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  // Number of bytes of the encoded text that the id stands for; 0 for control ids. Negative if
  // unknown, for example if the model normalises text or adds blanks.
  virtual Index text_bytes(std::int32_t id) const = 0;
};

// Calls work(i) for each i from 0 to n - 1, with all OpenMP threads. If several calls throw, throws
// the error of the lowest i.
void for_each_in_parallel(std::size_t n, const std::function<void(std::size_t i)>& work);
// Encodes texts with all OpenMP threads. The result does not depend on the number of threads. If
// several texts cannot be encoded, throws the error of the first one.
std::vector<std::vector<std::int32_t>> encode_texts(const Tokenizer& tokenizer,
                                                    const std::vector<std::string_view>& texts);

std::unique_ptr<Tokenizer> make_byte_tokenizer();  // ids 0..255 are bytes, 256 ends a text
// Throws InputError if the file is missing, is no model, or has no end-of-sentence token.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& model);
// Loads a tokenizer.json of Hugging Face (src/tokenizers).
// Its end_of_text is the eos_token of the tokenizer_config.json in the same folder, otherwise a
// special token with a usual name for it. The name of a special token within a text becomes that
// token, as in Hugging Face's library.
// Throws InputError that names the file if it is unusable or has no such token.
std::unique_ptr<Tokenizer> load_huggingface(const std::filesystem::path& file);
// Returns the content of that tokenizer_config.json. If it is absent, returns one that names the
// end_of_text.
std::string huggingface_config(const std::filesystem::path& file);
constexpr const char* huggingface_config_name = "tokenizer_config.json";
// The id of the bos_token of that tokenizer_config.json; -1 if there is none.
int huggingface_begin_of_text(const std::filesystem::path& file);

// Writes a SentencePiece model as tokenizer.json and tokenizer_config.json in a folder.
// Returns true if they give the model's ids and texts, which holds for Unigram models that do not
// normalise. Otherwise the files are removed again.
// Throws InputError if the model is unreadable, Failure if the disk fails.
bool write_sentencepiece_as_json(const std::filesystem::path& model, const std::filesystem::path& folder);
int sentencepiece_begin_of_text(const std::filesystem::path& model);  // -1 if there is none

// A tokenizer kind that dataset.ini may name.
struct TokenizerKind {
  std::string_view name;
  const char* model;   // file name of the model in a data set; nullptr if it has none
  const char* option;  // value of `prepare --tokenizer`; a file follows after a colon
  std::unique_ptr<Tokenizer> (*open)(const std::filesystem::path& model);
};
const std::vector<TokenizerKind>& tokenizer_kinds();
const TokenizerKind* find_tokenizer_kind(std::string_view name);  // nullptr if unknown

// SHA-256 (hex) of the model file, or of the kind's name if it has no model: equal digests mean
// equal ids. Throws InputError if the file cannot be read.
std::string tokenizer_sha256(const TokenizerKind& kind, const std::filesystem::path& model);

// Returns true if text_bytes() of a text's ids sum to its size. False if the model adds, merges or
// strips blanks, normalises, or lacks letters.
bool bytes_add_up(const Tokenizer& tokenizer);

// Opens the tokenizer of a prepared data set. Throws InputError if dataset.ini has `tokenizer =
// none`.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& dataset_dir);

// Trains a Unigram model with exactly `vocab` tokens on lines of UTF-8 text. Returns the content of
// the model file.
// Characters without a token fall back to bytes and nothing is normalised, so decode(encode(x)) ==
// x for all UTF-8 text. The same lines give the same model on every machine.
// Throws InputError if the text has too little variety for so many tokens, or too much for so few.
//
// progress: called after each round of training with the expected total number of rounds.
std::string train_sentencepiece(const std::vector<std::string>& lines, Index vocab,
                                const std::function<void(Index done, Index total)>& progress = {});

}  // namespace sy
