#include "src/experiments/grid.h"

#include <algorithm>
#include <set>

#include "kernels/check.h"
#include "src/system/files.h"
#include "src/text/ini.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// Splits at separators outside of double quotes. The quotes remain.
std::vector<std::string> split_outside_quotes(std::string_view text, char separator) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : text) {
    quoted ^= c == '"';
    if (c == separator && !quoted)
      fields.emplace_back();
    else
      fields.back() += c;
  }
  return fields;
}

std::string unquoted(std::string_view text) {
  text = trimmed(text);
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

}  // namespace

Variation parse_variation(const std::string& text) {
  constexpr const char* forms = "give KEY=VALUE,VALUE,... or KEY:KEY=VALUE:VALUE,VALUE:VALUE,...";
  const auto equals = text.find('=');
  if (equals == text.npos) bad_input("--vary {}: {}", text, forms);
  Variation v;
  for (const std::string& key : split_outside_quotes(std::string_view(text).substr(0, equals), ':')) {
    const std::string_view name = trimmed(key);
    if (name.find('.') == name.npos || name.starts_with('-'))
      bad_input("--vary {}: '{}' is no key: {}; `switchyard help config` lists the keys", text, name, forms);
    v.keys.emplace_back(name);
  }
  for (const std::string& choice : split_outside_quotes(std::string_view(text).substr(equals + 1), ',')) {
    std::vector<std::string> values;
    for (const std::string& value : split_outside_quotes(choice, ':')) values.push_back(unquoted(value));
    if (values.size() != v.keys.size())
      bad_input("--vary {}: {} values for {} keys in '{}': {}", text, values.size(), v.keys.size(), trimmed(choice),
                forms);
    if (std::find(v.values.begin(), v.values.end(), values) != v.values.end())
      bad_input("--vary {}: '{}' is there twice: keep one", text, trimmed(choice));
    v.values.push_back(values);
  }
  return v;
}

std::vector<std::vector<std::string>> combinations(const std::vector<Variation>& variations) {
  constexpr std::size_t max_combinations = 10'000;
  std::vector<std::vector<std::string>> all(1);
  std::set<std::string> varied;
  for (const Variation& v : variations) {
    for (const std::string& key : v.keys)
      if (!varied.insert(key).second) bad_input("{} is varied twice: keep one", key);
    if (all.size() * v.values.size() > max_combinations)
      bad_input("the variations have more than {} combinations: vary fewer keys, or divide the sweep",
                max_combinations);
    std::vector<std::vector<std::string>> longer;
    for (const auto& before : all)
      for (const auto& values : v.values) {
        longer.push_back(before);
        for (std::size_t k = 0; k < values.size(); ++k) longer.back().push_back(v.keys[k] + "=" + values[k]);
      }
    all = std::move(longer);
  }
  return all;
}

Sweep read_sweep(const std::filesystem::path& file) {
  const IniText ini = read_ini(read_file(file));
  const bool is_sweep = std::ranges::any_of(ini.entries, [](const IniEntry& e) { return e.key.starts_with("sweep."); });
  Sweep sweep{file.stem().string(), file, {}, {}};
  if (!is_sweep) return sweep;
  sweep.base.clear();
  const auto at = [&](int line) { return fmt::format("{}:{}", file.string(), line); };
  for (const IniProblem& p : ini.problems) bad_input("{}: {}", at(p.line), p.what);
  for (const IniEntry& e : ini.entries) {
    if (e.key == "sweep.base")
      sweep.base = file.parent_path() / e.value;
    else if (e.key == "sweep.vary")
      sweep.variations.push_back(parse_variation(e.value));
    else if (e.key.starts_with("sweep."))
      bad_input("{}: unknown key '{}': [sweep] has base and vary", at(e.line), e.key);
    else
      sweep.settings.push_back("--" + e.key + "=" + e.value);
  }
  if (sweep.base.empty()) bad_input("{}: [sweep] has no base: name the configuration that it varies", file.string());
  return sweep;
}

std::string folder_name(const std::vector<std::string>& settings) {
  if (settings.empty()) return "base";
  std::string name = join(settings, ",");
  for (char& c : name)
    if (c == '/' || c == ' ' || static_cast<unsigned char>(c) < 0x20) c = '_';
  constexpr std::size_t longest = 200;  // file systems allow 255 bytes
  return name.size() <= longest
             ? name
             : fmt::format("{}-{:016x}", name.substr(0, longest - 17), std::hash<std::string>{}(name));
}

}  // namespace sy
