// switchyard experts: which experts are used, overloaded, dropped or specialised, from a checkpoint
// alone. With --replay and --ablate also how they treat text and what they contribute.

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "kernels/environment.h"
#include "src/analyse/placement.h"
#include "src/analyse/report.h"
#include "src/cli/experts_replay.h"
#include "src/cli/trained.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"

namespace sy {
namespace fs = std::filesystem;
namespace {

constexpr const char* outputs[] = {"csv", "html", "hdf5", "figures-csv", "placement-file"};

// Parses "100-200", or "100" for that step alone.
std::pair<Index, Index> parse_steps(const std::string& text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_number<Index>(text.substr(0, dash));
  const auto last = dash == text.npos ? first : parse_number<Index>(text.substr(dash + 1));
  if (!first || !last || *last < *first) bad_input("--steps {}: expected FIRST-LAST, such as 100-200", text);
  return {*first, *last};
}

// Parses "ep=4".
Index parse_placement(const std::string& text) {
  const auto ranks = text.starts_with("ep=") ? parse_number<Index>(text.substr(3)) : std::nullopt;
  if (!ranks) bad_input("--placement {}: expected ep=N, such as ep=4", text);
  return *ranks;
}

// Returns whether there is a device, a pipe or a socket, which is written to and not replaced.
bool is_stream(const fs::path& path) {
  return file_exists(path) && !is_file(path);
}

// Returns the path of the file to replace: a link stays a link.
fs::path written_path(const fs::path& path) {
  return file_exists(path) ? fs::canonical(path) : path;
}

// Writes to a device or pipe directly; replaces a file atomically.
void write_output(const fs::path& path, const std::string& text) {
  if (is_stream(path)) {
    std::ofstream out(path);
    if (!(out << text << std::flush)) fail("cannot write {}", path.string());
  } else {
    write_file(written_path(path), text);
  }
}

// Throws InputError if `path` cannot be written. Called before any work.
void check_output(const fs::path& path) {
  if (path == "-") return;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (path.empty() || is_folder(path)) bad_input("'{}' is not a file's name: name a file", path.string());
  if (!is_folder(folder))
    bad_input("cannot write {}: there is no folder {}: create it first", path.string(), folder.string());
  if (is_stream(path)) {
    if (access(path.c_str(), W_OK) != 0) bad_input("cannot write {}: {}", path.string(), std::strerror(errno));
  } else if (access(folder.c_str(), W_OK) != 0) {
    bad_input("cannot write {}: the folder is not writable", path.string());
  }
}

// Throws InputError if two outputs are one file: the later would replace the earlier.
void check_distinct(const po::variables_map& arguments) {
  std::vector<std::pair<fs::path, std::string>> files;
  for (const char* output : outputs) {
    if (!arguments.count(output)) continue;
    const fs::path path = arguments[output].as<std::string>();
    if (path == "-" || is_stream(path)) continue;
    const fs::path file = fs::weakly_canonical(fs::absolute(path));
    for (const auto& [other, option] : files)
      if (other == file)
        bad_input("experts: --{} and --{} name the same file, {}: name two files", option, output, path.string());
    files.emplace_back(file, output);
  }
}

bool colours_wanted() {
  const char* terminal = environment("TERM");
  return isatty(STDOUT_FILENO) && !environment("NO_COLOR") && terminal && std::string(terminal) != "dumb";
}

}  // namespace

int experts_command(CommandLine& line) {
  std::string csv, html, hdf5, figures, placement_file;
  po::options_description options;
  options.add_options()("html", po::value(&html), "write a page with pictures (needs gnuplot)")(
      "csv", po::value(&csv), "write a row per window of steps, layer and expert; - is standard output")(
      "json", po::bool_switch(), "print everything as JSON instead of tables")(
      "hdf5", po::value(&hdf5),
      "write the same numbers as HDF5: /load, /summary, and a group for each of what follows")(
      "figures-csv", po::value(&figures), "write the figures of what follows as CSV, a row per value")(
      "layer", po::value<std::string>(),
      "only this layer, expert by expert: its name in the tables, or its number in JSON and CSV")(
      "steps", po::value<std::string>(), "FIRST-LAST: the load of these steps (otherwise of the last tenth)")(
      "compare", po::value<std::string>(), "RUN or CHECKPOINT to set beside this one")(
      "placement", po::value<std::string>(),
      "ep=N: the load of N expert-parallel ranks, and a placement that evens it out")(
      "placement-file", po::value(&placement_file), "write that placement as JSON");
  add_replay_options(options);
  add_provenance_option(options);
  po::variables_map arguments;
  if (!parse_options(line, "experts", options, {"checkpoint"}, arguments)) return 0;

  ErrorList errors("experts");
  const ProvenanceDetail detail = provenance_detail(arguments, errors);
  errors.raise();
  if ((csv == "-") + (html == "-") + arguments["json"].as<bool>() > 1)
    bad_input("experts: only one of --json, --csv - and --html - can go to standard output");
  for (const char* output : outputs)
    if (arguments.count(output)) check_output(arguments[output].as<std::string>());
  check_distinct(arguments);
  ReportOptions wanted;
  if (arguments.count("layer")) wanted.layer = arguments["layer"].as<std::string>();
  if (arguments.count("steps")) wanted.steps = parse_steps(arguments["steps"].as<std::string>());

  for (const char* output : {"hdf5", "figures-csv", "placement-file"})
    if (arguments.count(output) && arguments[output].as<std::string>() == "-")
      bad_input("experts: --{} needs a file's name", output);
  if (!hdf5.empty() && is_stream(hdf5)) bad_input("experts: --hdf5 {} is no regular file: name one", hdf5);

  const bool replays = wants_replay(arguments);
  Index ranks = 0;
  if (arguments.count("placement")) ranks = parse_placement(arguments["placement"].as<std::string>());
  if (!placement_file.empty() && !arguments.count("placement"))
    bad_input("experts: --placement-file needs --placement ep=N");
  if (!figures.empty() && !replays && !arguments.count("compare") && !arguments.count("placement"))
    bad_input(
        "experts: --figures-csv writes the figures of --compare, --placement, --replay and --ablate: give one of them, or "
        "use --csv for the load");

  const auto report_of = [&](const char* name) {
    return make_report(find_checkpoint(arguments[name].as<std::string>()), wanted);
  };
  ExpertReport report = report_of("checkpoint");
  std::optional<Index> block;
  if (wanted.layer) {
    block = report.state.experts.layer_ids[0];
    wanted.layer = layer_text(report, *block);  // the other run is compared by name
  }
  if (!line.provenance.is_null())
    report.provenance = with_inputs(line.provenance, report.state.config, report.state.dataset_digest);
  const Json provenance = record_for(report.provenance, detail);
  if (arguments.count("compare")) {
    const ExpertReport other = report_of("compare");
    report.sections.push_back(comparison(report, other));
    for (const std::string& text : comparison_warnings(report, other)) warn("experts --compare: " + text);
  }
  if (arguments.count("placement")) {
    if (report.load.empty()) bad_input("{} has no expert counts yet: no placement follows", report.checkpoint.string());
    const auto placement = balance_placement(report.load, ranks);
    report.sections.push_back(placement_section(placement, layer_dimension(report)));
    if (!placement_file.empty()) write_output(placement_file, json_text(placement_json(placement), -1));
  }
  if (replays)
    for (Section& section : replay_sections(line.world, arguments, block))
      report.sections.push_back(std::move(section));

  // Files come first: a closed standard output (`| head`) ends the command.
  if (!csv.empty() && csv != "-") write_output(csv, csv_with_provenance(report_csv(report), provenance));
  if (!html.empty() && html != "-") write_output(html, report_html(report, detail));
  if (!hdf5.empty()) {
    std::vector<Section> sections = load_sections(report);
    sections.insert(sections.end(), report.sections.begin(), report.sections.end());
    write_figures(written_path(hdf5), sections, "switchyard experts " + report.checkpoint.string(), provenance);
  }
  if (!figures.empty()) write_output(figures, csv_with_provenance(sections_csv(report.sections), provenance));
  if (arguments["json"].as<bool>())
    std::cout << json_text(report_json(report), 1) << std::flush;
  else if (csv == "-")
    std::cout << csv_with_provenance(report_csv(report), provenance) << std::flush;
  else if (html == "-")
    std::cout << report_html(report, detail) << std::flush;
  else
    std::cout << report_text(report, colours_wanted()) << std::flush;
  return 0;
}

}  // namespace sy
