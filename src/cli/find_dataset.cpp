#include "src/cli/options.h"
#include "src/config.h"
#include "src/io/checkpoint.h"
#include "src/io/manifest.h"
#include "src/text/words.h"

namespace sy {

namespace fs = std::filesystem;

fs::path find_dataset(const fs::path& step_dir, const TrainState& state, const Config& config) {
  const fs::path recorded = state.dataset, data = config.data.path;
  // Training was started in the folder that makes the relative data.path the recorded one.
  fs::path started;
  if (!data.is_absolute() && state.dataset.ends_with("/" + data.string()))
    started = state.dataset.substr(0, state.dataset.size() - data.string().size());
  const fs::path run_then = (started / config.run.dir).lexically_normal();
  std::vector<fs::path> places{recorded};
  if (const auto run_now = run_of(step_dir); run_now && run_then.is_absolute()) {
    const fs::path beside = *run_now / recorded.lexically_normal().lexically_relative(run_then);
    places.insert(data.is_absolute() ? places.end() : places.begin(), beside.lexically_normal());
  }
  std::error_code ignored;
  for (const fs::path& place : places)
    if (fs::exists(place / "dataset.ini", ignored)) return place;
  std::vector<std::string> names;
  for (const fs::path& place : places) names.push_back(place.string());
  bad_input("the data set that {} was trained on is not at {}: give its folder with --data", step_dir.string(),
            join(names, " nor at "));
}

}  // namespace sy
