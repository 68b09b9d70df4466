// switchyard prepare: text to a data set.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "src/cli/options.h"
#include "src/data/prepare.h"
#include "src/text/table.h"

namespace sy {
namespace {

// On a terminal one line that renews itself; elsewhere a line for every domain and every half minute.
class ProgressLine {
 public:
  void show(const PrepareProgress& p) {
    const bool new_phase = p.phase != phase_;
    const double now = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!new_phase && p.bytes < p.total && now - shown_ < (terminal_ ? 0.2 : 30)) return;
    if (new_phase) {
      phase_ = p.phase;
      phase_start_ = now;
      phase_bytes_ = p.bytes;
    }
    shown_ = now;
    std::string line = phase_;
    if (p.total > 0) {
      line += fmt::format(": {:.0f}% of {:.1f} MB", 100.0 * static_cast<double>(p.bytes) / static_cast<double>(p.total),
                          static_cast<double>(p.total) / 1e6);
      const double seconds = now - phase_start_;
      if (seconds > 0.5 && p.bytes > phase_bytes_ && p.bytes < p.total) {
        const double rate = static_cast<double>(p.bytes - phase_bytes_) / seconds;
        line += fmt::format(", {:.1f} MB/s, {:.0f} s left", rate / 1e6, static_cast<double>(p.total - p.bytes) / rate);
      }
    }
    std::fputs((terminal_ ? "\r" + line + "\033[K" : line + "\n").c_str(), stderr);
    std::fflush(stderr);
  }
  // Leaves the terminal's line empty.
  ~ProgressLine() {
    if (terminal_ && !phase_.empty()) fmt::print(stderr, "\r\033[K");
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_ = ::isatty(STDERR_FILENO);
  const Clock::time_point start_ = Clock::now();
  std::string phase_;
  double phase_start_ = 0, shown_ = 0;
  Index phase_bytes_ = 0;
};

PrepareOptions::Source parse_domain(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == text.npos) bad_input("--domain {}: write NAME=PATH[,PATH...]", text);
  PrepareOptions::Source source{text.substr(0, equals), {}};
  for (std::size_t begin = equals + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) bad_input("--domain {}: a path is empty: write NAME=PATH[,PATH...]", text);
    source.paths.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return source;
}

// Calls row(domain's name, split's name, documents, tokens, bytes) for each split of each domain.
template <class Row>
void for_each_split(const Dataset& dataset, const Row& row) {
  for (const Domain& d : dataset.domains()) {
    row(d.name, "train", d.train_documents, d.train_tokens, d.train_bytes);
    row(d.name, "valid", d.valid_documents, d.valid_tokens, d.valid_bytes);
  }
}

std::string as_table(const Dataset& dataset) {
  Table table({"domain", "split", "documents", "tokens", "bytes", "tokens/byte"});
  for_each_split(dataset, [&](const std::string& name, const char* split, Index documents, Index tokens, Index bytes) {
    table.row({name, split, std::to_string(documents), std::to_string(tokens), std::to_string(bytes),
               bytes > 0 ? fmt::format("{:.3f}", static_cast<double>(tokens) / static_cast<double>(bytes)) : "-"});
  });
  return table.str();
}

std::string as_json(const Dataset& dataset) {
  using Json = nlohmann::ordered_json;
  Json json = {{"output", dataset.dir().string()},
               {"tokenizer", dataset.tokenizer()},
               {"vocab", dataset.vocab()},
               {"domains", Json::array()}};
  for_each_split(dataset, [&](const std::string& name, const char* split, Index documents, Index tokens, Index bytes) {
    if (std::string_view(split) == "train") json["domains"].push_back({{"name", name}});
    json["domains"].back()[split] = {{"documents", documents}, {"tokens", tokens}, {"bytes", bytes}};
  });
  return json.dump(2) + "\n";
}

}  // namespace

int prepare_command(CommandLine& line) {
  PrepareOptions options;
  std::vector<std::string> domains;
  std::string output;
  po::options_description known("Turns text into tokens to train on");
  auto add = known.add_options();
  add("domain", po::value(&domains)->composing()->required()->value_name("NAME=PATH[,PATH...]"),
      "a domain and its text files or folders (searched to any depth); repeat for more domains");
  add("tokenizer", po::value(&options.tokenizer)->default_value("bytes"),
      "bytes, spm:FILE (a SentencePiece model) or train-spm:VOCAB (train one)");
  add("valid-fraction", po::value(&options.valid_fraction)->default_value(0.05, "0.05"),
      "share of the documents kept for validation");
  add("output", po::value(&output)->required()->value_name("DIR"), "folder of the data set");
  add("seed", po::value(&options.seed)->default_value(1),
      "of the validation split and of the text a tokenizer learns from");
  add("overwrite", po::bool_switch(&options.overwrite), "replace a data set that is there");
  add("json", "print the result as JSON");
  po::variables_map given;
  if (!parse_options(line, "prepare", known, {}, given)) return 0;
  options.output = output;
  for (const std::string& domain : domains) options.domains.push_back(parse_domain(domain));

  const Prepared prepared = [&] {
    ProgressLine progress;
    return prepare(options, [&](const PrepareProgress& p) { progress.show(p); });
  }();
  if (prepared.left_out > 0)
    fmt::print(stderr, "left out {} links to folders, broken links and special files\n", prepared.left_out);
  std::cout << (given.count("json") ? as_json(prepared.dataset) : as_table(prepared.dataset)) << std::flush;
  return 0;
}

}  // namespace sy
