#include "src/experiments/runs.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "src/experiments/outcome.h"
#include "src/io/checkpoint.h"
#include "src/io/lock.h"
#include "src/io/manifest.h"
#include "src/system/files.h"
#include "src/text/ini.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

constexpr Index most_folders = 100'000, most_depth = 32;
constexpr std::size_t speed_steps = 20;  // the speed is the median of these steps

// Settings of a run; 0 if its configuration does not set them.
struct RunSettings {
  Index steps = 0, validate_every = 0, patience = 0;
  double target_loss = 0;
};
RunSettings read_settings(const fs::path& file) {
  constexpr Index most_bytes = 1 << 20;
  RunSettings settings;
  const std::map<std::string_view, Index*> wanted = {{"train.steps", &settings.steps},
                                                     {"train.validate_every", &settings.validate_every},
                                                     {"train.patience", &settings.patience}};
  const IniText ini = read_ini(read_file(file, most_bytes));
  for (const IniEntry& entry : ini.entries) {
    const auto read_to = [&](auto& number) {
      std::from_chars(entry.value.data(), entry.value.data() + entry.value.size(), number);
    };
    if (const auto found = wanted.find(entry.key); found != wanted.end()) read_to(*found->second);
    if (entry.key == "train.target_loss") read_to(settings.target_loss);
  }
  if (settings.steps <= 0) bad_input("{} has no train.steps", file.string());
  return settings;
}

// Adds the facts of one line of metrics.jsonl. Returns false if it is damaged.
bool add_line(std::string_view text, RunInfo& run, std::vector<double>& speeds) {
  const std::optional<Json> line = Json::try_parse(text);
  const Index step = line ? integer_at(*line, "step").value_or(0) : 0;
  if (step < 1) return false;
  const auto number = [](const Json& of, const char* key) { return number_at(of, key).value_or(std::nan("")); };
  run.step = step;
  run.loss = number(*line, "loss");
  if (const double speed = number(*line, "tokens_per_second"); std::isfinite(speed)) speeds.push_back(speed);
  if (const Json* validation = line->find("validation"); validation && validation->is_object()) {
    run.validation = number(*validation, "loss");
    run.validation_step = run.step;
  }
  return true;
}

// Reads the end of metrics.jsonl, as files can be large. Reads more, up to a bound, if the end has
// no validation and there may be one.
void read_metrics(const fs::path& path, bool validates, RunInfo& run) {
  constexpr Index first = 256 << 10, most = 16 << 20;
  const InputFile file(path);
  for (Index window = first;; window *= 4) {
    const Index from = std::max<Index>(0, file.size() - window);
    std::string tail(static_cast<std::size_t>(file.size() - from), '\0');
    tail.resize(file.read_at(from, tail));
    std::string_view text = tail;
    // The window may begin inside a line, and a kill can leave a torn last line.
    if (from > 0) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    text = text.substr(0, text.rfind('\n') + 1);
    Index lines = 0, damaged = 0;
    std::vector<double> speeds;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      ++lines;
      damaged += !add_line(text.substr(0, end), run, speeds);
      text.remove_prefix(end + 1);
    }
    const bool enough = lines > 0 && (!validates || run.validation_step >= 0);
    if (from > 0 && !enough && window < most) continue;
    if (speeds.size() > speed_steps) speeds.erase(speeds.begin(), speeds.end() - speed_steps);
    run.tokens_per_second = median(speeds);
    if (damaged > 0) bad_input("{}: of its last {} lines, {} cannot be read", path.string(), lines, damaged);
    if (lines == 0 && from > 0) bad_input("{} has no whole line in its last {}", path.string(), megabytes(window));
    return;
  }
}

// Checks the newest checkpoint: its manifest and the sizes of its files.
void check_checkpoint(const fs::path& dir) {
  try {
    const std::vector<std::string> problems = file_problems(dir, read_manifest(dir), CheckFiles::sizes);
    if (!problems.empty()) bad_input("{}", problems.front());
  } catch (const InputError&) {
    if (file_exists(dir)) throw;  // otherwise training has deleted it meanwhile
  }
}

// Returns whether the checkpoint says that training has stopped early.
bool stopped_early(const fs::path& checkpoint, const RunSettings& train) {
  if (train.patience == 0 && train.target_loss == 0) return false;
  try {
    const ValidationRecord record = read_state(checkpoint).validation;
    return (train.patience > 0 && record.since_lowest >= train.patience) ||
           (train.target_loss > 0 && record.lowest <= train.target_loss);
  } catch (const InputError&) {
    return false;
  }
}

bool is_run(const fs::path& folder) {
  std::error_code error;
  const auto there = [&](const char* name) {
    return fs::symlink_status(folder / name, error).type() != fs::file_type::not_found && !error;
  };
  return there("config.ini") + there("metrics.jsonl") + there("checkpoints") >= 2 ||
         (there("config.ini") && there(lock_name));
}

// Returns whether a folder of this name is searched.
bool is_searched(const std::string& name) {
  return !name.starts_with('.') && !name.ends_with(".tmp");
}

void search(const fs::path& folder, Index depth, Index& folders, RunList& out) {
  if (++folders > most_folders) return;
  if (is_run(folder)) {
    out.runs.push_back(inspect_run(folder));
    return;
  }
  std::error_code error;
  if (fs::symlink_status(folder / "dataset.ini", error).type() == fs::file_type::regular) return;
  std::vector<fs::path> below;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->symlink_status(ignored).type() == fs::file_type::directory && is_searched(it->path().filename().string()))
      below.push_back(it->path());
  }
  if (error) out.warnings.push_back(fmt::format("{} is not searched: {}", folder.string(), error.message()));
  if (depth == most_depth && !below.empty()) {
    out.warnings.push_back(
        fmt::format("{} is not searched: it lies {} folders deep", below.front().string(), depth + 1));
    return;
  }
  std::sort(below.begin(), below.end());
  for (const fs::path& path : below) search(path, depth + 1, folders, out);
}

}  // namespace

std::string name_of(RunState state) {
  static constexpr const char* names[] = {"running",     "done",        "stopped early", "stopped",
                                          "interrupted", "not started", "damaged"};
  return names[static_cast<int>(state)];
}

RunInfo inspect_run(const fs::path& folder) {
  RunInfo run;
  run.folder = folder;
  run.holder = lock_holder(folder);
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const Error& e) {
      if (run.problem.empty()) run.problem = e.what();
    }
  };
  RunSettings settings;
  attempt([&] { settings = read_settings(folder / "config.ini"); });
  run.steps = settings.steps;
  std::error_code error;
  const fs::path metrics = folder / "metrics.jsonl", checkpoints = checkpoints_of(folder);
  if (fs::symlink_status(metrics, error).type() != fs::file_type::not_found)
    attempt([&] { read_metrics(metrics, settings.validate_every > 0, run); });
  bool measured = false;
  attempt([&] {
    const std::vector<Index> steps = steps_in(checkpoints);
    // `scale` deletes the checkpoints of its runs.
    if (steps.empty()) {
      measured = run.steps > 0 && run.step >= run.steps && !file_exists(checkpoints, Links::keep);
      return;
    }
    run.checkpoint = steps.front();
    check_checkpoint(checkpoints / step_name(run.checkpoint));
  });
  run.step = std::max(run.step, run.checkpoint);
  const bool saved = measured || run.checkpoint == run.step;
  const bool has_lock_file = fs::symlink_status(folder / lock_name, error).type() != fs::file_type::not_found;
  run.state = !run.holder.empty()                                                ? RunState::running
              : !run.problem.empty()                                             ? RunState::damaged
              : run.step == 0                                                    ? RunState::not_started
              : saved && run.steps > 0 && run.step >= run.steps                  ? RunState::done
              : !saved                                                           ? RunState::interrupted
              : stopped_early(checkpoints / step_name(run.checkpoint), settings) ? RunState::stopped_early
              : has_lock_file                                                    ? RunState::interrupted
                                                                                 : RunState::stopped;
  return run;
}

RunList find_runs(const fs::path& folder) {
  if (!is_folder(folder)) bad_input("{} is no folder: give a folder that holds runs", folder.string());
  RunList out;
  Index folders = 0;
  search((folder / "").parent_path(), 0, folders, out);
  if (folders > most_folders)
    out.warnings.push_back(
        fmt::format("only the first {} folders below {} are searched: give one that is nearer to the runs",
                    most_folders, folder.string()));
  return out;
}

std::string runs_text(const RunList& list, const fs::path& folder) {
  if (list.runs.empty()) return fmt::format("there is no run below {}\n", visible(folder.string()));
  Table table({"run", "state", "step", "of", "loss", "validation", "tokens/s", "checkpoint"});
  std::string notes;
  for (const RunInfo& run : list.runs) {
    std::string validation = number_text(run.validation, 4);
    if (run.validation_step >= 0 && run.validation_step != run.step)
      validation += fmt::format(" (step {})", run.validation_step);
    table.row({run.folder.string(), name_of(run.state), std::to_string(run.step),
               run.steps > 0 ? std::to_string(run.steps) : "-", number_text(run.loss, 4), validation,
               short_count_text(run.tokens_per_second), run.checkpoint < 0 ? "-" : std::to_string(run.checkpoint)});
    if (!run.problem.empty()) notes += fmt::format("damaged: {}\n", visible(run.problem));
  }
  return table.str() + notes;
}

Json runs_json(const RunList& list, const fs::path& folder) {
  Json runs = Json::array();
  const auto known = [](Index step) { return step < 0 ? Json() : Json(step); };
  for (const RunInfo& run : list.runs)
    runs.push_back({{"run", run.folder.string()},
                    {"state", name_of(run.state)},
                    {"step", run.step},
                    {"steps", run.steps > 0 ? Json(run.steps) : Json()},
                    {"loss", run.loss},
                    {"validation_loss", run.validation},
                    {"validation_step", known(run.validation_step)},
                    {"tokens_per_second", run.tokens_per_second},
                    {"checkpoint", known(run.checkpoint)},
                    {"holder", text_or_null(run.holder)},
                    {"problem", text_or_null(run.problem)}});
  return {{"folder", folder.string()}, {"runs", std::move(runs)}};
}

}  // namespace sy
