// Conversions of layers with a sliding window.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "src/families/config_rules.h"
#include "src/families/rule_helpers.h"
#include "src/params/block_specs.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// Types of all layers: layer_types, or the rule `windowed` if the key is absent.
std::vector<std::string> layer_types(const Json& hf_config, const std::function<bool(Index)>& windowed) {
  const Index layers = hf_config.at("num_hidden_layers").get<std::int64_t>();
  if (layers < 1 || layers > max_layers) bad_input("num_hidden_layers = {}: expected 1 to {}", layers, max_layers);
  std::vector<std::string> out;
  if (const Json* types = find_value(hf_config, "layer_types")) {
    out = types->get<std::vector<std::string>>();
    if (std::ssize(out) != layers)
      bad_input("layer_types has {} types, and num_hidden_layers is {}", out.size(), layers);
    return out;
  }
  for (Index i = 0; i < layers; ++i) out.emplace_back(windowed(i) ? sliding_type : full_type);
  return out;
}

// Value of model.pattern: the shortest period of the kinds of layers.
std::string pattern_of(const std::vector<std::string>& kinds) {
  std::size_t period = 1;
  const auto repeats = [&] {
    for (std::size_t i = period; i < kinds.size(); ++i)
      if (kinds[i] != kinds[i - period]) return false;
    return true;
  };
  while (!repeats()) ++period;
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < period;) {
    std::size_t end = i;
    while (end < period && kinds[end] == kinds[i]) ++end;
    runs.push_back(fmt::format("{}*{}", kinds[i], end - i));
    i = end;
  }
  return join(runs, ", ");
}

// Value of sliding_window. `absent` if the key is absent, 0 if it is null.
Index window_of(const Json& hf_config, Index absent) {
  return hf_config.contains("sliding_window") ? int_or(hf_config, "sliding_window", 0) : absent;
}

void read_windows(const Json& hf_config, const std::vector<std::string>& types, Index absent, KeySettings& settings) {
  for (const std::string& type : types)
    if (type != full_type && type != sliding_type) bad_input("layer_types: {} is not known", type);
  const auto windowed = std::count(types.begin(), types.end(), sliding_type);
  if (windowed == 0) return;
  const Index size = window_of(hf_config, absent);
  if (size < 1) bad_input("sliding_window = {}: expected 1 or more, as some layers have a window", size);
  const std::string window = fmt::format("{}", size);
  if (windowed == std::ssize(types)) return settings.emplace_back("model.window", window), void();
  std::vector<std::string> kinds;
  for (const std::string& type : types) kinds.emplace_back(type == sliding_type ? "local" : "global");
  settings.emplace_back("model.pattern", pattern_of(kinds));
  settings.emplace_back("attention.local.window", window);
}

// Writes layer_types and sliding_window. Returns true if a layer has a window.
bool write_windows(const Config& config, Json& hf_config) {
  Json types = Json::array();
  Json window;
  for (const BlockSpec& block : block_specs(config)) {
    types.push_back(std::string(block.attention().window > 0 ? sliding_type : full_type));
    if (block.attention().window > 0) window = block.attention().window;
  }
  hf_config["layer_types"] = types;
  if (!window.is_null()) hf_config["sliding_window"] = window;
  return !window.is_null();
}
void write_types(const Config& config, Json& hf_config) {
  write_windows(config, hf_config);
}

// Every n-th layer is full, the others have a window. named: sliding_window_pattern overrides
// `every`. absent: default window.
template <Index every, bool named, Index absent>
void read_full_every(const Json& hf_config, KeySettings& settings) {
  const Index n = named ? int_or(hf_config, "sliding_window_pattern", every) : every;
  if (n < 1) bad_input("sliding_window_pattern = {}: expected 1 or more", n);
  read_windows(hf_config, layer_types(hf_config, [n](Index i) { return (i + 1) % n != 0; }), absent, settings);
}

// All layers have the same window, or none, unless layer_types is read.
template <Index absent, bool reads_list>
void read_one_window(const Json& hf_config, KeySettings& settings) {
  const bool has = window_of(hf_config, absent) > 0;
  const Json read = reads_list ? hf_config : without(hf_config, "layer_types");
  read_windows(read, layer_types(read, [has](Index) { return has; }), absent, settings);
}
void write_one_window(const Config& config, Json& hf_config) {
  const bool listed = find_value(hf_config, "layer_types");
  if (!write_windows(config, hf_config)) hf_config["sliding_window"] = Json();
  if (!listed) hf_config = without(hf_config, "layer_types");
}

constexpr Index qwen_window = 4096;  // default of sliding_window
template <bool (*windowed)(Index layer, Index max_window_layers)>
void read_used_windows(const Json& hf_config, KeySettings& settings) {
  const Index bound = int_or(hf_config, "max_window_layers", 28);
  if (!bool_or(hf_config, "use_sliding_window", false) || window_of(hf_config, qwen_window) == 0) return;
  read_windows(hf_config, layer_types(hf_config, [&](Index layer) { return windowed(layer, bound); }), qwen_window,
               settings);
}
void write_used_windows(const Config& config, Json& hf_config) {
  hf_config["use_sliding_window"] = write_windows(config, hf_config);
}
bool from_bound(Index layer, Index bound) {
  return layer >= bound;
}
bool even_below_bound(Index layer, Index bound) {
  return layer % 2 == 0 && layer < bound;
}

// Layers without a window have no positions. Valid after read_windows.
void read_full_without_positions(KeySettings& settings) {
  const auto [full, sliding] = layer_sections(settings);
  if (full.empty()) return;
  const std::string section = sliding.empty() ? "model" : "attention.global";
  settings.emplace_back(section + ".position", "none");
}

// Kinds of layers of SmolLM3.
struct RopeKind {
  const char* name;
  bool rope, windowed;
};
constexpr RopeKind rope_kinds[] = {
    {"rope", true, false}, {"nope", false, false}, {"rope_local", true, true}, {"nope_local", false, true}};

std::vector<bool> rope_layers(const Json& hf_config, Index layers) {
  std::vector<bool> rope;
  const Index interval = int_or(hf_config, "no_rope_layer_interval", 4);
  if (interval < 1) bad_input("no_rope_layer_interval = {}: expected 1 or more", interval);
  if (const Json* list = find_value(hf_config, "no_rope_layers")) {
    for (const std::int64_t flag : list->get<std::vector<std::int64_t>>()) rope.push_back(flag != 0);
    if (std::ssize(rope) != layers)
      bad_input("no_rope_layers has {} entries, and num_hidden_layers is {}", rope.size(), layers);
    return rope;
  }
  for (Index i = 0; i < layers; ++i) rope.push_back((i + 1) % interval != 0);
  return rope;
}

void read_smollm3_layers(const Json& hf_config, KeySettings& settings) {
  const bool used = bool_or(hf_config, "use_sliding_window", false);
  const Index window = window_of(hf_config, 0);
  std::vector<bool> rope;
  const std::vector<std::string> types = layer_types(hf_config, [&](Index i) {
    if (rope.empty()) rope = rope_layers(hf_config, int_or(hf_config, "num_hidden_layers", 0));
    return used && window > 0 && !rope[static_cast<std::size_t>(i)];
  });
  rope = rope_layers(hf_config, std::ssize(types));
  std::vector<std::string> names;
  std::vector<const RopeKind*> present;
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] != full_type && types[i] != sliding_type) bad_input("layer_types: {} is not known", types[i]);
    const auto kind = std::find_if(std::begin(rope_kinds), std::end(rope_kinds), [&](const RopeKind& k) {
      return k.rope == rope[i] && k.windowed == (types[i] == sliding_type);
    });
    if (kind->windowed && (!used || window < 1))
      bad_input("layer_types has {}: this needs use_sliding_window = true and a sliding_window", sliding_type);
    names.emplace_back(kind->name);
    if (std::find(present.begin(), present.end(), kind) == present.end()) present.push_back(kind);
  }
  if (present.size() > 1) settings.emplace_back("model.pattern", pattern_of(names));
  for (const RopeKind* kind : present) {
    const std::string section = present.size() > 1 ? fmt::format("attention.{}", kind->name) : "model";
    if (!kind->rope) settings.emplace_back(section + ".position", "none");
    if (kind->windowed) add_setting(settings, section + ".window", window);
  }
}

void write_smollm3_layers(const Config& config, Json& hf_config) {
  Json flags = Json::array();
  for (const BlockSpec& block : block_specs(config)) flags.push_back(block.attention().rope ? 1 : 0);
  hf_config["no_rope_layers"] = flags;
  hf_config["use_sliding_window"] = write_windows(config, hf_config);
}

}  // namespace

const ConfigRule window_rule{read_one_window<0, false>, write_one_window};
const ConfigRule mistral_window_rule{read_one_window<4096, false>, write_one_window};
const ConfigRule ministral_window_rule{read_one_window<4096, true>, [](const Config& config, Json& hf_config) {
                                         if (!write_windows(config, hf_config)) hf_config["sliding_window"] = Json();
                                       }};
const ConfigRule olmo3_window_rule{read_full_every<4, false, 4096>, write_types};
const ConfigRule gemma2_window_rule{read_full_every<2, false, 4096>, write_types};
const ConfigRule gpt_oss_window_rule{read_full_every<2, false, 128>, write_types};
const ConfigRule gemma3_window_rule{read_full_every<6, true, 4096>, write_types};
const ConfigRule cohere2_window_rule{[](const Json& hf_config, KeySettings& settings) {
                                       read_full_every<4, true, 4096>(hf_config, settings);
                                       read_full_without_positions(settings);
                                     },
                                     write_types};
const ConfigRule exaone4_window_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Json* period = find_value(hf_config, "sliding_window_pattern");
      if (!period || !period->is_string()) int_or(hf_config, "sliding_window_pattern", 4);
      const bool listed = find_value(hf_config, "layer_types");
      if (period && period->is_string() && !listed)
        bad_input("sliding_window_pattern = {}: this needs layer_types, too", period->dump());
      const bool windowed = window_of(hf_config, 4096) != 0;
      if (listed || !windowed)
        read_windows(hf_config, layer_types(hf_config, [](Index) { return false; }), 4096, settings);
      else
        read_full_every<4, true, 4096>(hf_config, settings);
      if (windowed) read_full_without_positions(settings);
    },
    [](const Config& config, Json& hf_config) {
      const bool windowed = write_windows(config, hf_config);
      if (!windowed && block_specs(config).front().attention().rope) hf_config["sliding_window"] = Json();
    }};
const ConfigRule smollm3_layers_rule{read_smollm3_layers, write_smollm3_layers};
const ConfigRule dots1_window_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Index bound = int_or(hf_config, "max_window_layers", 62), window = window_of(hf_config, 4096);
      read_windows(hf_config, layer_types(hf_config, [&](Index i) { return window > 0 && i >= bound; }), 4096,
                   settings);
    },
    write_types};
// The window counts the keys of both sides. A token sees half of them on each side, and itself.
const ConfigRule modernbert_window_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Index every = int_or(hf_config, "global_attn_every_n_layers", 3);
      if (every < 1) bad_input("global_attn_every_n_layers = {}: expected 1 or more", every);
      Json with_window = hf_config;
      with_window["sliding_window"] = int_or(hf_config, "local_attention", 128) / 2 + 1;
      read_windows(with_window, layer_types(hf_config, [every](Index i) { return i % every != 0; }), 0, settings);
    },
    [](const Config& config, Json& hf_config) {
      if (write_windows(config, hf_config)) {
        const Index half = hf_config.at("sliding_window").get<std::int64_t>() - 1;
        if (int_or(hf_config, "local_attention", 128) / 2 != half) hf_config["local_attention"] = 2 * half;
      }
      hf_config = without(hf_config, "sliding_window");
      // transformers 4 does not read layer_types.
      const std::vector<BlockSpec> blocks = block_specs(config);
      for (Index every = 1; every <= std::ssize(blocks); ++every) {
        bool fits = true;
        for (Index i = 0; i < std::ssize(blocks); ++i)
          fits &= (blocks[static_cast<std::size_t>(i)].attention().window > 0) == (i % every != 0);
        if (fits) return put(hf_config, "global_attn_every_n_layers", every);
      }
    }};
const ConfigRule qwen_window_rule{read_used_windows<from_bound>, write_used_windows};
const ConfigRule qwen2_moe_window_rule{read_used_windows<even_below_bound>, write_used_windows};
const ConfigRule qwen3_moe_window_rule{[](const Json& hf_config, KeySettings& settings) {
                                         if (bool_or(hf_config, "use_sliding_window", false))
                                           add_setting(settings, "model.window", window_of(hf_config, qwen_window));
                                       },
                                       [](const Config& config, Json& hf_config) {
                                         const Index window = block_specs(config).front().attention().window;
                                         hf_config["use_sliding_window"] = window > 0;
                                         if (window > 0) hf_config["sliding_window"] = window;
                                       }};

}  // namespace sy
