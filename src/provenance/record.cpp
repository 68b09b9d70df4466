// Records as JSON and as text. No function asks the operating system.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/provenance/provenance.h"
#include "src/system/digest.h"
#include "src/text/strings.h"

namespace sy {
namespace {

constexpr const char* hidden = "(hidden)";

// Returns a value as text: that of a string itself, the elements of an array with commas.
std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "";
  if (!value.is_array()) return value.dump();
  std::vector<std::string> texts;
  for (const Json& element : value) texts.push_back(value_text(element));
  return join(texts, ", ");
}

std::string value_text(const Json& record, std::string_view name) {
  const Json* const value = record.find(name);
  return value ? value_text(*value) : "";
}

// Appends the entries of a value. Nesting is bounded, since the record may come from any file.
void add_entries(const std::string& name, const Json& value, int depth, Entries& out) {
  if (value.is_object() && depth < 4)
    for (const Json::Member& member : value.members())
      add_entries(name.empty() ? member.name : name + "." + member.name, member.value, depth + 1, out);
  else
    out.emplace_back(name, value_text(value));
}

// Returns texts with their counts: ["2 x NVIDIA H100"].
Json counted_texts(const std::map<std::string, int>& counts) {
  Json list = Json::array();
  for (const auto& [text, count] : counts) list.push_back(fmt::format("{} x {}", count, text));
  return list;
}

}  // namespace

bool is_recorded(std::string_view variable) {
  constexpr std::string_view families[] = {"SWITCHYARD_", "OMP_", "NCCL_", "UCX_", "FI_", "OMPI_MCA_", "MPICH_"};
  // Open MPI's mpirun and launch/mpirun.sh set these.
  constexpr std::string_view of_launchers[] = {"OMPI_MCA_orte_",        "OMPI_MCA_ess",     "OMPI_MCA_pmix",
                                               "OMPI_MCA_initial_wdir", "OMPI_MCA_shmem_R", "SWITCHYARD_CONSOLE_",
                                               "SWITCHYARD_THREAD_"};
  const auto begins = [&](std::string_view prefix) { return variable.starts_with(prefix); };
  return std::ranges::any_of(families, begins) && std::ranges::none_of(of_launchers, begins);
}

bool is_secret_name(std::string_view name) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const char* mark : {"TOKEN", "KEY", "SECRET", "PASS"})
    if (upper.find(mark) != upper.npos) return true;
  return false;
}

std::string hide_secrets(const std::string& text) {
  // A variable has no lower-case letters here: --tokenizer=bytes is an option.
  const auto in_name = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  for (std::size_t equals = text.find('='); equals != text.npos; equals = text.find('=', equals + 1)) {
    std::size_t begin = equals;
    while (begin > 0 && in_name(text[begin - 1])) --begin;
    if (is_secret_name(std::string_view(text).substr(begin, equals - begin)))
      return text.substr(0, equals + 1) + hidden;
  }
  return text;
}

Json call_record(const CallFacts& facts) {
  std::set<std::string> names;
  std::set<std::pair<std::string, std::string>> seen;  // host and GPU
  std::map<std::string, int> processors, gpus;
  Json hosts = Json::array();
  for (const CallFacts::Host& host : facts.ranks) {
    if (names.insert(host.name).second) {
      hosts.push_back(host.name);
      ++processors[host.processor];
    }
    for (const auto& [id, name] : host.gpus)
      if (seen.emplace(host.name, id).second) ++gpus[name];
  }
  std::vector<std::string> arguments;
  for (const std::string& argument : facts.arguments) arguments.push_back(shell_quote(hide_secrets(argument)));
  Json environment = Json::object();
  for (const auto& [name, value] : facts.environment)
    if (is_recorded(name)) environment.append(name, is_secret_name(name) ? hidden : hide_secrets(value));
  return {{"ranks", facts.ranks.size()},
          {"hosts", hosts},
          {"processors", counted_texts(processors)},
          {"gpus", counted_texts(gpus)},
          {"instruction_set", text_or_null(facts.instruction_set)},
          {"job", text_or_null(facts.job)},
          {"date", facts.date},
          {"command", join(arguments, " ")},
          {"environment", environment}};
}

Json parse_record(const std::string& text) {
  std::optional<Json> record = Json::try_parse(text);
  return record && record->is_object() ? *std::move(record) : Json();
}

Json with_inputs(Json record, const std::string& config, const std::string& data_digest) {
  record["config_sha256"] = config.empty() ? Json() : Json(to_hex(sha256(config)));
  record["data_digest"] = text_or_null(data_digest);
  return record;
}

Json public_record(const Json& record) {
  if (!record.is_object()) return {};
  Json out = Json::object();
  for (const char* name : {"program_version", "commit", "dirty", "processors", "gpus", "config_sha256"})
    if (const Json* const value = record.find(name)) out.append(name, *value);
  return out;
}

Json record_for(const Json& record, ProvenanceDetail detail) {
  return detail == ProvenanceDetail::full ? record : public_record(record);
}

std::string provenance_line(const Json& record) {
  if (!record.is_object()) return "";
  const std::string commit = value_text(record, "commit").substr(0, 12), digest = value_text(record, "config_sha256");
  std::string line = "switchyard " + value_text(record, "program_version");
  if (!commit.empty())
    line += ", commit " + commit + (value_text(record, "dirty") == "true" ? " with local changes" : "");
  for (const char* name : {"processors", "gpus"})
    if (const std::string hardware = value_text(record, name); !hardware.empty()) line += ", " + hardware;
  if (!digest.empty()) line += ", configuration " + digest.substr(0, 12);
  return line;
}

std::string csv_with_provenance(const std::string& csv, const Json& record) {
  if (!record.is_object()) return csv;
  const Json brief = public_record(record);
  const bool full = !(brief == record);
  const std::string dirty = value_text(record, "dirty") == "true" ? "-dirty" : "", gpus = value_text(record, "gpus");
  const std::string cells = fmt::format(",{},{},{},{}", csv_field(value_text(record, "program_version")),
                                        csv_field(value_text(record, "commit") + dirty),
                                        csv_field(value_text(record, "processors") + (gpus.empty() ? "" : ", " + gpus)),
                                        csv_field(value_text(record, "config_sha256")));
  std::string out;
  bool in_quotes = false;
  Index line = 0;
  for (const char c : csv) {
    in_quotes ^= c == '"';
    if (c == '\n' && !in_quotes) {
      out += line == 0 ? ",version,commit,hardware,config_sha256" : cells;
      if (full) out += line == 0 ? ",provenance" : line == 1 ? "," + csv_field(record.dump()) : ",";
      ++line;
    }
    out += c;
  }
  return out;
}

Entries provenance_entries(const Json& record) {
  Entries entries;
  if (record.is_object()) add_entries("", record, 0, entries);
  return entries;
}

std::vector<ProvenanceDifference> provenance_differences(const Json& first, const Json& second) {
  std::vector<ProvenanceDifference> differences;
  Entries others = provenance_entries(second);
  for (const auto& [name, value] : provenance_entries(first)) {
    const auto other = std::ranges::find(others, name, &Entries::value_type::first);
    const std::string there = other == others.end() ? "" : other->second;
    if (other != others.end()) others.erase(other);
    if (name != "date" && value != there) differences.push_back({name, value, there});
  }
  for (const auto& [name, value] : others)
    if (name != "date" && !value.empty()) differences.push_back({name, "", value});
  return differences;
}

std::string program_text(const Json& program) {
  const auto text = [&](const char* name) { return value_text(program, name); };
  const auto library = [&](const char* name) { return text(name).empty() ? "not in this build" : text(name); };
  const std::string commit = text("commit").empty()    ? "not known: built outside a git work tree"
                             : text("dirty") == "true" ? text("commit") + ", with local changes"
                                                       : text("commit");
  return fmt::format(
      "switchyard {}\n"
      "commit       {}\n"
      "compiler     {}\n"
      "build        {}, {}\n"
      "CPU kernels  {}; {}\n"
      "MPI          {}\n"
      "CUDA         {}\n"
      "NCCL         {}\n"
      "cuBLAS       {}\n"
      "HDF5         {}\n",
      text("program_version"), commit, text("compiler"), text("build_type"), text("flags"), text("instruction_sets"),
      text("kernel_flags"), text("mpi"), library("cuda"), library("nccl"), library("cublas"), text("hdf5"));
}

}  // namespace sy
