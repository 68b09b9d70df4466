// switchyard prepare: converts text to a data set.
#include <iostream>

#include "src/cli/options.h"
#include "src/cli/progress.h"
#include "src/data/prepare.h"
#include "src/data/run_tokenizer.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

// Parses NAME=PATH[,PATH...] of an option. If the whole text after "=" exists, it is one path,
// whatever commas it has. Otherwise "\," is a comma within a path.
PrepareOptions::Source parse_domain(const char* option, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == text.npos) bad_input("--{} {}: write NAME=PATH[,PATH...]", option, text);
  PrepareOptions::Source source{text.substr(0, equals), {}};
  const std::string list = text.substr(equals + 1);
  // Many paths together may be too long for a file's name.
  std::error_code error;
  const bool is_too_long = !std::filesystem::exists(list, error) && error == std::errc::filename_too_long;
  if (!is_too_long && file_exists(list)) {
    source.paths.emplace_back(list);
    return source;
  }
  std::vector<std::string> paths(1);
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i] == ',')
      paths.emplace_back();
    else
      paths.back() += list.compare(i, 2, "\\,") == 0 ? list[++i] : list[i];
  for (const std::string& path : paths) {
    if (path.empty()) bad_input("--{} {}: a path is empty: write NAME=PATH[,PATH...]", option, text);
    source.paths.emplace_back(path);
  }
  return source;
}

// Calls row(domain, split, documents, tokens, bytes, share of the domain's bytes) for each split.
template <class Row>
void for_each_split(const Dataset& dataset, const Row& row) {
  for (const Domain& d : dataset.domains()) {
    const double bytes = static_cast<double>(d.train_bytes + d.valid_bytes);
    row(d.name, "train", d.train_documents, d.train_tokens, d.train_bytes, static_cast<double>(d.train_bytes) / bytes);
    row(d.name, "valid", d.valid_documents, d.valid_tokens, d.valid_bytes, static_cast<double>(d.valid_bytes) / bytes);
  }
}

std::string as_table(const Dataset& dataset) {
  Table table({"domain", "split", "documents", "tokens", "bytes", "share", "tokens/byte"});
  for_each_split(dataset, [&](const std::string& name, const char* split, Index documents, Index tokens, Index bytes,
                              double share) {
    table.row({name, split, std::to_string(documents), std::to_string(tokens), std::to_string(bytes),
               percent_text(share),
               // with a loss mask, these are the bytes of counted tokens alone
               bytes > 0 && !dataset.has_loss_mask()
                   ? fmt::format("{:.3f}", static_cast<double>(tokens) / static_cast<double>(bytes))
                   : "-"});
  });
  return table.str();
}

std::string as_json(const Prepared& prepared) {
  const Dataset& dataset = prepared.dataset;
  Json json = {{"output", dataset.dir().string()}, {"tokenizer", dataset.tokenizer()}, {"vocab", dataset.vocab()},
               {"digest", dataset.digest()},       {"left_out", Json::object()},       {"domains", Json::array()}};
  for (const SkipReason& reason : skip_reasons) json["left_out"][reason.key] = prepared.skipped.*reason.count;
  Json* domain = nullptr;
  for_each_split(dataset, [&](const std::string& name, const char* split, Index documents, Index tokens, Index bytes,
                              double share) {
    if (std::string_view(split) == "train") domain = &json["domains"].push_back({{"name", name}});
    (*domain)[split] = {{"documents", documents}, {"tokens", tokens}, {"bytes", bytes}, {"share", share}};
  });
  return json_text(json);
}

// Warns if the text could not be divided as requested.
void warn_of_shares(const Dataset& dataset, double wanted) {
  for_each_split(dataset, [&](const std::string& name, const char* split, Index, Index, Index bytes, double share) {
    if (std::string_view(split) == "train" || dataset.has_loss_mask() ||
        std::ranges::any_of(dataset.domains(), &Domain::pairs) || std::abs(share - wanted) <= 0.2 * wanted)
      return;
    warn(
        fmt::format("domain {}: {} of its text ({} bytes) became validation text instead of {}: it cannot be cut finer",
                    name, percent_text(share), bytes, percent_text(wanted)));
  });
}

// Warns if the tokenizer belongs to a data set whose ids were made with other Unicode tables.
void warn_of_unicode(const std::string& tokenizer) {
  if (!tokenizer.starts_with("hf:")) return;
  std::filesystem::path folder = tokenizer.substr(3);
  if (!is_folder(folder)) folder = folder.parent_path();
  if (!file_exists(folder / "dataset.ini")) return;
  const std::string warning = check_unicode(folder.string(), read_dataset_ini(folder).unicode_versions);
  if (!warning.empty()) warn(warning);
}

}  // namespace

int prepare_command(CommandLine& line) {
  PrepareOptions options;
  std::vector<std::string> domains, chats, pairs;
  std::string output;
  po::options_description known("Turns text into tokens to train on");
  auto add = known.add_options();
  add("domain", po::value(&domains)->composing()->value_name("NAME=PATH[,PATH...]"),
      "a domain and its text files or folders (searched to any depth); repeat for more domains. A comma in a path is "
      "written \\,. A file is a document; one over 1 MiB is taken for a collection and becomes several of about 64 "
      "KiB. NAME.jsonl holds a document in each line; NAME.gz and NAME.zst are read as NAME");
  add("chat", po::value(&chats)->composing()->value_name("NAME=FILE.jsonl"),
      "a domain of conversations, for fine-tuning: each line is {\"prompt\", \"completion\"} or {\"messages\"}, and the "
      "loss counts the answers alone; may be repeated, and given beside --domain");
  add("pairs", po::value(&pairs)->composing()->value_name("NAME=FILE.jsonl"),
      "a domain of sources and targets, for encoder-decoders with train.objective = seq2seq: each line is {\"source\", "
      "\"target\"}; may be repeated");
  add("template", po::value(&options.chat_template)->value_name("hf:FOLDER"),
      "the chat template of conversations: the folder's chat_template.jinja, or its tokenizer_config.json; without it, a "
      "prompt and its completion are joined");
  add("max-tokens", po::value(&options.max_tokens)->default_value(0)->value_name("N"),
      "leave out conversations of more than N tokens, such as model.seq_len; 0: none");
  add("include", po::value(&options.filter.include)->composing()->value_name("GLOB"),
      "take only files of folders that match GLOB; may be repeated. A GLOB without a slash is compared with the name, "
      "another with the path below the folder; * matches slashes, too");
  add("exclude", po::value(&options.filter.exclude)->composing()->value_name("GLOB"),
      "leave out files and folders that match GLOB; may be repeated. Hidden files and folders are always left out");
  add("binary", po::bool_switch(&options.binary),
      "with --tokenizer bytes: take binary files, too. Otherwise files of folders that are not UTF-8 text are left out, "
      "and it is an error to name one");
  add("text-key", po::value(&options.text_key)->default_value("text"), "key of the text in .jsonl files");
  add("tokenizer", po::value(&options.tokenizer)->default_value("bytes"),
      "bytes, spm:FILE (a SentencePiece model), train-spm:VOCAB (train one) or hf:FILE (a tokenizer.json of Hugging Face, or the "
      "folder that has it; the eos_token of the tokenizer_config.json beside it ends documents)");
  add("valid-fraction", po::value(&options.valid_fraction)->default_value(0.05, "0.05"),
      "share of each domain's bytes kept for validation; a long document is cut in two for it");
  add("output", po::value(&output)->required()->value_name("DIR"), "folder of the data set");
  add("seed", seed_value(options.seed), "of the validation split and of the text a tokenizer learns from");
  add("overwrite", po::bool_switch(&options.overwrite), "replace the whole data set that is there");
  add("quiet", "no progress");
  add("json", "print the result as JSON");
  po::variables_map arguments;
  ErrorList errors("prepare");
  if (!parse_options(line, "prepare", known, {}, arguments, errors)) return 0;
  options.output = output;
  for (const std::string& domain : domains)
    errors.run([&] { options.domains.push_back(parse_domain("domain", domain)); });
  for (const std::string& chat : chats)
    errors.run([&] { options.domains.emplace_back(parse_domain("chat", chat)).chat = true; });
  for (const std::string& pair : pairs)
    errors.run([&] { options.domains.emplace_back(parse_domain("pairs", pair)).pairs = true; });
  if (domains.empty() && chats.empty() && pairs.empty())
    errors.add("there is no text: give --domain NAME=PATH[,PATH...], --chat or --pairs NAME=FILE.jsonl");
  if (has_value(arguments, "output") && output.empty()) errors.add("--output is empty: name a folder");
  // otherwise prepare() checks them
  if (!errors.empty()) errors.run([&] { check_prepare_options(options); });
  errors.raise();

  const Prepared prepared = [&] {
    Progress progress;
    return prepare(options, [&](const PrepareProgress& p) {
      if (!arguments.count("quiet")) progress.show(p.phase, p.done, p.total, p.unit);
    });
  }();
  if (const std::string left_out = prepared.skipped.text(); !left_out.empty())
    fmt::print(stderr, "left out {}{}\n", left_out,
               prepared.first_binary.empty()
                   ? ""
                   : fmt::format(" (the first binary file is {})", visible(prepared.first_binary)));
  warn_of_shares(prepared.dataset, options.valid_fraction);
  warn_of_unicode(options.tokenizer);
  std::cout << (arguments.count("json") ? as_json(prepared) : as_table(prepared.dataset)) << std::flush;
  return 0;
}

}  // namespace sy
