#include "src/data/tokenizer.h"

// SentencePiece's headers use containers that they do not include.
#include <unordered_map>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <exception>
#include <iostream>
#include <streambuf>

#include "src/data/dataset.h"
#include "src/system/digest.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;
namespace sp = sentencepiece;

namespace {

class ByteTokenizer : public Tokenizer {
 public:
  Index vocab() const override { return 257; }
  int end_of_text() const override { return 256; }
  Index text_bytes(std::int32_t id) const override { return id < 0 || id > 256 ? -1 : id < 256; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
  }
  std::string decode(const std::vector<std::int32_t>& ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      SY_ASSERT(id >= 0 && id < vocab(), "id {}", id);
      if (id < 256) text += static_cast<char>(id);
    }
    return text;
  }
};

// U+2581: SentencePiece writes it for a blank in tokens, so it decodes the character itself to a
// blank.
constexpr std::string_view blank_mark = "\xE2\x96\x81";

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const fs::path& model) : model_(model) {
    const std::string content = read_file(model);
    if (!loads(content) || processor_.GetPieceSize() == 0)
      bad_input(
          "{} is not a SentencePiece model: name a .model file of spm_train or of --tokenizer "
          "train-spm:VOCAB",
          model.string());
    if (processor_.eos_id() < 0)
      bad_input("{} has no end-of-sentence piece, which closes every document: train the model with an eos_id",
                model.string());
    // If the model has tokens for the bytes of U+2581, these preserve the character. Not if the
    // model adds a blank before each encoded segment.
    std::vector<int> bytes, letter;
    for (const char* token : {"<0xE2>", "<0x96>", "<0x81>"}) {
      const int id = processor_.PieceToId(token);
      if (processor_.IsByte(id)) bytes.push_back(id);
    }
    check(processor_.Encode("a", &letter));
    const bool adds_blank = !letter.empty() && processor_.IdToPiece(letter.front()).starts_with(blank_mark);
    if (bytes.size() == blank_mark.size() && !adds_blank) blank_mark_ids_ = bytes;
    keeps_text_ = bytes_add_up(*this);
  }

  Index vocab() const override { return processor_.GetPieceSize(); }
  int end_of_text() const override { return processor_.eos_id(); }
  Index text_bytes(std::int32_t id) const override {
    return keeps_text_ && id >= 0 && id < vocab() && !processor_.IsUnknown(id) ? token_bytes(id) : -1;
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::vector<int> segment;
    for (;;) {
      const std::size_t mark = blank_mark_ids_.empty() ? text.npos : text.find(blank_mark);
      check(processor_.Encode({text.data(), std::min(mark, text.size())}, &segment));
      ids.insert(ids.end(), segment.begin(), segment.end());
      if (mark == text.npos) return;
      ids.insert(ids.end(), blank_mark_ids_.begin(), blank_mark_ids_.end());
      text.remove_prefix(mark + blank_mark.size());
    }
  }
  std::string decode(const std::vector<std::int32_t>& ids) const override {
    std::string text;
    check(processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text));
    return text;
  }

 private:
  // The library throws for some damaged models, such as one with a piece that begins with a zero
  // byte.
  bool loads(const std::string& content) {
    try {
      return processor_.LoadFromSerializedProto(content).ok();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      return false;
    }
  }

  // A model whose pieces contradict each other loads, and then fails for some texts.
  void check(const sp::util::Status& status) const {
    if (!status.ok())
      bad_input("the tokenizer {} cannot be used: {}: use another model", model_.string(), status.ToString());
  }

  // Number of bytes of the normalised text.
  Index token_bytes(int id) const {
    if (processor_.IsControl(id)) return 0;
    if (processor_.IsByte(id)) return 1;
    const std::string_view token = processor_.IdToPiece(id);
    Index marks = 0;
    for (std::size_t at = token.find(blank_mark); at != token.npos; at = token.find(blank_mark, at + 1)) ++marks;
    return static_cast<Index>(token.size()) - marks * static_cast<Index>(blank_mark.size() - 1);
  }

  fs::path model_;
  sp::SentencePieceProcessor processor_;
  bool keeps_text_ = true;           // the tokens of a text are its bytes
  std::vector<int> blank_mark_ids_;  // empty if the model encodes U+2581
};

class Lines : public sp::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return next_ == lines_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return lines_[next_]; }
  sp::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  std::size_t next_ = 0;
};

// Returns the number after `label` in `text`; -1 if there is none.
Index number_after(std::string_view text, std::string_view label) {
  Index number = -1;
  if (const std::size_t at = text.find(label); at != text.npos)
    std::from_chars(text.data() + at + label.size(), text.data() + text.size(), number);
  return number;
}

// Progress of SentencePiece's training. The library has no call for it, but logs each round to
// std::cerr, as in "EM sub_iter=0 size=8000 ...". While this object lives, it receives that text
// and prints none of it.
class TrainingLog : public std::streambuf {
 public:
  TrainingLog(Index vocab, const std::function<void(Index, Index)>& progress)
      : smallest_(1.1 * static_cast<double>(vocab)), progress_(progress), former_(std::cerr.rdbuf(this)) {}
  ~TrainingLog() override { std::cerr.rdbuf(former_); }
  TrainingLog(const TrainingLog&) = delete;

 private:
  int_type overflow(int_type c) override {
    if (c != '\n') {
      line_ += static_cast<char>(c);
      return c;
    }
    const Index round = number_after(line_, "EM sub_iter="), size = number_after(line_, " size=");
    line_.clear();
    if (round < 0 || size <= 0) return c;
    // Every two rounds it keeps three quarters of the tokens, until they are few enough.
    const double cuts = std::ceil(std::log(smallest_ / static_cast<double>(size)) / std::log(0.75));
    ++done_;
    if (progress_) progress_(done_, done_ + (round == 0 ? 1 : 0) + 2 * std::max<Index>(0, static_cast<Index>(cuts)));
    return c;
  }

  double smallest_;  // number of tokens at which training ends
  const std::function<void(Index, Index)>& progress_;
  std::streambuf* former_;
  std::string line_;
  Index done_ = 0;
};

}  // namespace

void for_each_in_parallel(std::size_t n, const std::function<void(std::size_t)>& work) {
  std::vector<std::exception_ptr> errors(n);
  std::atomic<std::size_t> first = n;  // the smallest number whose work has failed
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t i = 0; i < n; ++i) {
    // A hostile expression may need seconds until each of its errors.
    if (i > first) continue;
    try {
      work(i);
    } catch (...) {
      errors[i] = std::current_exception();
      for (std::size_t old = first; i < old && !first.compare_exchange_weak(old, i);) {
      }
    }
  }
  if (first < n) std::rethrow_exception(errors[first]);
}

std::vector<std::vector<std::int32_t>> encode_texts(const Tokenizer& tokenizer,
                                                    const std::vector<std::string_view>& texts) {
  std::vector<std::vector<std::int32_t>> ids(texts.size());
  for_each_in_parallel(texts.size(), [&](std::size_t i) { tokenizer.encode(texts[i], ids[i]); });
  return ids;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> load_sentencepiece(const fs::path& model) {
  return std::make_unique<SentencePieceTokenizer>(model);
}

const std::vector<TokenizerKind>& tokenizer_kinds() {
  static const std::vector<TokenizerKind> kinds = {
      {"bytes", nullptr, "bytes", [](const fs::path&) { return make_byte_tokenizer(); }},
      {"huggingface", "tokenizer.json", "hf:", load_huggingface},
      {"sentencepiece", "tokenizer.model", "spm:", load_sentencepiece},
  };
  return kinds;
}

const TokenizerKind* find_tokenizer_kind(std::string_view name) {
  for (const TokenizerKind& kind : tokenizer_kinds())
    if (kind.name == name) return &kind;
  return nullptr;
}

std::string tokenizer_sha256(const TokenizerKind& kind, const fs::path& model) {
  return to_hex(kind.model ? sha256_file(model) : sha256(kind.name));
}

bool bytes_add_up(const Tokenizer& tokenizer) {
  // Blanks that models add, merge or strip, and letters that their normalisation changes. Each
  // would change the number of bytes.
  for (const std::string_view probe :
       {"a", " a  b\t\n", "\xEF\xBC\xA1\xEF\xAC\x81\xE2\x85\xA7", "\xC3\x84\xE2\x84\xAB"}) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(probe, ids);
    auto left = static_cast<Index>(probe.size());
    for (const std::int32_t id : ids) {
      const Index size = tokenizer.text_bytes(id);
      if (size < 0) return false;
      left -= size;
    }
    if (left != 0) return false;
  }
  return true;
}

std::unique_ptr<Tokenizer> open_tokenizer(const fs::path& dataset_dir) {
  const DatasetDescription d = read_dataset_ini(dataset_dir);
  const TokenizerKind* kind = find_tokenizer_kind(d.tokenizer);
  if (!kind)
    bad_input("{} has `tokenizer = {}`: text cannot be turned into its tokens, nor back", dataset_dir.string(),
              d.tokenizer);
  if (kind->model) check_model(d);
  auto tokenizer = kind->open(d.model);
  if (d.end_of_text >= 0 && tokenizer->end_of_text() != d.end_of_text)
    bad_input("{} has documents that end with id {}, and the tokenizer ends them with {}: copy {} again",
              dataset_dir.string(), d.end_of_text, tokenizer->end_of_text(), huggingface_config_name);
  return tokenizer;
}

std::string train_sentencepiece(const std::vector<std::string>& lines, Index vocab,
                                const std::function<void(Index, Index)>& progress) {
  std::string model;
  Lines iterator(lines);
  const TrainingLog log(vocab, progress);
  const sp::util::Status status = sp::SentencePieceTrainer::Train(
      {{"model_type", "unigram"},
       {"vocab_size", std::to_string(vocab)},
       {"byte_fallback", "true"},
       {"normalization_rule_name", "identity"},
       {"add_dummy_prefix", "false"},
       {"remove_extra_whitespaces", "false"},
       {"allow_whitespace_only_pieces", "true"},  // indentation
       {"unk_id", "0"},
       {"eos_id", "1"},
       {"bos_id", "-1"},
       // Sums are grouped by thread, so the number of threads is fixed on every machine.
       {"num_threads", "8"},
       {"minloglevel", "0"}},  // TrainingLog reads it
      &iterator, &model);
  if (status.ok()) return model;
  const std::string message = status.ToString();
  if (const Index most = number_after(message, "Please set it to a value <= "); most > 0)
    bad_input(
        "train-spm:{}: the corpus has too little variety for so many pieces: the largest possible vocabulary "
        "is {}",
        vocab, most);
  if (const Index least = number_after(message, fmt::format("required_chars. {} vs ", vocab)); least > 0)
    bad_input("train-spm:{}: the bytes and the corpus's characters alone need {} pieces: ask for more", vocab, least);
  bad_input("train-spm:{}: SentencePiece cannot train on this corpus: {}", vocab, message);
}

}  // namespace sy
