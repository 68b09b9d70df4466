// Reading of a configuration from text.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "kernels/environment.h"
#include "src/config/check.h"
#include "src/config/keys.h"
#include "src/config/values.h"
#include "src/system/files.h"
#include "src/text/ini.h"
#include "src/text/strings.h"

namespace sy {
namespace {

constexpr std::string_view pattern_key = "model.pattern", kind_key = "model.kind", base_key = "base";

// Former names of keys. A file or checkpoint that the program wrote may have them; reading it gives
// one warning. In other files and on the command line they are errors, which name the present key.
constexpr Renamed renamed_keys[] = {
    {"model.kv_latent", "model.kv_lora_rank"},         {"model.q_latent", "model.q_lora_rank"},
    {"model.rope_head_dim", "model.qk_rope_head_dim"}, {"model.value_head_dim", "model.v_head_dim"},
    {"model.latent_eps", "model.latent_norm_eps"},     {"moe.group_limit", "moe.topk_groups"},
    {"moe.bias_rate", "moe.bias_update_rate"},         {"moe.placement", "moe.expert_map"},
    {"parallel.node", "parallel.ranks_per_node"},
};

// A key with the text of its value and its location.
struct Setting {
  std::string key, text;
  Location where;
  // The kind of layer whose key this is. Empty if it belongs to no kind.
  std::string kind() const {
    const std::size_t first = key.find('.'), last = key.rfind('.');
    const bool of_kind = first < last && last != key.npos && key.substr(0, first) == attention_section;
    return of_kind ? key.substr(first + 1, last - first - 1) : "";
  }
  // The stack whose key this is: "encoder". Empty if it belongs to no stack.
  std::string stack() const {
    const std::string section = key.substr(0, key.find('.'));
    return std::ranges::find(stack_sections, section) != std::end(stack_sections) ? section : "";
  }
};

bool has_kind(const Config& c, const std::string& name) {
  return std::ranges::find(c.kinds, name, &Config::Kind::name) != c.kinds.end();
}

// Checks that the pattern names every kind that has a section.
void check_kinds(const Config& c, const std::vector<Setting>& settings, Problems& problems) {
  std::set<std::string> reported;
  std::vector<std::string> names;
  for (const Config::Kind& kind : c.kinds) names.push_back(kind.name);
  for (const Setting& s : settings) {
    const std::string kind = s.kind();
    if (kind.empty() || has_kind(c, kind) || !reported.insert(kind).second) continue;
    const std::string near = nearest(kind, names);
    problems.add_at(s.where, "{}: model.pattern names no kind '{}': {}", s.key, kind,
                    names.empty()  ? fmt::format("set it, as in model.pattern = {}*5, global", kind)
                    : near.empty() ? fmt::format("it names {}", join(names, ", "))
                                   : fmt::format("did you mean '{}'?", near));
  }
}

// The keys of a configuration by their names. Its kinds and stacks must stay in place meanwhile.
class KeysByName {
 public:
  explicit KeysByName(Config& config) : config_(config), entries_(key_entries(config)) {
    for (const KeyEntry& entry : entries_) by_name_.emplace(entry.name, &entry);
  }
  KeysByName(const KeysByName&) = delete;

  const Config& config() const { return config_; }
  bool has(const std::string& name) const { return by_name_.contains(name); }
  // Reads the value of a setting. Returns false if there is no such key. An unreadable value is a
  // problem, and changes nothing.
  bool set(const Setting& s, Problems& problems) {
    const auto found = by_name_.find(s.key);
    if (found == by_name_.end()) return false;
    const KeyEntry& entry = *found->second;
    // The configuration is not constant, and neither are the value and its kind.
    if (!entry.key->type.read(s.text, const_cast<void*>(entry.value))) {
      problems.mark_wrong(s.key);
      problems.add_at(s.where, "{} = '{}': expected {}", s.key, s.text, entry.key->type.accepts());
    }
    if (!entry.sets_value()) const_cast<Config::Kind*>(entry.kind)->own_keys.push_back(s.key);
    return true;
  }
  // Returns the known name that is the most like this one. Empty if none is like it, and after many
  // calls: a text with so many unknown keys is no configuration.
  std::string nearest_name(const std::string& name) {
    constexpr int most = 100;
    if (++searched_ > most) return "";
    std::vector<std::string> names;
    for (const KeyEntry& entry : entries_) names.push_back(entry.name);
    return nearest(name, names);
  }

 private:
  const Config& config_;
  std::vector<KeyEntry> entries_;
  std::map<std::string, const KeyEntry*> by_name_;
  int searched_ = 0;
};

// Sets one key. An unknown key changes nothing.
void set_key(KeysByName& keys, const Setting& s, Problems& problems) {
  if (keys.set(s, problems)) return;
  const std::string kind = s.kind(), model_key = "model" + s.key.substr(std::min(s.key.rfind('.'), s.key.size()));
  const Config& c = keys.config();
  const std::string moe_key = "moe" + s.key.substr(std::min(s.key.rfind('.'), s.key.size()));
  const bool of_section = !kind.empty() || !s.stack().empty();
  if (!s.stack().empty() && c.stacks.empty() && (keys.has(model_key) || keys.has(moe_key))) {
    problems.add_at(s.where, "{}: model.kind = {} has no section [{}]: set model.kind to encoder_decoder", s.key,
                    show(c.model.kind), s.stack());
  } else if (of_section && keys.has(model_key)) {
    problems.add_at(s.where, "{}: all layers have the same {}: set that one", s.key, model_key);
  } else if (const std::string_view new_key = new_name_of(s.key, renamed_keys); !new_key.empty()) {
    problems.mark_doubtful(std::string(new_key));
    problems.add_at(s.where, "unknown key '{}': it is {} now", s.key, new_key);
  } else {
    const std::string near = keys.nearest_name(s.key);
    if (!near.empty()) problems.mark_doubtful(near);
    problems.add_at(s.where, "unknown key '{}': {}", s.key,
                    near.empty() ? "`switchyard help config` lists them" : "did you mean '" + near + "'?");
  }
}

// Replaces a leading ~/ by $HOME. A shell does not expand it after "--key=", and no shell reads a
// file.
void expand_home(Setting& s, Problems& problems) {
  constexpr std::string_view path_keys[] = {base_key,        "data.path",   "run.dir",
                                            "run.init_from", "run.machine", "moe.expert_map"};
  if (!s.text.starts_with('~') || std::find(std::begin(path_keys), std::end(path_keys), s.key) == std::end(path_keys))
    return;
  const char* const home = environment("HOME");
  if ((s.text.size() == 1 || s.text[1] == '/') && home && *home)
    s.text = home + s.text.substr(1);
  else
    problems.add_at(s.where,
                    "{} = {}: only ~/ of a user with $HOME is expanded: give the whole path, or ./~ for such a name",
                    s.key, s.text);
}

enum class WrittenBy { user, program };

// Returns the settings of a text. `source` is its number in `problems`. If the program wrote the
// text, keys with former names get their present ones, with one warning.
std::vector<Setting> settings_of(const std::string& ini_text, int source, WrittenBy writer, Problems& problems) {
  const IniText ini = read_ini(ini_text);
  for (const IniProblem& p : ini.problems) {
    problems.add_at({p.line, source}, "{}", p.what);
    problems.mark_doubtful("");
  }
  if (ini.entries.empty()) problems.raise();  // without entries it is no configuration
  std::vector<Setting> settings;
  std::vector<std::string> renamed;
  for (const IniEntry& entry : ini.entries) {
    std::string key = entry.key;
    if (const std::string_view new_key = new_name_of(key, renamed_keys);
        writer == WrittenBy::program && !new_key.empty()) {
      renamed.push_back(fmt::format("{} is {} now", key, new_key));
      key = new_key;
    }
    const Location where{entry.line, source}, before = problems.set_location(key, where);
    if (before.line != no_line && before.source == source)
      problems.add_at(where, "{} is given twice, at {} too: keep one", key, problems.location_text(before));
    settings.push_back({key, entry.value, where});
    expand_home(settings.back(), problems);
  }
  if (!renamed.empty())
    problems.add_warning(
        fmt::format("{} has former names of keys: {}", problems.location_text({no_line, source}), join(renamed, ", ")));
  return settings;
}

// Appends the settings of overrides.
void add_overrides(const std::vector<std::string>& overrides, std::vector<Setting>& settings, Problems& problems) {
  for (const std::string& o : overrides) {
    const auto equals = o.find('=');
    if (o.rfind("--", 0) != 0 || equals == std::string::npos)
      bad_input("'{}': an override has the form --section.key=value", o);
    settings.push_back({o.substr(2, equals - 2), o.substr(equals + 1), command_line});
    expand_home(settings.back(), problems);
  }
}

// Makes a configuration from settings and checks it. A later setting replaces an earlier one.
// If `text_known` is false, the file could not be read. Then only checks that do not depend on it
// are made.
Config parse(const std::vector<Setting>& settings, Problems& problems, bool text_known = true) {
  for (const Setting& s : settings) problems.set_location(s.key, s.where);  // the last one counts
  Config c;
  const auto set_keys = [&](const auto& is_chosen) {
    KeysByName keys(c);
    for (const Setting& s : settings)
      if (is_chosen(s)) set_key(keys, s, problems);
  };
  const auto is_first = [](const Setting& s) { return s.key == pattern_key || s.key == kind_key; };
  set_keys(is_first);
  if (c.model.kind == ModelKind::encoder_decoder)
    for (const std::string_view name : stack_sections) c.stacks.push_back({std::string(name), {}, {}, true});
  if (text_known && !problems.any_wrong(std::array{pattern_key})) {
    for (const Pattern::Segment& segment : c.model.pattern.segments)
      if (!has_kind(c, segment.kind)) c.kinds.push_back({segment.kind, {}, {}});
    check_kinds(c, settings, problems);
  }
  set_keys([&](const Setting& s) { return s.kind().empty() && s.stack().empty() && !is_first(s); });
  // A kind starts as a copy of [model], wherever the file and the command line set [model].
  for (Config::Kind& kind : c.kinds) kind.model = c.model;
  set_keys([&](const Setting& s) { return has_kind(c, s.kind()); });
  for (Config::Kind& stack : c.stacks) {
    stack.model = c.model;
    stack.moe = c.moe;
    stack.model.kind = stack.name == stack_sections[0] ? ModelKind::encoder : ModelKind::decoder;
  }
  set_keys([](const Setting& s) { return !s.stack().empty(); });
  check_values(c, problems);
  if (text_known) complete(c, problems);
  return c;
}

constexpr Index max_config_bytes = 1 << 20;

std::string config_text(const std::filesystem::path& file) {
  const std::filesystem::file_type type = file_type(file);
  if (type == std::filesystem::file_type::directory)
    bad_input("{} is a folder: give a configuration file", file.string());
  if (type == std::filesystem::file_type::not_found)
    bad_input("cannot read the configuration {} ({}): check the path; configs/ holds examples", file.string(),
              std::strerror(ENOENT));
  std::error_code error;  // read_file() reports it
  if (type == std::filesystem::file_type::regular && std::filesystem::file_size(file, error) >= max_config_bytes &&
      !error)
    bad_input("{} is larger than 1 MiB: give a configuration file", file.string());
  return read_file(file, max_config_bytes);
}

// Returns true if the program wrote the file: it is the config.ini of a run folder.
bool is_run_config(const std::filesystem::path& file) {
  if (file.filename() != "config.ini") return false;
  for (const char* name : {"checkpoints", "metrics.jsonl", "train.log"})
    if (file_exists(file.parent_path() / name)) return true;
  return false;
}

// The chain of a configuration's files: the file, its base, the base of that, and so on.
class ConfigFiles {
 public:
  explicit ConfigFiles(Problems& problems) : problems_(problems) {}

  // Returns the settings of a file, preceded by those of its base, which they replace.
  std::vector<Setting> read(const std::filesystem::path& file, const std::string& text, int source = 0) {
    files_.push_back(file);
    const WrittenBy writer = is_run_config(file) ? WrittenBy::program : WrittenBy::user;
    std::vector<Setting> settings = settings_of(text, source, writer, problems_), all;
    for (const Setting& s : settings)
      if (s.key == base_key && all.empty()) all = read_base(s);
    for (Setting& s : settings)
      if (s.key != base_key) all.push_back(std::move(s));
    return all;
  }
  const std::filesystem::path& file(int source) const { return files_.at(static_cast<std::size_t>(source)); }

 private:
  static constexpr std::size_t max_files = 8;

  std::vector<Setting> read_base(const Setting& s) {
    const std::filesystem::path base = (files_.back().parent_path() / s.text).lexically_normal();
    const auto same = [&](const std::filesystem::path& other) {
      std::error_code none;
      return std::filesystem::equivalent(other, base, none);
    };
    if (std::any_of(files_.begin(), files_.end(), same)) {
      problems_.add_at(s.where, "base = {}: it is this file, or has this file as its own base: name another", s.text);
    } else if (files_.size() == max_files) {
      problems_.add_at(s.where, "base = {}: at most {} files may be the base of one another: merge some", s.text,
                       max_files - 1);
    } else {
      std::optional<std::string> text;
      try {
        text = config_text(base);
      } catch (const InputError& e) {
        problems_.add_at(s.where, "base = {}: {}", s.text, e.what());
        problems_.mark_doubtful("");
      }
      if (text) return read(base, *text, problems_.add_source(base.string()));
    }
    return {};
  }

  Problems& problems_;
  std::vector<std::filesystem::path> files_;  // by source
};

}  // namespace

Config parse_config(const std::string& ini_text, const std::string& origin, const std::vector<std::string>& overrides,
                    std::vector<std::string>* warnings) {
  Problems problems(origin);
  std::vector<Setting> settings = settings_of(ini_text, 0, WrittenBy::program, problems);
  add_overrides(overrides, settings, problems);
  Config c = parse(settings, problems);
  problems.raise();
  problems.append_warnings(warnings);
  return c;
}

Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const std::vector<ConfigCheck>& checks, ConfigOrigins* origins, std::vector<std::string>* warnings) {
  Problems problems(file.string());
  ConfigFiles files(problems);
  std::vector<Setting> settings;
  std::string text;
  try {
    text = config_text(file);
  } catch (const InputError& e) {
    problems.add_error(e);
    add_overrides(overrides, settings, problems);
    parse(settings, problems, false);
    problems.raise();
  }
  settings = files.read(file, text);
  add_overrides(overrides, settings, problems);
  Config c = parse(settings, problems);
  Location data_path = command_line;
  for (const Setting& s : settings) {
    if (s.key == "data.path") data_path = s.where;
    if (origins) (*origins)[s.key] = problems.location_text(s.where);
  }
  std::error_code ec;  // check_data_path() reports it
  if (data_path.line != command_line && !c.data.path.empty() && !std::filesystem::exists(c.data.path, ec)) {
    const std::filesystem::path beside = files.file(data_path.source).parent_path() / c.data.path;
    if (std::filesystem::exists(beside, ec)) c.data.path = beside.string();
  }
  for (const ConfigCheck& check : checks) {
    if (check.needs_sizes && (problems.any_wrong(size_keys) || problems.any_doubtful(layout_keys))) continue;
    try {
      check.run(c);
    } catch (const InputError& e) {
      problems.add_error(e);
    }
  }
  problems.raise();
  problems.append_warnings(warnings);
  return c;
}

}  // namespace sy
