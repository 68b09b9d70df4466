// Comparison of a scaling experiment with an earlier result: `switchyard scale --check FILE`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/experiments/scale.h"

namespace sy {

// Reads a document of `switchyard scale`. Throws InputError if the file is none.
Json read_scale_json(const std::filesystem::path& file);

// Throws InputError that lists the differences if the earlier result is of another environment or
// configuration. Another build of the program is not a difference. file: its name, for the error.
void check_comparable(const Json& earlier, const ScaleResult& result, const std::string& file);

struct ScaleComparison {
  struct Point {
    std::string name;            // "tp 1 ep 2 etp 1 on 2 ranks, batch 8, own routing"
    double before = 0, now = 0;  // tokens/s; now: NaN if its runs failed
    double change() const { return now / before - 1; }
    bool fell = false;  // by the limit or more, or its runs failed
  };
  std::string file;
  double limit = 0;           // share
  std::vector<Point> points;  // points of both results
  std::size_t missing = 0;    // points of the earlier result that this one does not have
  std::size_t reused = 0;     // points whose runs an earlier call had measured
  bool fell() const;
};
// Compares the throughput of points with the same layout, batch, micro-batch and routing. Throws
// InputError if there are none. limit: share by which a throughput may not fall.
ScaleComparison compare_scale(const Json& earlier, const ScaleResult& result, const std::string& file, double limit);
std::string comparison_text(const ScaleComparison& comparison);
Json comparison_json(const ScaleComparison& comparison);

}  // namespace sy
