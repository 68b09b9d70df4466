#include "src/data/prepare.h"

#include <omp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "src/data/chat.h"
#include "src/data/corpus.h"
#include "src/data/output_folder.h"
#include "src/data/tokenizer.h"
#include "src/system/files.h"
#include "src/text/error_list.h"
#include "src/text/numbers.h"
#include "src/tokenizers/unicode.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// The values of --tokenizer and their tokenizer kinds.
struct Choice {
  std::string_view prefix;  // of --tokenizer; a prefix with a colon is followed by a value
  std::string_view kind;
};
constexpr Choice choices[] = {
    {"bytes", "bytes"}, {"spm:", "sentencepiece"}, {"train-spm:", "sentencepiece"}, {"hf:", "huggingface"}};

const Choice& choice_of(const std::string& tokenizer) {
  for (const Choice& choice : choices)
    if (choice.prefix.ends_with(':') ? tokenizer.starts_with(choice.prefix) : tokenizer == choice.prefix) return choice;
  bad_input("--tokenizer {}: choose bytes, spm:FILE, train-spm:VOCAB or hf:FILE", tokenizer);
}

// Draws lines of all domains with equal probability: about training_bytes, less than twice that.
std::vector<std::string> sample_lines(const PrepareOptions& options, const Corpus& corpus,
                                      const PrepareReport& report) {
  // SentencePiece skips longer lines and lines with a tab (its own boundary mark), so lines are cut
  // there.
  constexpr std::size_t longest_line = 4000;
  const double keep = static_cast<double>(training_bytes) / static_cast<double>(corpus.bytes());
  std::vector<std::string> lines;
  Index sampled = 0, read = 0;
  for (std::size_t d = 0; d < options.domains.size(); ++d) {
    const RandomStream draw(options.seed, "tokenizer lines of " + options.domains[d].name);
    std::uint64_t number = 0;
    corpus.for_each(d, [&](Document&& document) {
      for (std::string_view rest = document.text; !rest.empty();) {
        const std::size_t end = std::min(rest.find_first_of("\n\t"), rest.size());
        const std::size_t size = end <= longest_line ? end : cut_point(rest, longest_line / 2, longest_line);
        if (size > 0 && draw.uniform(number++) < keep && sampled < 2 * training_bytes) {
          lines.emplace_back(rest.substr(0, size));
          sampled += static_cast<Index>(size);
        }
        rest.remove_prefix(std::min(size + (size == end), rest.size()));
      }
      report({"sampling lines", read += static_cast<Index>(document.text.size()), corpus.bytes()});
    });
  }
  return lines;
}

// Returns VOCAB of train-spm:VOCAB.
Index vocab_to_train(const std::string& tokenizer) {
  const Index vocab = parse_number<Index>(tokenizer.substr(choice_of(tokenizer).prefix.size())).value_or(0);
  if (vocab < 1) bad_input("--tokenizer {}: VOCAB must be a number of pieces, as in train-spm:4096", tokenizer);
  return vocab;
}

// Returns FILE of spm:FILE and hf:FILE. A folder stands for the model file in it.
fs::path tokenizer_file(const std::string& tokenizer) {
  const Choice& choice = choice_of(tokenizer);
  fs::path file = tokenizer.substr(choice.prefix.size());
  if (is_folder(file)) file /= find_tokenizer_kind(choice.kind)->model;
  return file;
}

// Writes the tokenizer's files into `folder`.
std::unique_ptr<Tokenizer> make_tokenizer(const PrepareOptions& options, const Corpus& corpus, const fs::path& folder,
                                          const PrepareReport& report) {
  const std::string& spec = options.tokenizer;
  const Choice& choice = choice_of(spec);
  const TokenizerKind& kind = *find_tokenizer_kind(choice.kind);
  if (!kind.model) return kind.open({});
  const fs::path model = folder / kind.model;
  if (choice.prefix == "train-spm:") {
    const Index vocab = vocab_to_train(spec);
    const std::vector<std::string> lines = sample_lines(options, corpus, report);
    constexpr std::string_view phase = "training the tokenizer";
    report({phase, 0, 0, "rounds"});
    write_file(model, train_sentencepiece(lines, vocab, [&](Index done, Index total) {
                 report({phase, done, total, "rounds"});
               }));
  } else {
    const fs::path source = tokenizer_file(spec);
    kind.open(source);  // an error names the source, not the copy
    write_file(model, read_file(source));
    if (kind.name == "huggingface") write_file(folder / huggingface_config_name, huggingface_config(source));
  }
  return kind.open(model);
}

// Ids of a source and of its target, without end tokens, and the number of bytes of both texts.
struct EncodedPair {
  std::vector<std::int32_t> source, target;
  Index bytes = 0;
};

class SplitWriter {
 public:
  SplitWriter(const fs::path& prefix, const Tokenizer& tokenizer, bool loss_mask)
      : prefix_(prefix), end_of_text_(tokenizer.end_of_text()), writer_(prefix, tokenizer.vocab(), loss_mask) {}

  // Adds a document. ids: the ids of the text, without end_of_text.
  void add(std::string_view text, std::vector<std::int32_t>& ids) {
    if (text.empty()) return;
    ids.push_back(end_of_text_);
    writer_.add(ids);
    bytes_ += static_cast<Index>(text.size());
  }
  void add(const Example& example) {
    writer_.add(example.ids, example.counted);
    bytes_ += example.counted_bytes;
  }
  void add(const EncodedPair& pair) {
    writer_.add(pair.source);
    writer_.add(pair.target);
    bytes_ += pair.bytes;
  }
  void finish(Index& documents, Index& tokens, Index& bytes, PairDigests& digests) {
    writer_.finish();
    documents = writer_.documents();
    tokens = writer_.tokens();
    bytes = bytes_;
    digests = digests_of(prefix_, false);
  }

 private:
  fs::path prefix_;
  std::int32_t end_of_text_;
  IndexedWriter writer_;
  Index bytes_ = 0;
};

// Returns the examples of each conversation, with all OpenMP threads. If several conversations are
// wrong, throws the error of the first one.
std::vector<std::vector<Example>> encode_conversations(const std::vector<Document>& batch, const ChatTemplate* chat,
                                                       const Tokenizer& tokenizer) {
  std::vector<std::vector<Example>> examples(batch.size());
  for_each_in_parallel(batch.size(), [&](std::size_t i) {
    const std::string where = fmt::format("{}: line {}", batch[i].file.string(), batch[i].line);
    try {
      examples[i] = examples_of(Json::parse(batch[i].text), chat, tokenizer);
    } catch (const JsonError& e) {
      bad_input("{} is {}: correct it", where, e.what());
    } catch (const InputError& e) {
      bad_input("{}: {}", where, e.what());
    }
  });
  return examples;
}

// Returns the pairs of JSON lines: {"source": "...", "target": "..."}.
// Throws InputError that names the first line that is no such object or has an empty text. If there
// is none, it names the first line with a text without tokens.
std::vector<EncodedPair> encode_pairs(const std::vector<Document>& lines, const Tokenizer& tokenizer) {
  std::vector<std::string> texts;  // of each line: source, target
  for (const Document& line : lines) {
    const std::string where = fmt::format("{}: line {}", line.file.string(), line.line);
    Json pair;
    try {
      pair = Json::parse(line.text);
    } catch (const JsonError& e) {
      bad_input("{} is {}: correct it", where, e.what());
    }
    for (const char* key : {"source", "target"}) {
      if (!pair.is_object() || !pair.contains(key) || !pair[key].is_string() || pair[key].get<std::string>().empty())
        bad_input("{} has no {}: write {{\"source\": \"...\", \"target\": \"...\"}} with a text in each", where, key);
      texts.push_back(pair[key].get<std::string>());
    }
  }
  std::vector<std::vector<std::int32_t>> ids = encode_texts(tokenizer, {texts.begin(), texts.end()});
  std::vector<EncodedPair> pairs;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto bytes = static_cast<Index>(texts[2 * i].size() + texts[2 * i + 1].size());
    pairs.push_back({std::move(ids[2 * i]), std::move(ids[2 * i + 1]), bytes});
    for (const auto& [name, of] : {std::pair{"source", &pairs.back().source}, {"target", &pairs.back().target}})
      if (of->empty())
        bad_input("{}: line {} has a {} without a token: correct it", lines[i].file.string(), lines[i].line, name);
  }
  return pairs;
}

struct DomainInput {
  std::size_t number;  // of options.domains
  const Corpus& corpus;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat;  // nullptr if there is none
};

Domain write_domain(const PrepareOptions& options, const DomainInput& input, const fs::path& folder,
                    SkippedFiles& skipped, const std::function<void(Index)>& have_encoded) {
  const PrepareOptions::Source& source = options.domains[input.number];
  SplitWriter train(folder / (source.name + ".train"), input.tokenizer, source.chat);
  SplitWriter valid(folder / (source.name + ".valid"), input.tokenizer, source.chat);
  std::vector<Document> batch;  // encoded together
  const Index largest_batch = (Index{1} << 20) * omp_get_max_threads();
  Index bytes = 0;
  const auto write_texts = [&] {
    std::vector<std::string_view> texts;  // of each document: training text, validation text
    for (const Document& document : batch) {
      const std::string_view text = document.text;
      const std::size_t cut = input.corpus.begin_of_valid(input.number, text);
      texts.push_back(text.substr(0, cut));
      texts.push_back(text.substr(cut));
    }
    std::vector<std::vector<std::int32_t>> ids = encode_texts(input.tokenizer, texts);
    for (std::size_t i = 0; i < texts.size(); ++i) (i % 2 == 0 ? train : valid).add(texts[i], ids[i]);
  };
  const auto write_conversations = [&] {
    const auto examples = encode_conversations(batch, input.chat, input.tokenizer);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      SplitWriter& split = input.corpus.begin_of_valid(input.number, batch[i].text) == 0 ? valid : train;
      for (const Example& example : examples[i])
        if (options.max_tokens > 0 && std::ssize(example.ids) > options.max_tokens)
          ++skipped.long_examples;
        else
          split.add(example);
    }
  };
  const auto write_pairs = [&] {
    const std::vector<EncodedPair> pairs = encode_pairs(batch, input.tokenizer);
    for (std::size_t i = 0; i < batch.size(); ++i)
      (input.corpus.begin_of_valid(input.number, batch[i].text) == 0 ? valid : train).add(pairs[i]);
  };
  const auto write_batch = [&] {
    source.chat ? write_conversations() : source.pairs ? write_pairs() : write_texts();
    have_encoded(bytes);
    batch.clear();
    bytes = 0;
  };
  input.corpus.for_each(input.number, [&](Document&& document) {
    bytes += static_cast<Index>(document.text.size());
    batch.push_back(std::move(document));
    if (bytes >= largest_batch) write_batch();
  });
  if (!batch.empty()) write_batch();
  Domain domain;
  domain.name = source.name;
  domain.loss_mask = source.chat;
  domain.pairs = source.pairs;
  train.finish(domain.train_documents, domain.train_tokens, domain.train_bytes, domain.train_digests);
  valid.finish(domain.valid_documents, domain.valid_tokens, domain.valid_bytes, domain.valid_digests);
  if (source.chat && domain.train_documents == 0 && domain.valid_documents == 0)
    bad_input("domain {}: each conversation has more than {} tokens: raise --max-tokens", source.name,
              options.max_tokens);
  return domain;
}

// Returns FOLDER of --template hf:FOLDER.
fs::path template_folder(const std::string& chat_template) {
  constexpr std::string_view prefix = "hf:";
  if (!chat_template.starts_with(prefix) || chat_template.size() == prefix.size())
    bad_input("--template {}: write hf:FOLDER, a folder with a chat_template.jinja or a tokenizer_config.json",
              chat_template);
  return chat_template.substr(prefix.size());
}

// Returns the template of --template. Empty if there is none.
std::optional<ChatTemplate> open_template(const PrepareOptions& options) {
  if (options.chat_template.empty()) return std::nullopt;
  const bool has_tokens = options.tokenizer.starts_with("hf:");
  return std::optional<ChatTemplate>(std::in_place, template_folder(options.chat_template),
                                     has_tokens ? tokenizer_file(options.tokenizer).parent_path() : fs::path());
}

DatasetDescription description_of(const PrepareOptions& options) {
  const TokenizerKind& kind = *find_tokenizer_kind(choice_of(options.tokenizer).kind);
  DatasetDescription description;
  description.tokenizer = kind.name;
  if (kind.model) description.model = kind.model;
  if (!options.chat_template.empty()) description.chat_template = chat_template_name;
  for (const auto& domain : options.domains) description.domains.emplace_back().name = domain.name;
  return description;
}

}  // namespace

void check_prepare_options(const PrepareOptions& options) {
  ErrorList errors("prepare");
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1))
    errors.add("--valid-fraction {}: it must be at least 0 and below 1", options.valid_fraction);
  if (options.binary && options.tokenizer != "bytes")
    errors.add("--binary: --tokenizer {} takes UTF-8 text alone: use --tokenizer bytes", options.tokenizer);
  for (const std::vector<std::string>* globs : {&options.filter.include, &options.filter.exclude})
    for (const std::string& glob : *globs)
      if (glob.empty() || glob.ends_with('/'))
        errors.add("--{} '{}': give a pattern such as '*.txt' or 'build'",
                   globs == &options.filter.include ? "include" : "exclude", glob);
  if (options.tokenizer.starts_with("train-spm:") &&
      std::ranges::any_of(options.domains, &PrepareOptions::Source::pairs))
    errors.add("--pairs: a tokenizer is not trained on pairs: give a model, such as hf:FOLDER");
  const bool has_chat = std::ranges::any_of(options.domains, &PrepareOptions::Source::chat);
  if (options.max_tokens < 0) errors.add("--max-tokens {}: it must not be negative", options.max_tokens);
  if (!has_chat && (options.max_tokens > 0 || !options.chat_template.empty()))
    errors.add("--{} is for conversations: give them with --chat NAME=FILE.jsonl",
               options.max_tokens > 0 ? "max-tokens" : "template");
  if (has_chat && options.tokenizer.starts_with("train-spm:"))
    errors.add("--chat: a tokenizer is not trained on conversations: give the model's own, such as hf:FOLDER");
  errors.run([&] { open_template(options); });
  std::set<std::string> names;
  for (const auto& domain : options.domains) {
    errors.run([&] { check_domain_name(domain.name); });
    if (!names.insert(domain.name).second)
      errors.add("domain {} is given twice: join its paths by commas in one --domain", domain.name);
    for (const fs::path& path : domain.paths) {
      std::error_code ignored;
      errors.run([&] { check_text_path(path); });
      if (domain.is_json() && fs::is_regular_file(path, ignored) && !is_json_lines(path))
        errors.add("--{} {}={}: {} are JSON lines: name the file *.jsonl", domain.chat ? "chat" : "pairs", domain.name,
                   path.string(), domain.chat ? "conversations" : "pairs");
      // Otherwise the walk would read files that are being written.
      const fs::path output = fs::weakly_canonical(options.output, ignored);
      const fs::path inside = output.lexically_relative(fs::weakly_canonical(path, ignored));
      if (!options.output.empty() && fs::is_directory(path, ignored) && !inside.empty() && *inside.begin() != "..")
        errors.add("--output {} lies in the folder {} of domain {}: write elsewhere", options.output.string(),
                   path.string(), domain.name);
    }
  }
  const bool known = errors.run([&] { choice_of(options.tokenizer); });
  const std::string_view prefix = known ? choice_of(options.tokenizer).prefix : "";
  if (known && !options.output.empty())
    errors.run([&] { check_output(options.output, files_of(description_of(options)), options.overwrite); });
  if (prefix == "train-spm:") errors.run([&] { vocab_to_train(options.tokenizer); });
  if (prefix == "spm:" || prefix == "hf:") {
    const fs::path file = tokenizer_file(options.tokenizer);
    const bool there = errors.run([&] { InputFile{file}; });
    // Reading a large tokenizer takes time. If there is no other error, its errors appear when it
    // is used.
    if (there && !errors.empty())
      errors.run([&] { find_tokenizer_kind(choice_of(options.tokenizer).kind)->open(file); });
  }
  errors.raise();
}

Prepared prepare(const PrepareOptions& options, const PrepareReport& progress) {
  if (options.domains.empty())
    bad_input("there is no domain: give --domain NAME=PATH[,PATH...], --chat or --pairs NAME=FILE.jsonl");
  if (options.output.empty()) bad_input("--output is empty: name a folder");
  check_prepare_options(options);
  const TokenizerKind& kind = *find_tokenizer_kind(choice_of(options.tokenizer).kind);
  DatasetDescription description = description_of(options);
  OutputFolder output(options.output);
  output.open(files_of(description), options.overwrite);

  const Corpus corpus(options, progress);
  const auto tokenizer = make_tokenizer(options, corpus, output.staging(), progress);
  description.vocab = tokenizer->vocab();
  description.tokenizer_sha256 = tokenizer_sha256(kind, kind.model ? output.staging() / kind.model : fs::path());
  if (kind.model) description.model_sha256 = description.tokenizer_sha256;
  if (kind.name == "huggingface") {
    description.end_of_text = tokenizer->end_of_text();
    description.unicode_versions = unicode_versions();
  }
  const std::optional<ChatTemplate> chat = open_template(options);
  if (chat) write_file(output.staging() / chat_template_name, chat->source());
  Index encoded = 0;
  SkippedFiles skipped = corpus.skipped_counts();
  for (std::size_t d = 0; d < options.domains.size(); ++d) {
    const std::string phase = "encoding " + options.domains[d].name;
    description.domains[d] = write_domain(options, {d, corpus, *tokenizer, chat ? &*chat : nullptr}, output.staging(),
                                          skipped, [&](Index bytes) {
                                            progress({phase, encoded += bytes, corpus.bytes()});
                                          });
  }

  std::string origin =
      fmt::format("# Written by switchyard prepare with --tokenizer {} --valid-fraction {} --seed {}\n",
                  options.tokenizer, options.valid_fraction, options.seed);
  if (const std::string left_out = skipped.text(); !left_out.empty())
    origin += fmt::format("# Left out: {}\n", left_out);
  output.commit(origin + to_ini(description));
  return {Dataset(options.output), skipped, corpus.first_binary()};
}

}  // namespace sy
