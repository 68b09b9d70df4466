// A prepared data set and the samples drawn from it.
//
// DIR/dataset.ini describes it, and each domain NAME has the Megatron-LM pairs
// DIR/NAME.{train,valid}.{bin,idx}. `switchyard prepare` writes all of them. For existing Megatron corpora,
// name (or link) the pairs so and write by hand
//
//   [dataset]
//   tokenizer = none        # or bytes, or sentencepiece or huggingface with model = FILE (relative to DIR)
//   vocab = 50257           # ids are below this; only `none` needs it
//   tokenizer_sha256 = ...  # optional with `none`: of the tokenizer.json or tokenizer.model that the ids are of
//   unicode_versions = ...  # optional: of the libraries that huggingface used (unicode_versions())
//   domains = web,code      # [A-Za-z0-9_-]+, at least one; their order numbers them
//   [web]                   # optional, as is every key of it
//   weight = 0.7            # share of the training samples; all domains have one, or none: by size then
//   valid_bytes = 123456    # text behind the validation tokens: bits per byte are measured against it
//
// Further keys of a domain, checked against the files: {train,valid}_{documents,tokens}, and digests:
// {train,valid}_{bin,idx}_sha256 of the whole files, {train,valid}_sample of blocks of both (sha256_sampled). The model
// has dataset.model_sha256, and the tokenizer dataset.tokenizer_sha256. `switchyard inspect DIR`
// computes all of them. And train_bytes, counts_sha256 of the counts, and dataset.ids_sha256 of
// dataset.vocab, end_of_text and domains, which `switchyard prepare` writes. A missing validation pair means that there is no validation text.
#pragma once

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "kernels/philox.h"
#include "kernels/tensor.h"
#include "src/config.h"
#include "src/data/megatron.h"

namespace sy {

enum class SplitName { train, valid };

// Of a pair; lower-case hex, empty where it is not known.
struct PairDigests {
  std::string bin, idx;  // SHA-256
  std::string sample;    // SHA-256 of the two files' sha256_sampled
};
// Of files that are there; `sample` alone, or all three, which takes as long as reading them does.
PairDigests digests_of(const std::filesystem::path& prefix, bool sample_alone);

struct Domain {
  std::string name;
  Index train_documents = 0, train_tokens = 0, valid_documents = 0, valid_tokens = 0;
  // Of the text, without end_of_text. 0: unknown (described by hand; `bytes` knows it from the tokens).
  Index train_bytes = 0, valid_bytes = 0;
  double weight = -1;  // share of the training samples, relative to the other domains'; -1: as many as it has
  PairDigests train_digests = {}, valid_digests = {};
};

class Dataset {
 public:
  // Opens and checks all files, their content by sampled blocks. Throws InputError naming the file or key that is
  // wrong.
  explicit Dataset(const std::filesystem::path& dir);
  const std::filesystem::path& dir() const { return dir_; }
  Index vocab() const { return vocab_; }
  const std::string& tokenizer() const { return tokenizer_; }                // of a TokenizerKind, or "none"
  const std::string& tokenizer_sha256() const { return tokenizer_sha256_; }  // as sy::tokenizer_sha256
  const std::string& unicode_versions() const { return unicode_versions_; }  // empty: not known
  const std::vector<Domain>& domains() const { return domains_; }
  Index valid_tokens() const;  // of all domains
  // SHA-256 (hex) over everything that samples follow from: vocabulary, domains, weights, and the files' digests, or
  // their sampled blocks' where dataset.ini has no digests. Two data sets in different folders may have the same.
  const std::string& digest() const { return digest_; }
  IndexedTokens open(int domain, SplitName split) const;

 private:
  std::filesystem::path dir_;
  Index vocab_ = 0;
  std::string tokenizer_, tokenizer_sha256_, unicode_versions_, digest_;
  std::vector<Domain> domains_;
  std::vector<IndexedTokens> train_, valid_;  // of each domain
};

// What dataset.ini says, before any other file is looked at. Counts that are not there are -1, `vocab` is 0.
struct DatasetDescription {
  std::string tokenizer;
  std::filesystem::path model;   // of a kind that has one
  std::string model_sha256;      // empty: not known
  std::string tokenizer_sha256;  // as dataset.ini says; empty if it does not
  std::string unicode_versions;  // unicode_versions() of the program that wrote it; may be empty
  Index vocab = 0;
  Index end_of_text = -1;  // the id that closes documents; -1: not known
  std::vector<Domain> domains;
};
DatasetDescription read_dataset_ini(const std::filesystem::path& dir);
std::string to_ini(const DatasetDescription& description);
// The digest by which tokenizers are compared: SHA-256 of the model file, or of the kind's name if
// it has no model. Empty if the tokenizer is "none" and dataset.ini does not say its digest. Reads
// a model whose digest is not there.
std::string tokenizer_sha256(const DatasetDescription& description);
// Throws InputError where the model is not the one that model_sha256 is of.
void check_model(const DatasetDescription& description);

// A file of a data set, compared with its digest.
struct DatasetFile {
  std::string name;
  Index bytes = 0;
  std::string sha256, expected;  // of what is there; what dataset.ini says, empty where it says nothing
  std::string problem;           // empty: none
};
// Reads every byte of the files that dataset.ini describes; says in `problem` what is missing or damaged.
std::vector<DatasetFile> verify_dataset(const std::filesystem::path& dir);
// [A-Za-z0-9_-]+, and not "dataset".
void check_domain_name(const std::string& name);

// Training samples. Sample i is a pure function of (data set, seq_len, seed, i): a window of seq_len + 1
// consecutive tokens of one domain's training documents. No rank or batch size enters, so a run is resumed
// from one integer.
//
//   * Windows begin every seq_len tokens, so that no two have an input in common. Up to seq_len tokens at
//     the end of a domain fill no window.
//   * Of the first n samples, each domain has its share of n, to within one sample for every domain. Shares
//     are the numbers of windows, or the weights. Within blocks of mixing_block samples the order is
//     shuffled.
//   * The k-th sample of a domain is window permutation(k mod windows) of epoch k / windows; each epoch has
//     its own permutation, keyed by (seed, domain's name, epoch).
class SampleStream {
 public:
  // Throws InputError when a domain with a share of the samples is too short for one window.
  SampleStream(const Dataset& dataset, Index seq_len, std::uint64_t seed);
  // tokens: [seq_len + 1]. Returns the domain.
  int read(Index sample, std::span<std::int32_t> tokens) const;
  Index samples_per_epoch() const;  // all windows of the domains that have a share
  // Which domain and which window of it: what read() reads.
  struct Where {
    int domain;
    Index window;
  };
  Where where(Index sample) const;

  // Small: every few batches are mixed like the whole. Large: no rank always gets the same domain.
  static constexpr Index mixing_block = 256;

 private:
  struct Source {
    IndexedTokens tokens;
    Index windows;
    Index share;          // of total_share_
    RandomStream epochs;  // the key of each epoch's permutation
  };
  Index seq_len_, vocab_;
  RandomStream blocks_;  // the key of each block's shuffle
  std::vector<Source> sources_;
  Index total_share_ = 0;
};

// Throws AgreedError unless all ranks have the same data set: dataset.ini, sizes and sampled blocks of
// the files. Collective.
void check_same_data(Comm& world, const Dataset& dataset);

// Throws InputError unless data.path names a folder with a dataset.ini.
void check_data_path(const Config& config);

// The data set that data.path names. Throws InputError where it is not set, or names no data set.
Dataset open_training_data(const Config& config);

// The validation tokens of a domain in order, each of them the target of exactly one position. The first has
// no context and is no target, so that a loss summed over all targets covers targets() = tokens - 1 tokens.
// Windows of seq_len inputs begin every `stride` tokens, and the last one is the first that reaches the end. Each
// predicts what no earlier one has: from the second on its last `stride` tokens, each of which therefore has at least
// seq_len - stride tokens before it in its window.
class EvalStream {
 public:
  // stride: from 1 to seq_len; 0: seq_len, so that windows do not overlap.
  EvalStream(const Dataset& dataset, int domain, Index seq_len, Index stride = 0);
  // 0 without validation text.
  Index windows() const { return targets() > 0 ? 1 + ceil_div(std::max<Index>(0, targets() - seq_len_), stride_) : 0; }
  Index targets() const { return tokens_.tokens() > 0 ? tokens_.tokens() - 1 : 0; }
  // Of n windows that stand for all, spread evenly over the text, number i.
  Index spread(Index i, Index n) const { return i * windows() / n; }
  // Inputs of window i: seq_len of all but the last one, which may have fewer.
  Index length(Index i) const { return std::min(seq_len_, targets() - i * stride_); }
  // inputs, targets: [seq_len]. Behind its length(), window i is padded: inputs with 0, targets with -1. The targets of
  // earlier windows are -1, too.
  void read(Index i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

 private:
  Index seq_len_, stride_, vocab_;
  IndexedTokens tokens_;
};

}  // namespace sy
