// Text to token ids and back. A new kind is a row of the table in tokenizer.cpp.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view kind() const = 0;  // "bytes" | "sentencepiece"
  virtual Index vocab() const = 0;            // ids are below this
  virtual int end_of_text() const = 0;        // closes every document
  // Appends the ids of one document's text, without end_of_text.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  virtual bool needs_utf8() const = 0;
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();  // ids 0..255 are bytes, 256 ends a text
std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& model);
// The tokenizer of a prepared data set.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& dataset_dir);

}  // namespace sy
