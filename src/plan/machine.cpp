#include "src/plan/machine.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "kernels/ops/all.h"
#include "src/config/check.h"
#include "src/system/files.h"
#include "src/text/ini.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// Allowed values of a number, and how an error describes them.
struct NumberRange {
  bool (*holds)(double);
  const char* expected;
};
constexpr NumberRange range_above_zero{[](double x) { return x > 0; }, "a number above 0, such as 3.35e12"};
constexpr NumberRange range_seconds{[](double x) { return x <= 1; }, "seconds from 0 to 1, such as 4e-6"};
constexpr NumberRange range_ranks{
    [](double x) { return x >= 1 && x <= 1 << 20 && x == std::floor(x); },
    "a whole number of ranks from 1 to 1048576 (leave it out if all ranks are on one node)"};
struct NumberKey {
  const char* name;
  double Machine::*member;
  bool needed;
  NumberRange range;
};
constexpr NumberKey number_keys[] = {
    {"machine.memory", &Machine::memory, true, range_above_zero},
    {"machine.ranks_per_node", &Machine::ranks_per_node, false, range_ranks},
    {"compute.peak_f32", &Machine::peak_f32, false, range_above_zero},
    {"compute.peak_bf16", &Machine::peak_bf16, false, range_above_zero},
    {"compute.memory_bandwidth", &Machine::memory_bandwidth, true, range_above_zero},
    {"compute.overhead", &Machine::overhead, false, range_seconds},
    {"links.node_latency", &Machine::node_latency, false, range_seconds},
    {"links.node_bandwidth", &Machine::node_bandwidth, true, range_above_zero},
    {"links.latency", &Machine::latency, false, range_seconds},
    {"links.bandwidth", &Machine::bandwidth, false, range_above_zero},
    {"links.message_overhead", &Machine::message_overhead, false, range_seconds},
};
struct CurveKey {
  const char* name;
  Curve Machine::*member;
};
constexpr CurveKey curve_keys[] = {
    {"compute.products", &Machine::products},
    {"compute.grouped_products", &Machine::grouped_products},
    {"compute.attention_forward", &Machine::attention_forward},
    {"compute.attention_backward", &Machine::attention_backward},
};
constexpr std::string_view operations = "operations.";

// Former names of operations, which machine files of version 0.1 have, and their names now.
constexpr Renamed renamed_operations[] = {
    {"append_heads", "kv_cache_append"},
    {"balance", "load_balancing_loss"},
    {"capacity", "apply_capacity"},
    {"combine_rows", "unpermute"},
    {"copy_heads", "broadcast_heads"},
    {"gather_rows", "permute"},
    {"grouped_gemm_input", "grouped_gemm_dgrad"},
    {"grouped_gemm_weight", "grouped_gemm_wgrad"},
    {"heads_gemm", "batched_head_gemm"},
    {"plan_sends", "dispatch_layout"},
    {"prepare", "pack_weight"},
    {"qk_norm_backward", "head_qk_norm_backward"},
    {"qk_norm_forward", "head_qk_norm_forward"},
    {"sized_noise_backward", "noisy_gating_backward"},
    {"sized_noise_forward", "noisy_gating_forward"},
    {"sort_assignments", "build_permutation"},
    {"sum_heads", "reduce_heads"},
    {"whole_qk_norm_backward", "projection_qk_norm_backward"},
    {"whole_qk_norm_forward", "projection_qk_norm_forward"},
    {"whole_qk_norm_sums", "projection_qk_norm_sums"},
};

bool read_number(std::string_view text, double& x) {
  x = parse_number<double>(text).value_or(-1);
  return std::isfinite(x) && x >= 0;
}

bool read_curve(std::string_view text, Curve& curve) {
  curve.points.clear();
  for (const std::string& item : split_list(text)) {
    const std::size_t colon = item.find(':');
    double size = 0, share = 0;
    if (colon == item.npos || !read_number(trimmed(std::string_view(item).substr(0, colon)), size) ||
        !read_number(trimmed(std::string_view(item).substr(colon + 1)), share))
      return false;
    if (size <= 0 || share <= 0 || share > 1 || (!curve.points.empty() && size <= curve.points.back().first))
      return false;
    curve.points.emplace_back(size, share);
  }
  return !curve.points.empty();
}

std::string curve_text(const Curve& curve) {
  std::vector<std::string> items;
  for (const auto& [size, share] : curve.points) items.push_back(fmt::format("{:g}:{:.4g}", size, share));
  return join(items, ", ");
}

std::vector<std::string> key_names() {
  std::vector<std::string> names{"machine.name", "machine.backend", "machine.shared"};
  for (const NumberKey& k : number_keys) names.emplace_back(k.name);
  for (const CurveKey& k : curve_keys) names.emplace_back(k.name);
  return names;
}

void set_key(Machine& m, const IniEntry& e, Problems& problems) {
  const auto wrong = [&](const char* expected) {
    problems.add_at(e.line, "{} = '{}': expected {}", e.key, e.value, expected);
  };
  if (e.key == "machine.name") {
    m.name = e.value;
    return;
  }
  if (e.key == "machine.backend") {
    if (e.value != "cpu" && e.value != "cuda") wrong("cpu or cuda");
    m.backend = e.value;
    return;
  }
  if (e.key == "machine.shared") {
    if (e.value != "true" && e.value != "false") wrong("true or false");
    m.shared = e.value == "true";
    return;
  }
  for (const NumberKey& k : number_keys)
    if (e.key == k.name) {
      if (!read_number(e.value, m.*k.member) || !k.range.holds(m.*k.member)) wrong(k.range.expected);
      return;
    }
  for (const CurveKey& k : curve_keys)
    if (e.key == k.name) {
      if (!read_curve(e.value, m.*k.member))
        wrong("shares of the peak, above 0 and up to 1, by rising size, such as 64:0.3, 1024:0.8");
      return;
    }
  if (e.key.starts_with(operations)) {
    const std::string old_name = e.key.substr(operations.size());
    const std::string_view new_name = new_name_of(old_name, renamed_operations);
    const std::string name(new_name.empty() ? old_name : new_name);
    if (std::ranges::find(ops::operation_names, name) == std::end(ops::operation_names)) {
      const std::string near = nearest(name, {std::begin(ops::operation_names), std::end(ops::operation_names)});
      problems.add_at(e.line, "unknown operation '{}': {}", name,
                      near.empty() ? "`switchyard plan --operations` shows the names" : "did you mean '" + near + "'?");
    }
    double& speed = m.operations[name];
    if (!read_number(e.value, speed) || speed == 0) wrong("bytes/s above 0, such as 2e9");
    return;
  }
  const std::string near = nearest(e.key, key_names());
  problems.add_at(e.line, "unknown key '{}': {}", e.key,
                  near.empty() ? "configs/machines/h100.ini shows them" : "did you mean '" + near + "'?");
}

}  // namespace

double Curve::at(double size) const {
  if (points.empty()) return 1;
  const auto after = std::find_if(points.begin(), points.end(), [&](const auto& p) { return p.first >= size; });
  if (after == points.end()) return points.back().second;
  if (after == points.begin()) return after->second;
  const auto& [low, low_share] = *(after - 1);
  const double fraction = std::log(size / low) / std::log(after->first / low);
  return low_share + fraction * (after->second - low_share);
}

Machine parse_machine(const std::string& ini_text, const std::string& origin) {
  Machine m;
  Problems problems(origin);
  const IniText ini = read_ini(ini_text);
  for (const IniProblem& p : ini.problems) problems.add_at(p.line, "{}", p.what);
  std::set<std::string> seen;
  for (const IniEntry& e : ini.entries) {
    if (!seen.insert(e.key).second) problems.add_at(e.line, "{} is given twice: keep one", e.key);
    set_key(m, e, problems);
  }
  const std::size_t wrong_lines = problems.count();
  for (const NumberKey& k : number_keys)
    if (wrong_lines == 0 && k.needed && m.*k.member == 0)
      problems.add_at(no_line, "{} is missing: give a number above 0", k.name);
  if (wrong_lines == 0 && m.peak_f32 == 0 && m.peak_bf16 == 0)
    problems.add_at(no_line, "compute.peak_f32 and compute.peak_bf16 are missing: give one of them");
  if (wrong_lines == 0 && m.ranks_per_node > 0 && m.bandwidth == 0)
    problems.add_at(no_line, "links.bandwidth is missing: with machine.ranks_per_node, give the bytes/s between nodes");
  problems.raise();
  if (m.name.empty()) m.name = fs::path(origin).stem().string();
  return m;
}

std::string to_ini(const Machine& m, std::string_view comment) {
  std::string text, section;
  std::istringstream lines{std::string(comment)};
  for (std::string line; std::getline(lines, line);) text += "# " + line + "\n";
  const auto put = [&](std::string_view key, std::string_view value) {
    const std::size_t dot = key.find('.');
    if (key.substr(0, dot) != section) text += fmt::format("\n[{}]\n", section = key.substr(0, dot));
    text += fmt::format("{} = {}\n", key.substr(dot + 1), value);
  };
  put("machine.name", ini_value(m.name));
  put("machine.backend", m.backend);
  put("machine.shared", m.shared ? "true" : "false");
  const auto numbers = [&](std::string_view wanted) {
    for (const NumberKey& k : number_keys)
      if (std::string_view(k.name).starts_with(wanted) && (m.*k.member > 0 || k.needed))
        put(k.name, fmt::format("{:.6g}", m.*k.member));
  };
  numbers("machine.");
  numbers("compute.");
  for (const CurveKey& k : curve_keys)
    if (!(m.*k.member).points.empty()) put(k.name, curve_text(m.*k.member));
  for (const auto& [name, speed] : m.operations) put(std::string(operations) + name, fmt::format("{:.4g}", speed));
  numbers("links.");
  return text;
}

Json machine_json(const Machine& m) {
  Json json{{"machine", {{"name", m.name}, {"backend", m.backend}, {"shared", m.shared}}}};
  const auto put = [&](const std::string& key, Json value) {
    const std::size_t dot = key.find('.');
    json[key.substr(0, dot)][key.substr(dot + 1)] = std::move(value);
  };
  for (const NumberKey& k : number_keys) put(k.name, m.*k.member);
  for (const CurveKey& k : curve_keys) {
    Json points = Json::array();
    for (const auto& [size, share] : (m.*k.member).points) points.push_back(std::vector<double>{size, share});
    put(k.name, std::move(points));
  }
  json["operations"] = Json::object();
  for (const auto& [name, speed] : m.operations) json["operations"][name] = speed;
  return json;
}

namespace {

// Returns machine files by name. Earlier folders take precedence. config_file may be empty.
std::map<std::string, fs::path> machine_files(const fs::path& config_file) {
  std::error_code ignored;
  std::vector<fs::path> folders{fs::path("configs") / "machines"};
  if (!config_file.empty())
    for (fs::path at = fs::absolute(config_file).parent_path(); at.has_relative_path(); at = at.parent_path())
      folders.push_back(at / "machines");
  for (const fs::path& folder : resource_folders()) folders.push_back(folder / "configs" / "machines");
  std::map<std::string, fs::path> files;
  for (const fs::path& folder : folders)
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".ini") files.try_emplace(entry.path().stem().string(), entry.path());
  return files;
}

}  // namespace

MachineFile read_machine_file(const std::string& file_or_name, const fs::path& config_file, std::string_view source) {
  fs::path file = file_or_name;
  if (!is_file(file)) {
    const std::map<std::string, fs::path> files = machine_files(config_file);
    const auto found = files.find(file_or_name);
    std::vector<std::string> names;
    for (const auto& [name, path] : files) names.push_back(name);
    if (found == files.end())
      bad_input("{} {}: there is no such file, and no such name: give a file{}", source, file_or_name,
                names.empty() ? "" : ", or one of " + join(names, ", "));
    file = found->second;
  }
  return {file.string(), read_file(file)};
}

Machine read_machine(const std::string& file_or_name, const fs::path& config_file, std::string_view source) {
  const MachineFile file = read_machine_file(file_or_name, config_file, source);
  return parse_machine(file.text, file.path);
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& [name, path] : machine_files({})) names.push_back(name);
  return names;
}

}  // namespace sy
