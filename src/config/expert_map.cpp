// Reading of moe.expert_map: the logical expert of each physical one.
#include "dist/errors.h"
#include "dist/file_readers.h"
#include "dist/rank_settings.h"
#include "src/config/layout.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// The logical expert of each physical expert of this layer, out of the file's layers. Throws
// JsonError if an entry is absent or of another type, InputError if the layer is absent or the list
// is no permutation.
std::vector<Index> layer_map(const Json& layers, Index layer, Index experts, const std::string& file) {
  for (const Json& entry : layers.elements()) {
    if (entry["layer"].get<std::int64_t>() != layer) continue;
    std::vector<Index> map;
    std::vector<bool> seen(static_cast<std::size_t>(experts));
    for (const Json& expert : entry["order"].elements()) {
      const Index e = expert.get<std::int64_t>();
      if (e < 0 || e >= experts || seen[e])
        bad_input("moe.expert_map = {}: layer {} has expert {} {}: each of 0 to {} occurs once", file, layer, e,
                  e < 0 || e >= experts ? "of no such number" : "twice", experts - 1);
      seen[e] = true;
      map.push_back(e);
    }
    if (std::ssize(map) != experts)
      bad_input("moe.expert_map = {}: layer {} has {} of the {} experts: list all of them", file, layer, map.size(),
                experts);
    return map;
  }
  bad_input("moe.expert_map = {}: it has no layer {}: make it from a run of this model", file, layer);
}

// Formats the logical experts of each MoE layer in physical order, as "0 2 1 3; 1 0 2 3".
std::string order_text(const std::vector<std::vector<Index>>& layers) {
  std::vector<std::string> texts;
  for (const std::vector<Index>& order : layers) texts.push_back(fmt::format("{}", fmt::join(order, " ")));
  return join(texts);
}

// Returns the text of moe.expert_map, which must be set. Throws InputError.
std::string expert_map_text(const Config& config) {
  try {
    return read_file(config.moe.expert_map);
  } catch (const InputError& e) {
    bad_input("moe.expert_map: {}; `switchyard experts --placement-file` writes such a file", e.what());
  }
}

// Reads the text of moe.expert_map. Throws InputError.
std::vector<std::vector<Index>> parse_expert_map(const std::string& text, const Config& config) {
  const std::string& file = config.moe.expert_map;
  std::vector<std::vector<Index>> maps;
  try {
    const Json json = Json::parse(text);
    for (Index layer = 0; layer < config.num_blocks(); ++layer)
      if (config.is_moe(layer)) maps.push_back(layer_map(json["layers"], layer, config.moe.experts, file));
  } catch (const JsonError& e) {
    bad_input("moe.expert_map = {} is no expert map ({}): give a file of `switchyard experts --placement-file`", file,
              e.what());
  }
  return maps;
}

}  // namespace

std::vector<std::vector<Index>> read_expert_map(const Config& config) {
  if (config.moe.expert_map.empty()) return {};
  return parse_expert_map(expert_map_text(config), config);
}

std::vector<std::vector<Index>> read_expert_map(Comm& world, const Config& config) {
  const std::string& file = config.moe.expert_map;
  if (file.empty()) return {};
  std::vector<std::vector<Index>> maps;
  const std::string text = read_for_all_ranks(world, file, [&] { return expert_map_text(config); });
  agree_on_errors(world, [&] { maps = parse_expert_map(text, config); });
  check_rank_settings(world, {{"the order of moe.expert_map", order_text(maps)}},
                      "let all ranks read the same file moe.expert_map");
  return maps;
}

}  // namespace sy
