#include "dist/step_times.h"

namespace sy {
namespace {

struct NamedSection {
  std::string_view span;
  StepSection section;
};
// The first span of a section names it.
constexpr NamedSection spans[] = {
    {"data", StepSection::data},
    {"embedding", StepSection::embedding},
    {"gradient of the embedding", StepSection::embedding},
    {"attention", StepSection::attention},
    {"mlp", StepSection::mlp},
    {"route", StepSection::route},
    {"load-balance loss", StepSection::route},
    {"dispatch", StepSection::dispatch},
    {"experts", StepSection::experts},
    {"gradients of experts", StepSection::experts},
    {"shared experts", StepSection::shared_experts},
    {"combine", StepSection::combine},
    {"output and loss", StepSection::output},
    {"gradients", StepSection::gradients},
    {"optimizer", StepSection::optimizer},
    {"weights", StepSection::optimizer},
    {"update of the weights", StepSection::optimizer},
    {"update of matrices", StepSection::optimizer},
    {"new weights", StepSection::new_weights},
    {"statistics", StepSection::statistics},
};

}  // namespace

std::string_view name_of(StepSection section) {
  for (const NamedSection& named : spans)
    if (named.section == section) return named.span;
  return "other";
}

StepSection StepTimes::learn(const char* name) {
  StepSection section = inherited;
  for (const NamedSection& named : spans)
    if (named.span == name) section = named.section;
  known_.emplace_back(name, section);
  return section == inherited ? around() : section;
}

}  // namespace sy
