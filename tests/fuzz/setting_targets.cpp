// Configurations, and descriptions of machines, sweeps and models.
#include <algorithm>

#include "src/config.h"
#include "src/config/layout.h"
#include "src/experiments/grid.h"
#include "src/families/import.h"
#include "src/families/settings.h"
#include "src/io/safetensors.h"
#include "src/plan/machine.h"
#include "src/text/ini.h"
#include "src/text/json.h"
#include "tests/fuzz/helpers.h"

namespace sy::fuzz {

namespace {

void parse_json(Input input) {
  const std::string_view text = view_of(input);
  Attempts attempts;
  attempts([&] {
    const std::optional<Json> json = Json::try_parse(text);
    if (!json) bad_input("no JSON");
    const std::string written = json->dump();
    require(Json::parse(written).dump() == written, "a value is read as it was written");
  });
  attempts([&] { Json::try_parse(standard_json(text)); });
  attempts.finish();
}

void parse_ini(Input input) {
  for (const Comments comments : {Comments::after_blanks, Comments::anywhere}) {
    const IniText ini = read_ini(view_of(input), comments);
    if (!ini.problems.empty()) bad_input("{}", ini.problems.front().what);
    for (const IniEntry& entry : ini.entries) {
      const IniText again = read_ini("[a]\nb = " + ini_value(entry.value), comments);
      require(again.entries.size() == 1 && again.entries.front().value == entry.value,
              "a value is read as it was written");
    }
  }
}

void parse_configuration(Input input) {
  const Config config = parse_config(std::string(view_of(input)), "config.ini");
  const std::string ini = to_ini(config);
  require(to_ini(parse_config(ini, "again")) == ini, "a configuration is read as it was written");
  for (const Layout& layout : {Layout{}, Layout{.ranks = 4, .tp = 2, .ep = 2}})
    if (layout_problem(config, layout).empty()) config_warnings(config, layout);
}

void read_map_of_experts(Input input) {
  static Scratch scratch;
  static Config config = parse_config("[model]\nlayers = 2\n[moe]\nexperts = 6\ntop_k = 2\n", "config.ini");
  config.moe.expert_map = scratch.write("map.json", view_of(input)).string();
  for (std::vector<Index> map : read_expert_map(config)) {
    std::ranges::sort(map);
    for (Index i = 0; i < std::ssize(map); ++i)
      require(map[static_cast<std::size_t>(i)] == i, "a map is a permutation");
  }
}

void parse_machine_file(Input input) {
  const Machine machine = parse_machine(std::string(view_of(input)), "machine.ini");
  for (const Curve* const curve : {&machine.products, &machine.attention_forward})
    for (const double size : {1.0, 100.0, 1e9}) {
      const double share = curve->at(size);
      require(share >= 0 && share <= 1, "a share is between 0 and 1");
    }
  machine_json(machine).dump();
  parse_machine(to_ini(machine, "again"), "again");
}

void read_sweep_file(Input input) {
  static Scratch scratch;
  const Sweep sweep = read_sweep(scratch.write("sweep.ini", view_of(input)));
  for (const std::vector<std::string>& settings : combinations(sweep.variations)) folder_name(settings);
}

// Reads config.json of a model, beside tensors that do not fit it.
void read_model_config(Input input) {
  static Scratch scratch;
  static const bool written = [] {
    const StoredHeader header = stored_header({{"model.embed_tokens.weight", "F32", {1}}}, {});
    scratch.write("model.safetensors", header.bytes + std::string(4, '\0'));
    return true;
  }();
  static_cast<void>(written);
  scratch.write("config.json", view_of(input));
  const FamilyModel model = open_family_model(scratch.path(), {});
  Attempts attempts;
  attempts([&] { config_json(*model.family, model.config, model.json); });
  // The tensors never fit.
  try {
    const FamilyValues values(scratch.path(), model);
    require(false, "tensors of another model are refused");
  } catch (const InputError&) {
  }
  attempts.finish();
}

}  // namespace

std::vector<Target> setting_targets() {
  return {
      {"json", "any JSON", parse_json},
      {"ini", "any INI", parse_ini},
      {"config", "a configuration", parse_configuration},
      {"expert_map", "moe.expert_map", read_map_of_experts},
      {"machine", "a machine file", parse_machine_file},
      {"sweep", "a sweep", read_sweep_file},
      {"model_config", "config.json of a Hugging Face model", read_model_config},
  };
}

}  // namespace sy::fuzz
