// Templates in the subset of Jinja that chat templates use, with the results of Jinja 3.1 under the
// options of transformers: trim_blocks and lstrip_blocks.
//
// Statements: for, if, set, macro, break, continue, generation, raw and comments. Expressions: all,
// with the usual methods of strings and objects. filters.cpp and tests.cpp have the tables of
// filters and tests. Other statements, such as include, are errors. Only namespaces change.
//
// strftime_now is undefined, so that a rendering does not depend on the date. A template that calls
// it without a test for it is an error.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kernels/check.h"
#include "kernels/types.h"
#include "src/text/json.h"

namespace sy {

// Thrown for a template that does not parse or render: "NAME: line 3: reason".
struct TemplateError : InputError {
  TemplateError(const std::string& name, int at, const std::string& reason);
  int line;  // from 1
};

// Bounds of one rendering. Templates come from files of others.
struct TemplateLimits {
  Index output_bytes = 64 << 20;
  Index steps = 20'000'000;              // evaluated expressions and statements
  Index created_bytes = Index{1} << 30;  // of all strings and lists together
};

namespace templates {
struct Program;
}

class Template {
 public:
  // name: of errors, such as a path. Throws TemplateError.
  Template(std::string name, std::string_view source);
  // Returns the text for these variables, an object. Throws TemplateError. Threads may call it
  // concurrently.
  std::string render(const Json& variables, const TemplateLimits& limits = {}) const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::shared_ptr<const templates::Program> program_;
};

}  // namespace sy
