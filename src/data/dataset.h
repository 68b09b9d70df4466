// A prepared data set and the samples drawn from it.
//
// DIR/dataset.ini describes the data set. Each domain NAME has the Megatron-LM pairs
// DIR/NAME.{train,valid}.{bin,idx}. `switchyard prepare` writes all of them.
// For existing Megatron corpora, name (or link) the pairs like that and write dataset.ini by hand:
//
//   [dataset]
//   tokenizer = none        # or bytes, sentencepiece or huggingface with model = FILE in DIR
//   vocab = 50257           # ids are below this; required for `none` only
//   tokenizer_sha256 = ...  # optional with `none`: digest of its tokenizer.json or tokenizer.model
//   format_version = 1      # optional: of this file; 1 if absent, 2 with a loss mask, 3 with pairs
//   chat_template = ...     # optional: file in DIR, which `generate --chat` uses
//   unicode_versions = ...  # optional: libraries that huggingface used (unicode_versions())
//   domains = web,code      # [A-Za-z0-9_-]+, at least one; their order numbers them
//   [web]                   # optional, and so is every key in it
//   weight = 0.7            # share of the samples; for all domains or none (default: size)
//   valid_bytes = 123456    # text bytes of the validation tokens, for bits per byte
//   loss_mask = true        # the idx files have modes, and no loss counts sequences of mode 1
//   pairs = true            # documents alternate between a source and its target
//
// Further keys of a domain are checked against the files:
// - {train,valid}_{documents,tokens}
// - {train,valid}_{bin,idx}_sha256: digests of the whole files
// - {train,valid}_sample: digest of sampled blocks of both files (sha256_sampled)
// The model has dataset.model_sha256, the tokenizer dataset.tokenizer_sha256. `switchyard inspect
// DIR` computes all of them.
// `switchyard prepare` also writes train_bytes, counts_sha256 (of the counts) and
// dataset.ids_sha256 (of dataset.vocab, end_of_text and domains).
// If a domain has no validation pair, it has no validation text.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "kernels/philox.h"
#include "kernels/tensor.h"
#include "src/config.h"
#include "src/data/megatron.h"
#include "src/data/packing.h"
#include "src/data/sample.h"

namespace sy {

class TokenMasking;   // src/data/masking.h
class SequencePairs;  // src/data/sequence_pairs.h
class Tokenizer;      // src/data/tokenizer.h
class VisiblePrefix;  // src/data/visible_prefix.h

enum class SplitName { train, valid };

// Digests of a pair, in lower-case hex. Empty if unknown.
struct PairDigests {
  std::string bin, idx;  // SHA-256
  std::string sample;    // SHA-256 of the two files' sha256_sampled
};
// Computes the digests of prefix.bin and prefix.idx, which must exist. Reads the whole files. If
// sample_alone, computes only `sample`, which is fast, and leaves `bin` and `idx` empty.
PairDigests digests_of(const std::filesystem::path& prefix, bool sample_alone);

struct Domain {
  std::string name;
  Index train_documents = 0, train_tokens = 0, valid_documents = 0, valid_tokens = 0;
  // Bytes of the text without end_of_text. 0 means unknown: described by hand, and the tokenizer is
  // not `bytes`.
  Index train_bytes = 0, valid_bytes = 0;
  // share of the training samples, relative to other domains; -1 means its number of windows
  double weight = -1;
  bool loss_mask = false;  // the modes of the pairs are a loss mask; bytes are of counted tokens
  bool pairs = false;      // documents 2 i and 2 i + 1 are a source and its target
  PairDigests train_digests = {}, valid_digests = {};
};

// Latest version of dataset.ini. A change that older programs would misread increases it. A file
// has the lowest version that describes it: 2 if a domain has a loss mask, 3 if it has pairs.
constexpr Index dataset_format = 3;

// The content of dataset.ini, before any other file is read. Absent counts are -1; an absent
// `vocab` is 0.
struct DatasetDescription {
  std::string tokenizer;
  std::filesystem::path model;   // empty if the tokenizer kind has no model
  std::string model_sha256;      // empty if unknown
  std::string tokenizer_sha256;  // empty if dataset.ini does not have it
  // unicode_versions() of the program that wrote it; may be empty
  std::string unicode_versions;
  std::filesystem::path chat_template;  // empty if there is none
  Index vocab = 0;
  Index end_of_text = -1;       // id that ends each document; -1 if unknown
  bool has_ids_digest = false;  // there is dataset.ids_sha256, which to_ini writes
  std::vector<Domain> domains;
};

class Dataset {
 public:
  // Opens and checks all files, and their content by sampled blocks. Throws InputError that names
  // the wrong file or key.
  explicit Dataset(const std::filesystem::path& dir);
  // Opens a data set that another rank has opened and checked. shared: its shared_text(). Reads no
  // file but the headers of the pairs. Throws InputError if a pair is absent or has other counts.
  Dataset(const std::filesystem::path& dir, const std::string& shared);
  // Returns the description and the known numbers of the tokenizer, for the other constructor.
  std::string shared_text() const;
  const std::filesystem::path& dir() const { return dir_; }
  // With the vocabulary, the tokenizer's digest (sy::tokenizer_sha256) and the counts, which
  // dataset.ini may lack.
  const DatasetDescription& description() const { return description_; }
  Index vocab() const { return description_.vocab; }
  // Name of a TokenizerKind, or "none".
  const std::string& tokenizer() const { return description_.tokenizer; }
  // Empty if unknown.
  const std::string& unicode_versions() const { return description_.unicode_versions; }
  const std::vector<Domain>& domains() const { return description_.domains; }
  Index valid_tokens() const;  // of all domains
  bool has_loss_mask() const;  // of any domain
  // SHA-256 (hex) of everything that determines the samples: vocabulary, domains, weights, and the
  // digests of the files. If dataset.ini has no digests, those of the sampled blocks are used. Data
  // sets in different folders may have the same digest.
  const std::string& digest() const { return digest_; }
  // Returns the tokens of a split of domains()[domain]; no documents if there is no such pair.
  IndexedTokens open(int domain, SplitName split) const;
  // Returns numbers that follow from the tokenizer, which is opened once for each `name`. A copy of
  // the data set knows them, too. The tokenizer must not be "none". Throws InputError. Not for
  // concurrent calls.
  using TokenizerNumbers = std::vector<Index>(const Tokenizer&);
  const std::vector<Index>& tokenizer_numbers(const std::string& name, TokenizerNumbers* compute) const;

 private:
  std::filesystem::path dir_;
  DatasetDescription description_;
  std::string digest_;
  std::vector<IndexedTokens> train_, valid_;  // by domain
  // Results of tokenizer_numbers() by name, which copies share.
  std::shared_ptr<std::map<std::string, std::vector<Index>>> tokenizer_numbers_ =
      std::make_shared<std::map<std::string, std::vector<Index>>>();
};

// Reads and checks DIR/dataset.ini. Throws InputError.
DatasetDescription read_dataset_ini(const std::filesystem::path& dir);
// Returns the text of a dataset.ini, with counts_sha256 and ids_sha256.
std::string to_ini(const DatasetDescription& description);
// Returns the digest by which tokenizers are compared: SHA-256 of the model file, or of the kind's
// name if it has no model.
// Reads the model file if dataset.ini has no digest of it. Empty if the tokenizer is "none" and
// dataset.ini has no digest.
std::string tokenizer_sha256(const DatasetDescription& description);
// Throws InputError if the digest of the model is not model_sha256.
void check_model(const DatasetDescription& description);

// A file of a data set, compared with its digest.
struct DatasetFile {
  std::string name;  // relative to the data set's folder
  Index bytes = 0;
  std::string sha256, expected;  // of the file; in dataset.ini, empty if absent
  std::string problem;           // empty if the file is as described
};
// Reads every byte of the files that dataset.ini describes. `problem` describes a missing or
// damaged file, or a missing digest if dataset.ini has others, because it may have been cut. Throws
// InputError if dataset.ini itself is missing or wrong.
std::vector<DatasetFile> verify_dataset(const std::filesystem::path& dir);
// Throws InputError unless the name matches [A-Za-z0-9_-]+ and is not "dataset".
void check_domain_name(const std::string& name);

// Training samples. Sample i is a pure function of (data set, seq_len, seed, i): a window of one
// domain's training documents.
// It does not depend on ranks or batch sizes, so a run resumes from one integer.
//
// - A window has seq_len + 1 consecutive tokens. Windows begin every seq_len tokens, so no two
//   share an input. Fewer than seq_len tokens at the end of a domain fill no window.
// - In an encoder-decoder, a window has seq_len tokens, of which `SequencePairs` makes two
//   sequences; or it is a source and its target.
// - With data.documents = pack, a window has the documents that `Packing` gives it. Padding
//   follows, whose ids and targets are -1.
// - A blend is a range of samples with the same shares of the domains. Without changes, there is
//   one. Shares are the numbers of windows, or the weights.
// - In the order before shuffling, each domain has its share of the first n samples of a blend, to
//   within one sample per domain.
// - The k-th sample of a domain, in that order, is window permutation(k mod windows) of epoch
//   k / windows. The permutation of an epoch is keyed by (seed, name of the domain, epoch).
// - Samples are then shuffled within blocks of mixing_block, whose first one begins with the blend
//   and whose last one ends with it. The shares hold at the end of each block.
class SampleStream {
 public:
  // The shares of the domains from one sample on, until the next change.
  struct BlendChange {
    Index first_sample;
    std::vector<BlendSchedule::Weight> weights;  // 0 for the other domains
  };
  // - masking: of training_masking; nullptr if the targets are the next tokens.
  // - pairs: of training_pairs; nullptr without an encoder-decoder.
  // - prefix: of training_prefix; nullptr if no prefix is visible.
  // - changes: by ascending first sample. A later change replaces one with the same sample.
  // Throws InputError if a domain with a share of the samples is too short for one window, or if
  // the data set lacks a domain of a change.
  SampleStream(const Dataset& dataset, Index seq_len, std::uint64_t seed, const Config::Data& data = {},
               std::shared_ptr<const TokenMasking> masking = nullptr, const std::vector<BlendChange>& changes = {},
               std::shared_ptr<const SequencePairs> pairs = nullptr,
               std::shared_ptr<const VisiblePrefix> prefix = nullptr);
  // Reads a sample. Returns the index of its domain.
  int read(Index sample, const Sample& to) const;
  // Whether a sample may have targets that no loss counts, or padding. Their numbers then differ
  // from step to step.
  bool ignores_targets() const { return ignores_targets_; }
  // Whether samples have document starts.
  bool has_documents() const { return data_.documents != Documents::join; }
  Index samples_per_epoch() const;  // number of windows of all domains with a share
  // Returns how often the text of each domain is read by the first n samples: [domains], samples
  // of the domain / windows of the domain. 0 for a domain without a share.
  std::vector<double> epochs(Index n) const;
  // The domain of a sample and the window within it, which read() reads.
  struct Location {
    int domain;
    Index window;
  };
  Location locate(Index sample) const;

  // Small enough that every few batches have the mix of the whole data. Large enough that no rank
  // always gets the same domain.
  static constexpr Index mixing_block = 256;

 private:
  struct Source {
    IndexedTokens tokens;
    std::optional<Packing> packing;  // if data.documents = pack
    Index windows;
    RandomStream epochs;  // key of each epoch's permutation
  };
  struct Blend {
    Index first_sample, end_sample;
    std::vector<Index> shares;  // [domains]
    Index total_share;
    RandomStream blocks;        // key of each block's shuffle
    std::vector<Index> before;  // [domains] samples before the first one
  };
  // A domain, and the number of its samples before this one in the order before shuffling.
  struct DomainSample {
    std::size_t domain;
    Index k;
  };
  // Returns the shares of a change, or those of the data set without one.
  std::vector<Index> shares_of(const Dataset& dataset, const BlendChange* change) const;
  const Blend& blend_of(Index sample) const;
  DomainSample domain_sample(const Blend& blend, Index sample) const;
  // Returns [domains], the samples of each domain among the first n.
  std::vector<Index> count(Index n) const;
  void read_packed(const Source& source, Index window, const Sample& to) const;

  Index seq_len_, vocab_;
  Config::Data data_;
  std::shared_ptr<const TokenMasking> masking_;  // nullptr if targets are the next tokens
  std::shared_ptr<const SequencePairs> pairs_;   // in an encoder-decoder, else nullptr
  std::shared_ptr<const VisiblePrefix> prefix_;  // nullptr if no prefix is visible
  bool ignores_targets_;
  std::vector<Source> sources_;  // [domains]
  std::vector<Blend> blends_;    // at least one
};

// Returns the samples of a training, with its masking and the changes of data.blend_schedule. It
// goes on after `steps` steps with `samples` samples: later steps have the batches of the
// configuration, whatever the earlier ones had. Throws InputError as SampleStream does.
SampleStream training_samples(const Dataset& dataset, const Config& config, Index steps = 0, Index samples = 0);

// Throws CollectiveError unless all ranks have the same data set: dataset.ini, file sizes and
// sampled blocks of the files. `shared` is Dataset::shared_text() of this rank. If this rank does
// not read the files, it is that of rank 0. Collective.
void check_same_data(Comm& world, const std::filesystem::path& dir, const std::string& shared);

// Throws InputError unless data.path names a folder with a dataset.ini.
void check_data_path(const Config& config);

// Opens the data set at data.path. Throws InputError if the key is not set or names no data set.
Dataset open_training_data(const Config& config);
// Does the same on all ranks (open_for_all_ranks). Collective.
Dataset open_training_data(Comm& world, const Config& config);
// Opens a data set on all ranks. The ranks that reads_itself() names call `open`, which opens the
// one in `dir` and checks all files (dist/file_readers.h). The others open it by shared_text() of
// rank 0. Throws CollectiveError, also if the data differ (check_same_data). Collective.
Dataset open_for_all_ranks(Comm& world, const std::filesystem::path& dir, const std::function<Dataset()>& open);

// Finds the numbers of the data set's tokenizer that samples and evaluations need, so that they are
// in Dataset::shared_text(). Throws InputError if the data do not fit the model.
// max_windows: as for target_text_bytes(); empty if nothing is evaluated.
void find_tokenizer_numbers(const Config& config, const Dataset& dataset, std::optional<Index> max_windows);

// Returns the bytes of text of each id of the tokenizer, negative if unknown. nullptr if an
// evaluation needs none, or if they are not known. An evaluation that leaves out targets needs
// them, since dataset.ini has the bytes of all tokens. max_windows: of each domain. 0 means all.
const std::vector<Index>* target_text_bytes(const Config& config, const Dataset& dataset, Index max_windows);

// The validation tokens of a domain in order. Each token after the first is the target of exactly
// one position, so a loss summed over all targets covers targets() = tokens - 1 tokens. With
// data.mask_eod_loss, or if data.documents is not join, the first tokens of documents are no
// targets. Nor are those that a loss mask leaves out.
// Windows of seq_len inputs begin every `stride` tokens. The last window is the first one that
// reaches the end.
// From the second window on, only positions from seq_len - stride on have targets. Each of these
// targets has at least seq_len - stride tokens before it in its window.
class EvalStream {
 public:
  // stride: from 1 to seq_len. 0 means seq_len, so windows do not overlap.
  // masking: of training_masking; nullptr if the targets are the next tokens. `stride` is then 0.
  // pairs: of training_pairs; nullptr without an encoder-decoder. `stride` is then 0. A window is
  // a text, or a source and its target, as in training. Each window has the length of samples.
  // has_prefix: Config::has_visible_prefix. If true, `stride` is 0, and the tokens after the prefix
  // of each window or document have targets.
  EvalStream(const Dataset& dataset, int domain, Index seq_len, Index stride = 0, const Config::Data& data = {},
             const TokenMasking* masking = nullptr, const SequencePairs* pairs = nullptr, bool has_prefix = false);
  // 0 if there is no validation text.
  Index windows() const;
  Index targets() const { return tokens_.tokens() > 0 ? tokens_.tokens() - 1 : 0; }
  // Index of the i-th of n windows that are spread evenly over the text. i: from 0 to n - 1.
  Index spread(Index i, Index n) const { return i * windows() / n; }
  // Number of inputs of window i: seq_len, except that the last window may have fewer.
  Index length(Index i) const { return pairs_ ? seq_len_ : std::min(seq_len_, targets() - i * stride_); }
  // Reads window i. After length(i) the ids are 0 and the targets -1. Targets of earlier windows,
  // and those that no loss counts, are -1 as well.
  void read(Index i, const Sample& to) const;
  // Reads window i, and hides the token at `position` alone. Only with masking.
  void read_hidden(Index i, Index position, const Sample& to) const;

 private:
  // Reads window i. Its targets are the tokens `ahead` after its ids, except those that no loss
  // counts. Returns the part of `to` that has them.
  Sample read_window(Index i, Index ahead, const Sample& to) const;

  Index seq_len_, stride_, vocab_;
  Config::Data data_;
  IndexedTokens tokens_;
  std::shared_ptr<const TokenMasking> masking_;  // nullptr if targets are the next tokens
  std::shared_ptr<const SequencePairs> pairs_;   // in an encoder-decoder, else nullptr
  std::shared_ptr<const VisiblePrefix> prefix_;  // nullptr if no prefix is visible
};

}  // namespace sy
