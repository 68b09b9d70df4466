#include "tests/fuzz/targets.h"

#include <algorithm>
#include <exception>
#include <typeinfo>

#include "kernels/check.h"

namespace sy::fuzz {

const std::vector<Target>& targets() {
  static const std::vector<Target> all = [] {
    std::vector<Target> joined;
    for (const auto& topic : {checkpoint_targets, data_targets, setting_targets, record_targets})
      std::ranges::copy(topic(), std::back_inserter(joined));
    return joined;
  }();
  return all;
}

const Target* find_target(std::string_view name) {
  const auto found = std::ranges::find(targets(), name, &Target::name);
  return found == targets().end() ? nullptr : &*found;
}

Verdict run(const Target& target, Input input) {
  try {
    target.run(input);
    return {};
  } catch (const InputError& e) {
    return {.refusal = e.what()};
  } catch (const std::exception& e) {
    return {.failure = fmt::format("{}: {}", typeid(e).name(), e.what())};
  }
}

}  // namespace sy::fuzz
