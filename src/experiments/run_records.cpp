#include "src/experiments/run_records.h"

#include <algorithm>

#include "src/system/files.h"

namespace sy {
namespace {

// Returns the record of the last start of a run; null if there is none.
Json last_record(const std::filesystem::path& run) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(run / provenance_name, error)) return {};
  std::string text = read_file(run / provenance_name);
  while (text.ends_with('\n')) text.pop_back();
  return parse_record(text.substr(text.rfind('\n') + 1));  // npos + 1 is 0
}

}  // namespace

RunHardware hardware_of(const std::filesystem::path& run) {
  const Json record = last_record(run);
  const Json *const hosts = record.find("hosts"), *const gpus = record.find("gpus");
  return {hosts ? static_cast<int>(hosts->size()) : 0, gpus && !gpus->empty()};
}

Json with_runs(Json record, const std::vector<Training>& runs) {
  constexpr const char* names[] = {"hosts", "processors", "gpus", "data_digest"};
  std::vector<Json> values[std::size(names)];
  const auto add = [](std::vector<Json>& list, const Json& value) {
    if (!value.is_null() && std::ranges::find(list, value) == list.end()) list.push_back(value);
  };
  for (const Training& run : runs) {
    const Json last = last_record(run.run);
    for (std::size_t i = 0; i < std::size(names); ++i) {
      const Json* const value = last.find(names[i]);
      if (value && value->is_array())
        for (const Json& element : *value) add(values[i], element);
      else if (value)
        add(values[i], *value);
    }
  }
  if (values[0].empty() || !record.is_object()) return record;
  for (std::size_t i = 0; i < std::size(names); ++i) record[names[i]] = Json(values[i]);
  if (const std::vector<Json>& digests = values[3]; digests.size() == 1) record[names[3]] = digests.front();
  return record;
}

}  // namespace sy
