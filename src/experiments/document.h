// Common parts of the JSON documents of plan, scale and sweep (docs/reference/json.md).
#pragma once

#include <string_view>

#include "src/config.h"
#include "src/text/json.h"

namespace sy {

// Raise it if a field is removed or changes its meaning. A new field does not raise it.
inline constexpr int json_version = 1;

// Returns the first fields of a document: format "switchyard-COMMAND", version and provenance. The
// last is the record of the call (src/provenance/provenance.h).
Json json_document(std::string_view command, const Json& provenance);

// Returns every key of a configuration by its section, with a value of the key's type: {"model":
// {"layers": 4, ...}, ...}.
Json config_json(const Config& config);

}  // namespace sy
