// What the JSON documents of plan, scale and sweep have in common (docs/reference/json.md).
#pragma once

#include <string_view>

#include "src/config.h"
#include "src/text/json.h"

namespace sy {

// Raise it if a field goes away or changes its meaning; new fields leave it as it is.
inline constexpr int json_version = 1;

// Returns the first fields of a document: format "switchyard-COMMAND", version, and provenance,
// which is the program with its version, commit and options, the host, and the time (UTC).
Json json_document(std::string_view command);

// Every key of a configuration by its section, as the type that the key has: {"model": {"layers":
// 4, ...}, ...}.
Json config_json(const Config& config);

}  // namespace sy
