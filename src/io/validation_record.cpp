#include "src/io/validation_record.h"

#include <cmath>

#include "kernels/check.h"
#include "src/text/json.h"

namespace sy {

bool ValidationRecord::add(Index step, double loss, Index keep_best) {
  if (std::isfinite(loss) && loss < lowest) {
    lowest = loss;
    lowest_step = step;
    since_lowest = 0;
  } else {
    ++since_lowest;
  }
  std::size_t at = best.size();
  if (std::isfinite(loss)) {
    while (at > 0 && loss < best[at - 1].loss) --at;
    best.insert(best.begin() + static_cast<std::ptrdiff_t>(at), {step, loss});
  }
  const auto limit = static_cast<std::size_t>(keep_best);
  if (best.size() > limit) best.resize(limit);
  return std::isfinite(loss) && at < limit;
}

void ValidationRecord::retain(const std::set<Index>& steps) {
  std::erase_if(best, [&](const Entry& entry) { return !steps.contains(entry.step); });
}

std::string to_text(const ValidationRecord& record) {
  Json best = Json::array();
  for (const ValidationRecord::Entry& entry : record.best) best.push_back({{"step", entry.step}, {"loss", entry.loss}});
  return Json{{"lowest", std::isfinite(record.lowest) ? Json(record.lowest) : Json()},
              {"lowest_step", record.lowest_step},
              {"since_lowest", record.since_lowest},
              {"best", std::move(best)}}
      .dump();
}

ValidationRecord parse_validation_record(const std::string& text, const std::string& where) {
  constexpr Index max_value = Index{1} << 53;
  try {
    const Json json = Json::parse(text);
    ValidationRecord record;
    if (!json.at("lowest").is_null()) record.lowest = json.at("lowest").get<double>();
    record.lowest_step = json.at("lowest_step").get<Index>();
    record.since_lowest = json.at("since_lowest").get<Index>();
    bool good = record.lowest_step >= -1 && record.lowest_step <= max_value && record.since_lowest >= 0 &&
                record.since_lowest <= max_value && std::isfinite(record.lowest) == (record.lowest_step >= 0);
    for (const Json& entry : json.at("best").elements()) {
      record.best.push_back({entry.at("step").get<Index>(), entry.at("loss").get<double>()});
      const ValidationRecord::Entry& last = record.best.back();
      good &= last.step >= 0 && last.step <= max_value && std::isfinite(last.loss) &&
              (record.best.size() == 1 || record.best[record.best.size() - 2].loss <= last.loss);
    }
    if (good) return record;
  } catch (const JsonError&) {
  }
  bad_input("{} has a damaged record of validations: use another checkpoint", where);
}

}  // namespace sy
