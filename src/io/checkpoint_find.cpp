// Finding a checkpoint of a run, and verifying that it is whole.
#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "dist/file_activity.h"
#include "dist/file_readers.h"
#include "dist/machine_groups.h"
#include "dist/rank_settings.h"
#include "dist/runtime.h"
#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/system/files.h"
#include "src/text/strings.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

constexpr const char* abandoned = ".abandoned";

// Adds one warning about the foreign names in a folder, if there are any.
void warn_of_foreign_files(const fs::path& folder, const std::set<std::string>& foreign_files,
                           std::vector<std::string>* warnings) {
  if (foreign_files.empty() || !warnings) return;
  warnings->push_back(fmt::format("{} holds what is not Switchyard's, and is ignored: {}", folder.string(),
                                  join({foreign_files.begin(), foreign_files.end()}, ", ")));
}

// Returns the names in a checkpoint's folder that are not of its files.
std::set<std::string> foreign_files_of(const fs::path& step_dir, const Manifest& manifest) {
  std::set<std::string> names = names_in(step_dir);
  names.erase(manifest_name);
  for (const Manifest::File& file : manifest.files) names.erase(file.name);
  return names;
}

// Returns whether the name is of a checkpoint: complete, being written or deleted, or abandoned.
bool is_checkpoint_name(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return step_of(name).has_value();
  const std::string_view rest = std::string_view(name).substr(dot);
  return abandoned_step(name) || (step_of(name.substr(0, dot)) && rest.starts_with(".tmp"));
}

using Problems = std::vector<std::string>;

// verify_checkpoint(), or another function that does the same.
using Verify = std::function<Problems(const fs::path& dir, std::vector<std::string>* warnings)>;

// Returns whether the program that wrote the checkpoint has checked all its values.
bool has_checked_values(const CheckpointFolder& folder) {
  return open_checkpoint(folder).reader->has("/state", finite_attribute);
}

// Returns the reasons, other than damage, that prevent a resume from the checkpoint.
Problems resume_problems(const CheckpointFolder& folder) {
  try {
    read_state(folder);
    if (has_checked_values(folder)) return {};
    const std::string name = first_not_finite(CheckpointTensors(folder));
    if (name.empty()) return {};
    return {fmt::format("{} holds values that are not finite: the training had diverged", name)};
  } catch (const InputError& e) {
    return {e.what()};
  }
}

// Returns the content of a file of the manifest. Throws InputError with the problem if it is not
// that of the manifest, or if a reader must not open it.
std::string read_verified(const fs::path& step_dir, const Manifest& manifest, const Manifest::File& file) {
  std::string problem = size_problem(step_dir / file.name, file.bytes), content;
  if (problem.empty()) {
    content = read_file(step_dir / file.name, file.bytes);
    ++file_activity().opened;
    problem = content_problem(step_dir, manifest, file, content);
  }
  if (!problem.empty()) throw InputError(problem);
  return content;
}

// Returns the shards of `needed` that this rank verifies. One rank of a machine verifies each shard
// that ranks of the machine need. Collective.
std::set<std::string> share_on_machine(Comm& world, const fs::path& dir, const std::set<std::string>& needed) {
  std::error_code error;  // the working directory may be gone
  const std::unique_ptr<Comm> machine = split_by_machine(world, fs::absolute(dir, error).string());
  std::map<std::string, std::vector<int>> readers;  // ranks of the machine, by shard
  int rank = 0;
  for (const std::string& names : all_gather_texts(*machine, join({needed.begin(), needed.end()}, "\n"))) {
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);) readers[name].push_back(rank);
    ++rank;
  }
  std::vector<int> counts(static_cast<std::size_t>(machine->size()));  // of the shards of each rank
  std::set<std::string> mine;
  for (const auto& [name, ranks] : readers) {
    const int verifier = *std::ranges::min_element(ranks, {}, [&](int r) { return counts[r]; });
    ++counts[verifier];
    if (verifier == machine->rank()) mine.insert(name);
  }
  return mine;
}

// Returns the shards that this rank verifies: those that `needed` names, or an equal share. Adds a
// problem for each that the manifest does not list. Collective.
std::set<std::string> shards_to_verify(Comm& world, const CheckpointFolder& folder, const NeededShards& needed,
                                       Problems& problems) {
  const Manifest& manifest = folder.metadata()->manifest;
  std::set<std::string> shards;
  bool known = false;
  try {
    // resume_checkpoint() reads all values of a checkpoint whose writer did not check them.
    if (needed && has_checked_values(folder)) shards = needed(folder), known = true;
  } catch (const std::exception&) {  // loading the checkpoint throws it again
  }
  if (world.max(!known) > 0) return shard_share(manifest, world.rank(), world.size());
  std::set<std::string_view> listed;
  for (const Manifest::File& file : manifest.files) listed.insert(file.name);
  std::erase_if(shards, [&](const std::string& name) {
    if (listed.contains(name)) return false;
    problems.push_back(unlisted_text(folder.path(), name));
    return true;
  });
  return share_on_machine(world, folder.path(), shards);
}

// Verifies a checkpoint on all ranks, and reads its metadata. Collective. All ranks must pass the
// same folder. Returns all problems on every rank. `folder` has metadata if there are none.
Problems verify_together(Comm& world, const fs::path& dir, const NeededShards& needed,
                         std::vector<std::string>* warnings, CheckpointFolder& folder) {
  try {
    folder = CheckpointFolder(world, dir);
  } catch (const DifferentManifests&) {  // the ranks do not share the folder
    throw;
  } catch (const CollectiveError& e) {
    if (e.exit_code() != InputError("").exit_code()) throw;
    return {e.what()};
  }
  const Manifest& manifest = folder.metadata()->manifest;
  Problems own;
  const std::set<std::string> digests = shards_to_verify(world, folder, needed, own);
  std::set<std::string> sizes = shard_share(manifest, world.rank(), world.size());
  std::erase_if(sizes, [&](const std::string& name) { return digests.contains(name); });
  agree_on_errors(world, [&] {
    try {
      const auto check = [&](CheckFiles what, const std::set<std::string>& names) {
        std::ranges::move(file_problems(dir, manifest, what, &names), std::back_inserter(own));
      };
      check(CheckFiles::sizes, sizes);
      check(CheckFiles::digests, digests);
      if (world.rank() == 0) warn_of_foreign_files(dir, foreign_files_of(dir, manifest), warnings);
    } catch (const InputError& e) {
      own.push_back(e.what());
    }
  });
  Problems all;
  for (const std::string& texts : all_gather_texts(world, join(own, "\n"))) {
    std::istringstream lines(texts);
    for (std::string line; std::getline(lines, line);)
      if (std::ranges::find(all, line) == all.end()) all.push_back(line);
  }
  return all;
}

std::vector<fs::path> chosen_checkpoints;  // results of newest() in this process

// Returns false also if the look-up fails: whoever verifies or reads the file reports that.
bool has_vanished(const fs::path& path) {
  std::error_code ignored;
  return fs::status(path, ignored).type() == fs::file_type::not_found;
}

constexpr Index any_step = std::numeric_limits<Index>::max();

// Returns the newest checkpoint before step `end` of a run without a problem. Empty if training has
// deleted one while it was verified: the caller tries again.
std::optional<fs::path> find_newest(const fs::path& run_dir, Index end, std::vector<std::string>* warnings,
                                    const Verify& verify) {
  const fs::path checkpoints = checkpoints_of(run_dir);
  std::set<std::string> foreign_files = names_in(checkpoints);
  std::erase_if(foreign_files, is_checkpoint_name);
  warn_of_foreign_files(checkpoints, foreign_files, warnings);
  std::vector<std::string> skipped;
  for (Index step : steps_in(checkpoints)) {
    if (step >= end) continue;
    const fs::path dir = checkpoints / step_name(step);
    const Problems problems = verify(dir, warnings);
    if (problems.empty()) return dir;
    if (has_vanished(dir)) return {};
    skipped.push_back(fmt::format("checkpoint {} is passed over: {}", dir.string(), join(problems)));
    warnings->push_back(skipped.back());
  }
  if (skipped.empty())
    bad_input("{} holds no checkpoint yet: wait until the run has written its first", run_dir.string());
  bad_input("{} holds no whole checkpoint{}: {}", checkpoints.string(),
            end == any_step ? "" : fmt::format(" before step {}", end), join(skipped));
}

fs::path newest(const fs::path& run_dir, Index end, std::vector<std::string>* warnings, const Verify& verify) {
  constexpr int max_attempts = 100;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    std::vector<std::string> found;
    const std::optional<fs::path> dir = find_newest(run_dir, end, &found, verify);
    if (!dir) continue;
    if (warnings) warnings->insert(warnings->end(), found.begin(), found.end());
    return chosen_checkpoints.emplace_back(*dir);
  }
  bad_input("{} deletes its checkpoints faster than they are read: give run.keep = 2 or more", run_dir.string());
}

// Returns the result of `find(verify, verified)` of rank 0 on all ranks, or throws its error there.
// All ranks verify each folder that rank 0 passes to `verify`. verified: the last one without
// problems, with its metadata. `find` must return its path, or an empty one.
// If `verify` fails on one rank alone, such as for lack of memory, the others wait in a collective:
// the exception of that rank must end the job (abort_job_on_error).
template <class Find>
CheckpointFolder on_all_ranks(Comm& world, const NeededShards& needed, Find find) {
  CheckpointFolder verified = fs::path();
  const auto verify = [&](const fs::path& dir, std::vector<std::string>* warnings) {
    CheckpointFolder folder = dir;
    Problems problems = verify_together(world, dir, needed, warnings, folder);
    if (problems.empty()) verified = folder;
    return problems;
  };
  const auto next_folder = [&](const fs::path& dir) { return broadcast_text(world, dir.string(), 0); };
  bool verifying = false;
  const Verify verify_next = [&](const fs::path& dir, std::vector<std::string>* warnings) {
    verifying = true;
    next_folder(dir);
    Problems problems = verify(dir, warnings);
    verifying = false;
    return problems;
  };
  std::string found;
  std::exception_ptr error;  // of find() on rank 0
  if (world.rank() != 0) {
    for (fs::path dir; !(dir = next_folder({})).empty();) verify(dir, nullptr);
  } else {
    try {
      found = find(verify_next, std::as_const(verified)).string();
    } catch (const std::exception&) {
      if (verifying) throw;
      error = std::current_exception();
    }
    next_folder({});
  }
  agree_on_errors(world, [&] {
    if (error) std::rethrow_exception(error);
  });
  found = broadcast_text(world, found, 0);
  SY_ASSERT(found.empty() || verified.path() == found, "{} is found, and {} was verified", found,
            verified.path().string());
  return found.empty() ? fs::path() : verified;
}

// Returns a function that calls `verify`, and then looks for values that no run can go on with.
// verified: the folder without problems of the last call of `verify`
Verify usable(const Verify& verify, const CheckpointFolder& verified) {
  return [&](const fs::path& dir, std::vector<std::string>* warnings) {
    Problems problems = verify(dir, warnings);
    return problems.empty() ? resume_problems(verified) : problems;
  };
}

fs::path resolve(const fs::path& step_or_run, std::vector<std::string>* warnings, const Verify& verify) {
  if (!is_folder(step_or_run))
    bad_input("{} is no folder: give a run folder or a step folder within RUN/checkpoints", step_or_run.string());
  // A run has its configuration before its first checkpoint.
  const bool run = is_folder(checkpoints_of(step_or_run)) || file_exists(step_or_run / "config.ini");
  if (run && !file_exists(step_or_run / manifest_name)) return newest(step_or_run, any_step, warnings, verify);
  const fs::path dir = (step_or_run / "").parent_path();  // without a trailing slash
  const Problems problems = verify(dir, warnings);
  if (problems.empty()) return dir;
  bad_input("{} is no whole checkpoint: {}", step_or_run.string(), join(problems));
}

}  // namespace

std::vector<std::string> verify_checkpoint(const fs::path& step_dir, std::vector<std::string>* warnings) {
  try {
    const Manifest manifest = read_manifest(step_dir);
    warn_of_foreign_files(step_dir, foreign_files_of(step_dir, manifest), warnings);
    return file_problems(step_dir, manifest, CheckFiles::digests);
  } catch (const InputError& e) {
    return {e.what()};
  }
}

fs::path resolve_checkpoint(const fs::path& step_or_run, std::vector<std::string>* warnings) {
  return resolve(step_or_run, warnings, verify_checkpoint);
}

std::vector<fs::path> last_checkpoints(Comm& world, const fs::path& step_dir, Index count,
                                       std::vector<std::string>& warnings) {
  const fs::path checkpoints = step_dir.parent_path();
  std::string names = step_dir.filename().string();  // one a line
  agree_on_errors(world, [&] {
    if (world.rank() != 0) return;
    Index whole = 1;
    const std::optional<Index> newest_step = step_of(names);
    if (!newest_step && count > 1)
      bad_input(
          "{} is no folder step-N within RUN/checkpoints, so no earlier ones are known: give a run, or --average=1",
          step_dir.string());
    for (Index step : count > 1 ? steps_in(checkpoints) : std::vector<Index>{}) {
      if (step >= *newest_step || whole == count) continue;
      const fs::path dir = checkpoints / step_name(step);
      const Problems problems = verify_checkpoint(dir, &warnings);
      if (problems.empty())
        names += '\n' + step_name(step), ++whole;
      else
        warnings.push_back(fmt::format("checkpoint {} is passed over: {}", dir.string(), join(problems)));
    }
    if (whole < count)
      bad_input("{} holds {} whole checkpoint{} up to {}, fewer than the {} of --average: lower it, or raise run.keep",
                checkpoints.string(), whole, whole == 1 ? "" : "s", step_dir.filename().string(), count);
  });
  std::vector<fs::path> found;
  std::istringstream lines(broadcast_text(world, names, 0));
  for (std::string name; std::getline(lines, name);) found.push_back(checkpoints / name);
  return found;
}

CheckpointFolder resolve_checkpoint(Comm& world, const fs::path& step_or_run, std::vector<std::string>* warnings,
                                    const NeededShards& needed) {
  return on_all_ranks(world, needed, [&](const Verify& verify, const CheckpointFolder&) {
    return resolve(step_or_run, warnings, verify);
  });
}

CheckpointFolder usable_checkpoint_before(Comm& world, const fs::path& run_dir, Index end,
                                          std::vector<std::string>* warnings, const NeededShards& needed) {
  return on_all_ranks(world, needed, [&](const Verify& verify, const CheckpointFolder& verified) -> fs::path {
    const std::vector<Index> steps = steps_in(checkpoints_of(run_dir));
    if (steps.empty() || steps.back() >= end) return {};
    return newest(run_dir, end, warnings, usable(verify, verified));
  });
}

CheckpointFolder resume_checkpoint(Comm& world, const fs::path& run_dir, Index step, std::vector<std::string>* warnings,
                                   const NeededShards& needed) {
  if (step < 0) return usable_checkpoint_before(world, run_dir, any_step, warnings, needed);
  return on_all_ranks(world, needed, [&](const Verify& verify, const CheckpointFolder& verified) -> fs::path {
    const fs::path checkpoints = checkpoints_of(run_dir);
    const std::vector<Index> steps = steps_in(checkpoints);
    if (std::find(steps.begin(), steps.end(), step) == steps.end())
      bad_input("run.resume_step = {}: {}", step,
                steps.empty() ? fmt::format("{} holds no checkpoint: leave it out", run_dir.string())
                              : fmt::format("{} holds the steps {}: choose one of them", checkpoints.string(),
                                            fmt::join(steps.rbegin(), steps.rend(), ", ")));
    const fs::path dir = checkpoints / step_name(step);
    if (const Problems problems = usable(verify, verified)(dir, warnings); !problems.empty())
      bad_input("run.resume_step = {}: {}: choose another step", step, join(problems));
    return dir;
  });
}

CheckpointFolder::CheckpointFolder(Comm& world, fs::path step_dir) : path_(std::move(step_dir)) {
  const auto metadata = std::make_shared<CheckpointMetadata>();
  std::string manifest;      // that of this rank if it reads it, otherwise that of rank 0
  std::string bytes;         // of all indexes, in the order of index_files()
  std::exception_ptr error;  // of rank 0
  try {
    if (world.rank() == 0) manifest = read_manifest_text(path_);
  } catch (const InputError&) {  // Then each rank tries.
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  manifest = broadcast_text(world, manifest, 0);
  const bool reads = reads_itself(world, path_) && world.rank() != 0;
  agree_on_errors(world, [&] {
    if (error) std::rethrow_exception(error);
    if (manifest.empty() || reads) manifest = read_manifest_text(path_);
    metadata->manifest = parse_manifest(manifest, path_);
  });
  try {
    check_rank_settings(
        world,
        {{fmt::format("the digest of {}", (path_ / manifest_name).string()), to_hex(sha256(manifest)).substr(0, 16)}},
        "let all ranks read the same checkpoint, from a folder that their hosts share");
  } catch (const CollectiveError& e) {
    throw DifferentManifests(e.exit_code(), e.what());
  }
  agree_on_errors(world, [&] {
    if (world.rank() != 0) return;
    check_listed(path_, metadata->manifest, format_of(metadata->manifest).index_name());
    for (const Manifest::File& file : index_files(metadata->manifest))
      bytes += read_verified(path_, metadata->manifest, file);
  });
  bytes = broadcast_text(world, bytes, 0);
  std::size_t at = 0;
  for (const Manifest::File& file : index_files(metadata->manifest)) {
    metadata->indexes[file.name] = bytes.substr(at, static_cast<std::size_t>(file.bytes));
    at += static_cast<std::size_t>(file.bytes);
  }
  metadata_ = metadata;
}

bool chosen_checkpoint_vanished() {
  const bool vanished = std::any_of(chosen_checkpoints.begin(), chosen_checkpoints.end(),
                                    [](const fs::path& dir) { return has_vanished(dir / manifest_name); });
  chosen_checkpoints.clear();
  return vanished;
}

bool is_numbered(std::string_view end) {
  return end.empty() || (end.size() > 1 && end.front() == '-' && end.find_first_not_of("0123456789", 1) == end.npos);
}

std::optional<Index> abandoned_step(const std::string& name) {
  const std::size_t dot = name.find(abandoned);
  if (dot == std::string::npos) return {};
  const std::string_view rest = std::string_view(name).substr(dot + std::string_view(abandoned).size());
  return is_numbered(rest) ? step_of(name.substr(0, dot)) : std::nullopt;
}

std::vector<std::string> abandon_newer(const fs::path& run_dir, Index step) {
  const fs::path checkpoints = checkpoints_of(run_dir);
  std::vector<std::string> done;
  for (Index newer : steps_in(checkpoints)) {
    if (newer <= step) break;
    const fs::path dir = checkpoints / step_name(newer);
    fs::path target = dir.string() + abandoned;
    for (int n = 2; file_exists(target); ++n) target = fmt::format("{}{}-{}", dir.string(), abandoned, n);
    rename_folder(dir, target);
    done.push_back(fmt::format(
        "{} is now {}: training deletes it after run.keep newer checkpoints; to keep it, give it another name",
        dir.string(), target.filename().string()));
  }
  if (!done.empty()) sync_folder(checkpoints);
  return done;
}

}  // namespace sy
