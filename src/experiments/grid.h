// The grid of trainings to compare: the settings that vary, and the names of the runs. All
// functions are pure, except read_sweep.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sy {

// Keys that vary together, and their values.
struct Variation {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;  // [choice][key]
};
// Parses "moe.top_k=1,2,4", or "moe.top_k:moe.d_ff=1:256,2:128" for keys that vary together. A
// value in double quotes may contain commas and colons. Throws InputError.
Variation parse_variation(const std::string& text);

// Returns every combination of the variations' choices, as settings "key=value". The last variation
// varies fastest. If nothing varies, it returns one combination without settings. Throws InputError
// if two variations have the same key, or if there are more than 10,000 combinations.
std::vector<std::vector<std::string>> combinations(const std::vector<Variation>& variations);

// A sweep: a configuration, settings for all runs, and variations.
struct Sweep {
  std::string name;  // file name without its extension
  std::filesystem::path base;
  std::vector<std::string> settings;  // "--key=value", for every run
  std::vector<Variation> variations;
};
// Reads a file with this section, and settings for all runs in other sections:
//   [sweep]
//   base = ../ablations.ini           # a configuration; relative to this file
//   vary = model.norm=rmsnorm,none    # may be repeated; all combinations are trained
//
// A file without that section is a configuration, and nothing varies. Throws InputError that names
// file and line.
Sweep read_sweep(const std::filesystem::path& file);

// Returns the folder name of a run with these settings "key=value": the settings joined, or "base"
// if there are none.
std::string folder_name(const std::vector<std::string>& settings);

}  // namespace sy
