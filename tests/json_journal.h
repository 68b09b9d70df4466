// Journals of long tests: files with one JSON object per line.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

#include "kernels/check.h"
#include "src/system/files.h"
#include "src/text/json.h"

namespace sy {

// Calls `visit` with each object of a journal. Throws InputError that names the line if `visit`
// throws JsonError or InputError. No-op if there is no file.
inline void read_json_journal(const std::filesystem::path& path, const std::function<void(const Json&)>& visit) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  read_lines(path, [&](const TextLine& line) {
    try {
      visit(Json::parse(line.text));
    } catch (const JsonError& e) {
      bad_input("{}: line {}: {}", path.string(), line.number, e.what());
    } catch (const InputError& e) {
      bad_input("{}: line {}: {}", path.string(), line.number, e.what());
    }
  });
}

// Appends an object. Throws Failure.
inline void append_to_journal(const std::filesystem::path& path, const Json& json) {
  std::FILE* const file = open_for_writing(path, "a");
  const std::string line = json_text(json, -1);
  const bool written = std::fwrite(line.data(), 1, line.size(), file) == line.size();
  if (std::fclose(file) != 0 || !written) fail("cannot write {}", path.string());
}

}  // namespace sy
