// The journal of the fuzz targets: one JSON line for each run of libFuzzer.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace sy::fuzz {

struct Batch {
  std::string target;
  Index runs = 0, findings = 0;  // findings: 1 if an input ended it
  double seconds = 0;
  std::string commit = {}, date = {};
};

// Throws InputError if a line cannot be read. Empty if there is no file.
std::vector<Batch> read_journal(const std::filesystem::path& path);
// The table of all targets as Markdown.
std::string summary(const std::vector<Batch>& journal);

}  // namespace sy::fuzz
