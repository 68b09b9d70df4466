// Reading of moe.expert_map: the logical expert of each physical one.
#include "src/config/layout.h"
#include "src/system/files.h"
#include "src/text/json.h"

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

}  // namespace

std::vector<std::vector<Index>> read_expert_map(const Config& config) {
  const std::string& file = config.moe.expert_map;
  std::vector<std::vector<Index>> maps;
  if (file.empty()) return maps;
  std::string text;
  try {
    text = read_file(file);
  } catch (const InputError& e) {
    bad_input("moe.expert_map: {}; `switchyard experts --placement-file` writes such a file", e.what());
  }
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

}  // namespace sy
