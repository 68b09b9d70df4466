#include "src/io/manifest.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "src/io/checkpoint.h"
#include "src/io/digest.h"
#include "src/io/files.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

constexpr const char* format_name = "switchyard checkpoint";

// The names in a folder; none where it cannot be read.
std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.insert(it->path().filename().string());
  return names;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = format_name;
  json["version"] = checkpoint_format;
  json["step"] = manifest.step;
  json["files"] = nlohmann::ordered_json::object();
  for (const Manifest::File& file : manifest.files)
    json["files"][file.name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  json["sha256"] = to_hex(sha256(json.dump()));
  return json.dump(2) + "\n";
}

Manifest read_manifest(const fs::path& step_dir) {
  const fs::path path = step_dir / manifest_name;
  std::error_code error;
  if (!fs::is_directory(step_dir, error))
    bad_input("{} is no checkpoint folder: give a run folder or a step folder within RUN/checkpoints",
              step_dir.string());
  if (!fs::exists(path, error))
    bad_input("{} is missing: {} is no checkpoint, or not a whole one", path.string(), step_dir.string());
  const std::string text = read_file(path);
  Manifest manifest;
  try {
    const auto json = nlohmann::ordered_json::parse(text);
    if (json.at("format") != format_name) bad_input("{} does not describe a checkpoint of Switchyard", path.string());
    if (const Index version = json.at("version"); version != checkpoint_format)
      bad_input("{} has format version {}, this program reads version {}: use the program that wrote it", path.string(),
                version, checkpoint_format);
    manifest.step = json.at("step");
    for (const auto& [name, file] : json.at("files").items())
      manifest.files.push_back({name, file.at("bytes"), file.at("sha256")});
  } catch (const nlohmann::json::exception&) {
    bad_input("{} is damaged: use another checkpoint", path.string());
  }
  if (to_text(manifest) != text) bad_input("{} is damaged: use another checkpoint", path.string());
  return manifest;
}

std::vector<std::string> file_problems(const fs::path& step_dir, const Manifest& manifest, CheckFiles check) {
  std::vector<std::string> problems;
  std::set<std::string> foreign = names_in(step_dir);
  foreign.erase(manifest_name);
  for (const Manifest::File& file : manifest.files) {
    const fs::path path = step_dir / file.name;
    std::error_code error;
    if (foreign.erase(file.name) == 0) {
      problems.push_back(path.string() + " is missing");
    } else if (const auto bytes = fs::file_size(path, error); error) {
      problems.push_back(fmt::format("{} cannot be read: {}", path.string(), error.message()));
    } else if (static_cast<Index>(bytes) != file.bytes) {
      problems.push_back(fmt::format("{} has {} bytes instead of {}", path.string(), bytes, file.bytes));
    } else if (check == CheckFiles::digests) {
      try {
        if (to_hex(sha256_file(path)) != file.sha256)
          problems.push_back(path.string() + " is damaged: its SHA-256 is not the manifest's");
      } catch (const InputError& e) {
        problems.push_back(e.what());
      }
    }
  }
  for (const std::string& name : foreign)
    problems.push_back((step_dir / name).string() + " does not belong to this checkpoint");
  return problems;
}

fs::path checkpoints_of(const fs::path& run_dir) {
  return run_dir / "checkpoints";
}
std::optional<fs::path> run_of(const fs::path& step_dir) {
  // The empty name makes sure of a slash at the end, whose parent is the folder itself.
  const fs::path folder = (fs::absolute(step_dir) / "").lexically_normal().parent_path();
  const fs::path checkpoints = folder.parent_path();
  if (checkpoints != checkpoints_of(checkpoints.parent_path())) return {};
  return checkpoints.parent_path();
}
std::string step_name(Index step) {
  return fmt::format("step-{:08}", step);
}
std::string shard_name(int rank) {
  return fmt::format("shard-{:05}.h5", rank);
}

std::optional<Index> step_of(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  Index step = -1;
  if (!name.starts_with(prefix)) return {};
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (step < 0 || step_name(step) != name) return {};
  return step;
}

std::vector<Index> steps_in(const fs::path& checkpoints) {
  std::vector<Index> steps;
  for (const std::string& name : names_in(checkpoints))
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<std::string> verify_checkpoint(const fs::path& step_dir) {
  try {
    return file_problems(step_dir, read_manifest(step_dir), CheckFiles::digests);
  } catch (const InputError& e) {
    return {e.what()};
  }
}

fs::path resolve_checkpoint(const fs::path& step_or_run, std::vector<std::string>* warnings) {
  const auto none = [&](const std::string& why) {
    bad_input("{}: give a run folder or a step folder within RUN/checkpoints", why);
  };
  std::error_code error;
  if (!fs::is_directory(step_or_run, error)) none(step_or_run.string() + " is no folder");
  const fs::path checkpoints = checkpoints_of(step_or_run);
  // A run has its configuration before its first checkpoint.
  const bool run = fs::is_directory(checkpoints, error) || fs::exists(step_or_run / "config.ini", error);
  if (!run || fs::exists(step_or_run / manifest_name, error)) {
    const auto problems = verify_checkpoint(step_or_run);
    if (problems.empty()) return (step_or_run / "").parent_path();  // without a slash at the end
    bad_input("{} is no whole checkpoint: {}", step_or_run.string(), fmt::join(problems, "; "));
  }
  std::string damaged;
  for (Index step : steps_in(checkpoints)) {
    const fs::path dir = checkpoints / step_name(step);
    const auto problems = verify_checkpoint(dir);
    if (problems.empty()) return dir;
    const std::string warning =
        fmt::format("checkpoint {} is passed over: {}", dir.string(), fmt::join(problems, "; "));
    if (warnings) warnings->push_back(warning);
    damaged += (damaged.empty() ? "" : "; ") + warning;
  }
  if (damaged.empty())
    bad_input("{} holds no checkpoint yet: wait until the run has written its first", step_or_run.string());
  bad_input("{} holds no whole checkpoint: {}", checkpoints.string(), damaged);
}

}  // namespace sy
