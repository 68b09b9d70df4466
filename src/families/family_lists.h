// The parts of families() (family.h). Only families.cpp calls them.
#pragma once

#include <vector>

#include "src/families/family.h"

namespace sy {

std::vector<Family> dense_families();
std::vector<Family> moe_families();
std::vector<Family> encoder_families();

}  // namespace sy
