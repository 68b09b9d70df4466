// Common parts of the output of plan, scale and sweep: JSON documents (docs/reference/json.md), and
// numbered notes under a table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

// Notes in order of first use, without duplicates. Numbers start at 1.
class Footnotes {
 public:
  // Adds new texts, and returns the marks of a cell, such as " [1, 3]"; "" if `texts` is empty.
  std::string marks(const std::vector<std::string>& texts);
  // Returns one line per note: before + "[1] TEXT".
  std::string lines(const std::string& before = "") const;
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace sy
