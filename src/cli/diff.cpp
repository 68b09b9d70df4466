// switchyard diff: compares two checkpoints, whatever layouts wrote them.
#include <iostream>

#include "src/cli/trained.h"
#include "src/provenance/provenance.h"
#include "src/text/json.h"
#include "src/text/table.h"

namespace sy {
namespace fs = std::filesystem;

int diff_command(CommandLine& line) {
  po::options_description options;
  options.add_options()("all", po::bool_switch(), "list equal tensors too")("json", po::bool_switch(), "print JSON");
  po::variables_map arguments;
  if (!parse_options(line, "diff", options, {"first", "second"}, arguments)) return 0;
  const fs::path first = find_checkpoint(arguments["first"].as<std::string>()),
                 second = find_checkpoint(arguments["second"].as<std::string>());

  // Results do not depend on provenance: it explains differences, and has no part in the exit code.
  // It is read first, while a run in progress still has the checkpoints.
  const std::vector<ProvenanceDifference> provenance =
      provenance_differences(parse_record(read_provenance(first)), parse_record(read_provenance(second)));
  const std::vector<TensorDifference> tensors = diff_checkpoints(first, second);
  std::size_t different = 0;
  Json list = Json::array();
  Table table({"tensor", "max |a - b|", "note"});
  for (const TensorDifference& d : tensors) {
    different += !d.bitwise_equal;
    if (d.bitwise_equal && !arguments["all"].as<bool>()) continue;
    // JSON has no NaN: null means that the tensors cannot be compared.
    list.push_back({{"name", d.name}, {"equal", d.bitwise_equal}, {"max_abs", d.max_abs}, {"note", d.note}});
    table.row({d.name, d.note.empty() ? fmt::format("{:.6g}", d.max_abs) : "-", d.bitwise_equal ? "equal" : d.note});
  }
  if (arguments["json"].as<bool>()) {
    Json origins = Json::array();
    for (const ProvenanceDifference& d : provenance)
      origins.push_back({{"name", d.name}, {"first", d.first}, {"second", d.second}});
    const Json report{{"provenance", origins},   {"first", first.string()},    {"second", second.string()},
                      {"equal", different == 0}, {"compared", tensors.size()}, {"different", different},
                      {"tensors", list}};
    std::cout << json_text(report) << std::flush;
  } else {
    if (!list.empty()) std::cout << table.str() << "\n";
    if (!provenance.empty()) {
      Table origins({"provenance", "first", "second"});
      for (const ProvenanceDifference& d : provenance)
        origins.row({d.name, d.first.empty() ? "-" : d.first, d.second.empty() ? "-" : d.second});
      std::cout << origins.str() << "\n";
    }
    if (different == 0)
      fmt::print("all {} tensors are bitwise equal\n", tensors.size());
    else
      fmt::print("{} of {} tensors differ\n", different, tensors.size());
  }
  return different == 0 ? 0 : 1;
}

}  // namespace sy
