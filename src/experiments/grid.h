// The trainings that are compared: what varies between them, and what each is called. Pure, but for read_sweep.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Keys that vary together, and the values that they take.
struct Variation {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;  // [choice][key]
};
// "moe.top_k=1,2,4"; or, of keys that vary together, "moe.top_k:moe.d_ff=1:256,2:128". Between double quotes, a value may hold
// commas and colons. Throws InputError.
Variation parse_variation(const std::string& text);

// Every combination of the variations' choices, as settings "key=value"; the last variation's vary fastest. One combination,
// without settings, where nothing varies. Throws InputError where a key is varied twice.
std::vector<std::vector<std::string>> combinations(const std::vector<Variation>& variations);

// What is to be swept: a configuration and settings for all runs, and what varies.
struct Sweep {
  std::string name;  // the file's, without its ending
  std::filesystem::path base;
  std::vector<std::string> settings;  // "--key=value", of every run
  std::vector<Variation> variations;
};
// A file with the section
//   [sweep]
//   base = ../ablations.ini                 # a configuration; relative to this file
//   vary = model.norm=rmsnorm,none          # and further lines like it, of which all combinations are trained
// and, in other sections, settings for all runs. A file without that section is a configuration, and nothing varies. Throws
// InputError that names file and line.
Sweep read_sweep(const std::filesystem::path& file);

// The folder of a run that has these settings, "key=value": they themselves, or "base" where there are none.
std::string folder_name(const std::vector<std::string>& settings);

}  // namespace sy
