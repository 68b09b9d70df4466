#include "dist/step_times.h"

namespace sy {
namespace {

struct NamedPart {
  std::string_view span;
  StepPart part;
};
// The first span of a part names it.
constexpr NamedPart spans[] = {
    {"data", StepPart::data},
    {"embedding", StepPart::embedding},
    {"gradient of the embedding", StepPart::embedding},
    {"attention", StepPart::attention},
    {"mlp", StepPart::mlp},
    {"route", StepPart::route},
    {"load-balance loss", StepPart::route},
    {"dispatch", StepPart::dispatch},
    {"experts", StepPart::experts},
    {"gradients of experts", StepPart::experts},
    {"shared experts", StepPart::shared_experts},
    {"combine", StepPart::combine},
    {"output and loss", StepPart::output},
    {"gradients", StepPart::gradients},
    {"optimizer", StepPart::optimizer},
    {"weights", StepPart::optimizer},
    {"update of the weights", StepPart::optimizer},
    {"update of matrices", StepPart::optimizer},
    {"new weights", StepPart::new_weights},
    {"statistics", StepPart::statistics},
};

}  // namespace

std::string_view name_of(StepPart part) {
  for (const NamedPart& named : spans)
    if (named.part == part) return named.span;
  return "other";
}

StepPart StepTimes::learn(const char* name) {
  StepPart part = inherited;
  for (const NamedPart& named : spans)
    if (named.span == name) part = named.part;
  known_.emplace_back(name, part);
  return part == inherited ? around() : part;
}

}  // namespace sy
