#include <fmt/format.h>

#include <string>

#include "src/families/family.h"
#include "src/text/strings.h"

namespace sy {
namespace {

std::string known_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.name);
  return join(names, ", ");
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> list = dense_families();
    for (const auto& more : {moe_families(), encoder_families()}) list.insert(list.end(), more.begin(), more.end());
    return list;
  }();
  return all;
}

const Family& family_named(const std::string& name) {
  for (const Family& family : families())
    if (family.name == name) return family;
  bad_input("there is no family '{}': there are {}", name, known_names());
}

const Family& family_of(const Json& config) {
  const Json* type = config.find("model_type");
  if (!type || !type->is_string()) bad_input("it has no model_type: give the config.json of a model");
  for (const Family& family : families())
    if (family.name == type->get<std::string>()) return family;
  bad_input("models of type {} cannot be read: there are {}", type->get<std::string>(), known_names());
}

}  // namespace sy
