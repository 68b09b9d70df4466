// switchyard inspect: contents and integrity of a checkpoint or a data set.
#include <unistd.h>

#include <iostream>

#include "src/cli/trained.h"
#include "src/config.h"
#include "src/data/dataset.h"
#include "src/io/checkpoint.h"
#include "src/io/manifest.h"
#include "src/params/costs.h"
#include "src/provenance/provenance.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace fs = std::filesystem;

namespace {

// Verifies the digests of one step folder, or of every one of a run.
int verify(const fs::path& step_or_run, bool json) {
  if (!is_folder(step_or_run)) bad_input("{} is no folder: give a run or a checkpoint", step_or_run.string());
  std::vector<fs::path> folders;
  for (Index step : steps_in(checkpoints_of(step_or_run)))
    folders.push_back(checkpoints_of(step_or_run) / step_name(step));
  if (folders.empty()) folders.push_back(step_or_run);
  Json report = Json::array();
  bool whole = true;
  for (const fs::path& folder : folders) {
    std::vector<std::string> warnings;
    std::vector<std::string> problems = verify_checkpoint(folder, &warnings);
    if (problems.empty()) problems = unlisted_files(folder);
    for (const std::string& warning : warnings) warn(warning);
    whole &= problems.empty();
    if (json) {
      report.push_back({{"checkpoint", folder.string()}, {"whole", problems.empty()}, {"problems", problems}});
      continue;
    }
    fmt::print("{}: {}\n", visible(folder.string()), problems.empty() ? "OK" : "damaged");
    for (const std::string& problem : problems) fmt::print("  {}\n", visible(problem));
  }
  if (json) std::cout << json_text(report) << std::flush;
  return whole ? 0 : 1;
}

// Compares every file of a data set with its digest. Prints counts from the files, or from
// dataset.ini if they cannot be opened.
int inspect_data(const fs::path& dir, bool json) {
  const DatasetDescription description = read_dataset_ini(dir);
  const std::vector<DatasetFile> files = verify_dataset(dir);
  std::vector<std::string> problems;
  bool known = true, damaged = false;  // according to digests
  for (const DatasetFile& file : files) {
    known &= !file.expected.empty();
    damaged |= !file.problem.empty() && !file.sha256.empty();
    if (file.problem.empty()) continue;
    const bool named = file.problem.find(file.name) != file.problem.npos;
    problems.push_back(named ? file.problem : file.name + ": " + file.problem);
  }
  std::unique_ptr<Dataset> dataset;
  try {
    dataset = std::make_unique<Dataset>(dir);
  } catch (const InputError& e) {
    if (problems.empty()) {
      problems.push_back(e.what());
      damaged = true;
    }
  }
  const std::vector<Domain>& domains = dataset ? dataset->domains() : description.domains;
  const Index vocab = dataset ? dataset->vocab() : description.vocab;
  const std::string digest = dataset ? dataset->digest() : "", unicode_versions = description.unicode_versions;

  if (json) {
    Json report{{"dataset", dir.string()}, {"tokenizer", description.tokenizer},
                {"vocab", vocab},          {"unicode_versions", unicode_versions},
                {"digest", digest},        {"whole", problems.empty()},
                {"problems", problems},    {"domains", Json::array()},
                {"files", Json::array()}};
    const auto split = [](Index documents, Index tokens, Index bytes) {
      const auto count = [](Index n) { return n < 0 ? Json() : Json(n); };
      return Json{{"documents", count(documents)}, {"tokens", count(tokens)}, {"bytes", count(bytes)}};
    };
    for (const Domain& d : domains)
      report["domains"].push_back({{"name", d.name},
                                   {"train", split(d.train_documents, d.train_tokens, d.train_bytes)},
                                   {"valid", split(d.valid_documents, d.valid_tokens, d.valid_bytes)}});
    for (const DatasetFile& f : files)
      report["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"sha256", f.sha256}, {"expected", f.expected}});
    std::cout << json_text(report) << std::flush;
    return problems.empty() ? 0 : 1;
  }
  const auto count = [](Index n) { return n < 0 ? "-" : std::to_string(n); };
  Table tokens({"domain", "split", "documents", "tokens", "bytes"});
  for (const Domain& d : domains) {
    tokens.row({d.name, "train", count(d.train_documents), count(d.train_tokens), count(d.train_bytes)});
    tokens.row({d.name, "valid", count(d.valid_documents), count(d.valid_tokens), count(d.valid_bytes)});
  }
  Table digests({"file", "bytes", "SHA-256", "verdict"});
  for (const DatasetFile& f : files)
    digests.row({f.name, std::to_string(f.bytes), f.sha256.empty() ? "-" : f.sha256,
                 !f.problem.empty()   ? (f.sha256.empty() ? "not read" : "damaged")
                 : f.expected.empty() ? "no digest to compare with"
                                      : "OK"});
  const std::string unicode = unicode_versions.empty() ? "" : ", Unicode of " + unicode_versions;
  fmt::print("data set    {}\ntokenizer   {} (vocabulary {}){}\ndigest      {}\n\n{}\n{}\n", visible(dir.string()),
             description.tokenizer, vocab, visible(unicode), digest.empty() ? "-" : digest, tokens.str(),
             digests.str());
  for (const std::string& problem : problems) fmt::print("  {}\n", visible(problem));
  fmt::print("{}: {}\n", visible(dir.string()),
             damaged             ? "damaged"
             : !problems.empty() ? "not all of it can be read"
             : known             ? "OK"
                                 : "no damage found");
  return problems.empty() ? 0 : 1;
}

// Prints the values of a record that a checkpoint has, without those that are not known.
void print_provenance(const Json& record) {
  if (record.is_null()) {
    fmt::print("provenance  not recorded: an older version wrote this checkpoint\n");
    return;
  }
  fmt::print("provenance  {}\n", visible(provenance_line(record)));
  Entries entries = provenance_entries(record);
  std::erase_if(entries, [](const auto& entry) { return entry.second.empty(); });
  std::size_t width = 0;
  for (const auto& [name, value] : entries) width = std::max(width, name.size());
  for (const auto& [name, value] : entries) fmt::print("  {:<{}}  {}\n", visible(name), width, visible(value));
}

Index elements_below(const CheckpointTensors& tensors, std::string_view prefix) {
  Index n = 0;
  for (const TensorInfo& t : tensors.list())
    if (t.name.starts_with(prefix)) n += t.shape.elements();
  return n;
}

std::string model_line(const Config& c) {
  const Config::Model& m = c.model;
  if (!c.stacks.empty()) {
    std::string line = fmt::format("encoder-decoder, d_model {}", m.d_model);
    for (const Config::Kind& stack : c.stacks)
      line += fmt::format("; {}: {} layers, {} heads, {} kv heads, seq_len {}{}", stack.name, stack.model.layers,
                          stack.model.heads, stack.model.kv_heads, stack.model.seq_len,
                          stack.moe.experts > 0 ? fmt::format(", {} experts, top {}, {} wide", stack.moe.experts,
                                                              stack.moe.top_k, stack.moe.d_ff)
                                                : "");
    return line;
  }
  std::string line =
      fmt::format("{}{} layers, d_model {}, {} heads, {} kv heads, seq_len {}",
                  m.kind == ModelKind::encoder ? "encoder, " : "", m.layers, m.d_model, m.heads, m.kv_heads, m.seq_len);
  if (c.train.lora_rank > 0)
    line += fmt::format(", LoRA of rank {} and alpha {} on {}", c.train.lora_rank, c.train.lora_alpha,
                        c.train.lora_targets);
  if (c.moe.experts > 0) line += fmt::format(", {} experts, top {}, {} wide", c.moe.experts, c.moe.top_k, c.moe.d_ff);
  return line;
}

// Prints the cost of a configuration's model. If model.vocab is set, reads only the configuration.
int inspect_config(const fs::path& file, bool json) {
  std::vector<std::string> warnings;
  const Config config = read_config(file, {}, {}, nullptr, &warnings);
  for (const std::string& text : warnings) warn(text);
  const Index vocab = vocab_of(config, file);
  const ModelCosts costs = model_costs(config, vocab);
  if (json) {
    const Json report{{"config", file.string()},
                      {"vocab", vocab},
                      {"parameters", costs.parameters.total},
                      {"active_parameters", costs.parameters.active},
                      {"trained_parameters", costs.parameters.trained},
                      {"embedding_parameters", costs.parameters.embedding},
                      {"mtp_parameters", costs.parameters.mtp},
                      {"flops_per_token", costs.flops_per_token},
                      {"kv_cache_bytes_per_token", costs.kv_bytes_per_token}};
    std::cout << json_text(report) << std::flush;
    return 0;
  }
  const auto print = [](const char* key, const std::string& value) { fmt::print("{:<12}{}\n", key, visible(value)); };
  print("config", file.string());
  print("model", fmt::format("{}, vocabulary {}", model_line(config), vocab));
  print("parameters", fmt::format("{} ({}), {} active per token, {} of the embedding", costs.parameters.total,
                                  short_count_text(static_cast<double>(costs.parameters.total)),
                                  short_count_text(static_cast<double>(costs.parameters.active)),
                                  short_count_text(static_cast<double>(costs.parameters.embedding))));
  if (costs.parameters.mtp > 0)
    print("MTP", fmt::format("{} of these parameters are of {} of multi-token prediction, which generation leaves out",
                             short_count_text(static_cast<double>(costs.parameters.mtp)),
                             counted(config.model.mtp_depth, "module")));
  if (costs.parameters.trained < costs.parameters.total)
    print("trained", fmt::format("{} ({}) of these parameters", costs.parameters.trained,
                                 short_count_text(static_cast<double>(costs.parameters.trained))));
  print("FLOPs", fmt::format("{:.4g} to train on a token, in sequences of {}", costs.flops_per_token,
                             config.stacks.empty() ? fmt::format("{}", config.model.seq_len)
                                                   : fmt::format("{} in the encoder and {} in the decoder",
                                                                 config.encoder_length(), config.decoder_length())));
  print("kv cache", fmt::format("{} bytes a token, in bf16", costs.kv_bytes_per_token));
  return 0;
}

}  // namespace

int inspect_command(CommandLine& line) {
  po::options_description options;
  options.add_options()(
      "verify", po::bool_switch(),
      "compare every file with its digest; of a run, every checkpoint (of a data set, this is always done)")(
      "stats", po::bool_switch(), "least and largest value, mean and root mean square of every tensor")(
      "all", po::bool_switch(), "list the optimizer's tensors too")(
      "config", po::bool_switch(),
      "of a checkpoint: print the configuration that it was trained with, and nothing else. Of a configuration file: its "
      "model's parameters, FLOPs and kv cache")("json", po::bool_switch(), "print JSON");
  po::variables_map arguments;
  if (!parse_options(line, "inspect", options, {"checkpoint"}, arguments)) return 0;
  const fs::path path = arguments["checkpoint"].as<std::string>();
  const bool json = arguments["json"].as<bool>(), stats = arguments["stats"].as<bool>();
  if (file_exists(path / "dataset.ini")) return inspect_data(path, json);
  if (is_file(path)) return inspect_config(path, json);
  if (arguments["verify"].as<bool>()) return verify(path, json);

  const fs::path dir = find_checkpoint(path);
  const TrainState state = read_state(dir);
  if (arguments["config"].as<bool>()) {
    std::cout << (isatty(STDOUT_FILENO) ? visible(state.config, "\n\t") : state.config) << std::flush;
    return 0;
  }
  const CheckpointTensors tensors(dir);
  const Index parameters = elements_below(tensors, "/params/");
  const Manifest manifest = read_manifest(dir);
  Index bytes = 0;
  for (const Manifest::File& file : manifest.files) bytes += file.bytes;

  Json list = Json::array();
  std::vector<std::string> header{"tensor", "type", "shape", "bytes"};
  if (stats) header.insert(header.end(), {"min", "max", "mean", "rms", "nan"});
  Table table(header);
  for (const TensorInfo& t : tensors.list()) {
    if (t.name.starts_with("/optimizer/") && !arguments["all"].as<bool>()) continue;
    Json row{{"name", t.name},
             {"dtype", info(t.dtype).name},
             {"shape", std::vector<Index>(t.shape.begin(), t.shape.end())},
             {"bytes", t.bytes()}};
    std::vector<std::string> cells{t.name, std::string(info(t.dtype).name), t.shape.str(), std::to_string(t.bytes())};
    if (stats) {
      const TensorStatistics s = statistics(tensors, t.name);
      for (const auto& [key, value] : {std::pair{"min", s.min}, {"max", s.max}, {"mean", s.mean}, {"rms", s.rms}}) {
        row[key] = value;
        cells.push_back(fmt::format("{:.4g}", value));
      }
      row["nan"] = s.nans;
      cells.push_back(std::to_string(s.nans));
    }
    list.push_back(std::move(row));
    table.row(std::move(cells));
  }

  if (json) {
    const Json report{
        {"checkpoint", dir.string()},
        {"step", state.step},
        {"tokens", state.tokens},
        {"samples", state.samples},
        {"seed", state.seed},
        {"vocab", state.vocab},
        {"dataset", state.dataset},
        {"dataset_digest", state.dataset_digest},
        {"tokenizer", state.tokenizer},
        {"unicode_versions", state.unicode_versions},
        {"layout", state.layout},
        {"provenance", parse_record(state.provenance)},
        {"files", manifest.files.size()},
        {"bytes", bytes},
        {"parameters", parameters},
        {"expert_history",
         {{"windows", state.experts.windows()}, {"layers", state.experts.layers}, {"experts", state.experts.experts}}},
        {"config", state.config},
        {"tensors", list}};
    std::cout << json_text(report) << std::flush;
    return 0;
  }
  const auto print = [](const char* key, const std::string& value) { fmt::print("{:<12}{}\n", key, visible(value)); };
  print("checkpoint", dir.string());
  print("step",
        fmt::format("{} ({} tokens, {} samples, seed {})", state.step, state.tokens, state.samples, state.seed));
  std::vector<std::string> renamed;
  print("model", model_line(parse_config(state.config, dir.string(), {}, &renamed)));
  for (const std::string& warning : renamed) warn(warning);
  print("parameters", std::to_string(parameters));
  print("data set", fmt::format("{} (vocabulary {})", state.dataset, state.vocab));
  print("tokenizer", state.tokenizer.empty() ? "not known" : state.tokenizer);
  print("layout", fmt::format("{}, as written; any other can read it", state.layout));
  print("files", fmt::format("{}, {:.1f} MB, digests agree", manifest.files.size(), static_cast<double>(bytes) / 1e6));
  print("experts", fmt::format("{} windows of {} MoE layers of {} experts", state.experts.windows(),
                               state.experts.layers, state.experts.experts));
  print_provenance(parse_record(state.provenance));
  std::cout << "\n" << table.str() << std::flush;
  return 0;
}

}  // namespace sy
