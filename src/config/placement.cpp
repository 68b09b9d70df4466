// Reading of moe.placement: the logical expert of each physical one.
#include "src/config.h"
#include "src/system/files.h"
#include "src/text/json.h"

namespace sy {
namespace {

// The logical expert of each physical expert of this layer, out of the file's layers. Throws
// JsonError if an entry is absent or of another type, InputError if the layer is absent or the list
// is no permutation.
std::vector<Index> order_of(const Json& layers, Index layer, Index experts, const std::string& file) {
  for (const Json& entry : layers.elements()) {
    if (entry["layer"].get<std::int64_t>() != layer) continue;
    std::vector<Index> order;
    std::vector<bool> placed(static_cast<std::size_t>(experts));
    for (const Json& expert : entry["order"].elements()) {
      const Index e = expert.get<std::int64_t>();
      if (e < 0 || e >= experts || placed[e])
        bad_input("moe.placement = {}: layer {} has expert {} {}: each of 0 to {} has one place", file, layer, e,
                  e < 0 || e >= experts ? "of no such number" : "twice", experts - 1);
      placed[e] = true;
      order.push_back(e);
    }
    if (std::ssize(order) != experts)
      bad_input("moe.placement = {}: layer {} has {} of the {} experts: give all of them a place", file, layer,
                order.size(), experts);
    return order;
  }
  bad_input("moe.placement = {}: it has no layer {}: make it from a run of this model", file, layer);
}

}  // namespace

std::vector<std::vector<Index>> read_placement(const Config& config) {
  const std::string& file = config.moe.placement;
  std::vector<std::vector<Index>> orders;
  if (file.empty()) return orders;
  std::string text;
  try {
    text = read_file(file);
  } catch (const InputError& e) {
    bad_input("moe.placement: {}; `switchyard experts --placement-file` writes such a file", e.what());
  }
  try {
    const Json json = Json::parse(text);
    for (Index layer = 0; layer < config.model.layers; ++layer)
      if (config.is_moe(layer)) orders.push_back(order_of(json["layers"], layer, config.moe.experts, file));
  } catch (const JsonError& e) {
    bad_input("moe.placement = {} is no placement ({}): give a file of `switchyard experts --placement-file`", file,
              e.what());
  }
  return orders;
}

}  // namespace sy
