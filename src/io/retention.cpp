// Deletion of old checkpoints. Deletes only files that this program wrote, and folders without
// other files.
#include <sys/stat.h>

#include <algorithm>

#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"
#include "src/system/files.h"
#include "src/text/strings.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view unfinished = ".tmp";

// Returns true if a save writes files of this name into a checkpoint's folder.
bool is_checkpoint_file(std::string_view name) {
  if (name == manifest_name || is_unfinished(name, manifest_name)) return true;
  return std::ranges::any_of(checkpoint_formats(), [&](const auto* format) { return format->has_name(name); });
}

// Returns true if a save or a deletion makes folders of this name: step-N.tmp or step-N.tmp-2, with
// or without ".old".
bool is_leftover(std::string_view name) {
  constexpr std::string_view aside = ".old";
  if (name.ends_with(aside)) name.remove_suffix(aside.size());
  const std::size_t dot = name.find(unfinished);
  if (dot == name.npos || !step_of(std::string(name.substr(0, dot)))) return false;
  return is_numbered(name.substr(dot + unfinished.size()));
}

std::string foreign_files_warning(const fs::path& dir, const std::vector<std::string>& foreign_files) {
  return fmt::format("{} stays, since Switchyard did not write {}: move that elsewhere, or remove the folder yourself",
                     dir.string(), join(foreign_files, ", "));
}

// Deletes the checkpoint's files in a folder, then the folder. Returns a warning if it has other
// files. Empty otherwise.
std::string remove_checkpoint(const fs::path& dir) {
  write_point("remove", dir);
  if (!is_folder(dir, Links::keep))
    return fmt::format("{} stays, since Switchyard did not write it: remove it yourself", dir.string());
  std::vector<std::string> foreign_files;
  for (const std::string& name : names_in(dir)) {
    std::error_code error;
    const fs::path file = dir / name;
    if (!is_checkpoint_file(name) || !is_file(file, Links::keep))
      foreign_files.push_back(name);
    else if (!fs::remove(file, error) && error)
      fail("cannot remove {}: {}", file.string(), error.message());
  }
  if (!foreign_files.empty()) return foreign_files_warning(dir, foreign_files);
  std::error_code error;
  if (!fs::remove(dir, error) && error) fail("cannot remove {}: {}", dir.string(), error.message());
  return "";
}

bool has_manifest(const fs::path& dir) {
  return is_folder(dir, Links::keep) && is_file(dir / manifest_name, Links::keep);
}

// Returns true if a folder counts as a checkpoint. A folder that cannot be looked up does not, and
// is not deleted either.
bool is_checkpoint(const fs::path& dir) {
  try {
    return has_manifest(dir);
  } catch (const InputError&) {
    return false;
  }
}

// Returns the reason not to delete an old checkpoint, empty if there is none.
std::string reason_to_stay(const fs::path& dir) {
  try {
    if (!has_manifest(dir))
      return fmt::format("{} stays, since it has no {} and Switchyard did not write it: move it elsewhere",
                         dir.string(), manifest_name);
    const Manifest manifest = read_manifest(dir);
    std::set<std::string> foreign_files = names_in(dir);
    for (const Manifest::File& file : manifest.files) foreign_files.erase(file.name);
    std::erase_if(foreign_files,
                  [](const std::string& name) { return name == manifest_name || is_unfinished(name, manifest_name); });
    return foreign_files.empty() ? "" : foreign_files_warning(dir, {foreign_files.begin(), foreign_files.end()});
  } catch (const InputError& e) {
    return fmt::format("old checkpoint {} stays: {}", dir.string(), e.what());
  }
}

}  // namespace

fs::path unfinished_path(const fs::path& checkpoints, Index step, Index number) {
  return checkpoints / fmt::format("{}{}{}", step_name(step), unfinished, number > 1 ? fmt::format("-{}", number) : "");
}

Index free_number(const fs::path& checkpoints, Index step) {
  for (Index number = 1;; ++number) {
    const fs::path path = unfinished_path(checkpoints, step, number);
    std::error_code error;
    const fs::file_type type = fs::symlink_status(path, error).type();
    if (type == fs::file_type::not_found) return number;
    if (type == fs::file_type::none) fail("cannot look up {}: {}", path.string(), error.message());
  }
}

std::vector<std::string> remove_leftovers(const fs::path& checkpoints) {
  std::vector<std::string> warnings;
  for (const std::string& name : names_in(checkpoints)) {
    if (!is_leftover(name)) continue;
    const fs::path dir = checkpoints / name;
    try {
      if (std::string warning = remove_checkpoint(dir); !warning.empty()) warnings.push_back(std::move(warning));
    } catch (const Error& e) {
      warnings.push_back(fmt::format("{} stays: {}", dir.string(), e.what()));
    }
  }
  return warnings;
}

Index newest_before(const fs::path& checkpoints, Index step) {
  for (const Index candidate : steps_in(checkpoints))
    if (candidate < step && is_checkpoint(checkpoints / step_name(candidate))) return candidate;
  return -1;
}

Index oldest_checkpoint(const fs::path& checkpoints) {
  const std::vector<Index> steps = steps_in(checkpoints);
  const auto oldest = std::find_if(steps.rbegin(), steps.rend(),
                                   [&](Index step) { return is_checkpoint(checkpoints / step_name(step)); });
  return oldest == steps.rend() ? -1 : *oldest;
}

std::vector<std::string> prune_checkpoints(const fs::path& checkpoints, Index step, const Retention& retention) {
  std::vector<std::string> problems;
  const Index keep = retention.keep, keep_every = retention.keep_every;
  if (keep <= 0) return problems;
  const auto is_pinned = [&](Index candidate) {
    return retention.pinned.contains(candidate) || (keep_every > 0 && candidate % keep_every == 0);
  };
  // `retained` counts the checkpoints that stay, `oldest` is the first of them. Checkpoints after
  // `step` were abandoned; training replaces them when it reaches their steps again.
  Index retained = 1, oldest = step;
  std::vector<std::pair<std::string, Index>> expired;
  for (const Index candidate : steps_in(checkpoints)) {
    if (candidate >= step) continue;
    const std::string name = step_name(candidate);
    if (retained < keep && is_checkpoint(checkpoints / name)) {
      ++retained;
      oldest = candidate;
    } else if (!is_pinned(candidate)) {
      expired.emplace_back(name, candidate);
    }
  }
  // An abandoned checkpoint is not pinned, and does not count as one of the newest.
  for (const std::string& name : names_in(checkpoints))
    if (const auto candidate = abandoned_step(name); candidate && *candidate < oldest)
      expired.emplace_back(name, *candidate);

  const auto attempt = [&](const fs::path& dir, const auto& work) {
    try {
      work();
      return true;
    } catch (const Error& e) {
      problems.push_back(fmt::format("old checkpoint {} stays: {}", dir.string(), e.what()));
      return false;
    }
  };
  // Renamed first, so that no reader opens a half-deleted checkpoint.
  std::vector<fs::path> renamed;
  for (const auto& [name, expired_step] : expired) {
    const Index candidate = expired_step;
    const fs::path dir = checkpoints / name;
    if (std::string why = reason_to_stay(dir); !why.empty()) {
      problems.push_back(std::move(why));
      continue;
    }
    fs::path to;
    const auto rename = [&] {
      to = unfinished_path(checkpoints, candidate, free_number(checkpoints, candidate));
      rename_folder(dir, to);
    };
    if (attempt(dir, rename)) renamed.push_back(to);
  }
  // Sync the new names before deleting files. A crash then leaves no half-deleted checkpoint under
  // its old name.
  if (renamed.empty() || !attempt(checkpoints, [&] { sync_folder(checkpoints); })) return problems;
  for (const fs::path& dir : renamed)
    attempt(dir, [&] {
      if (std::string warning = remove_checkpoint(dir); !warning.empty()) problems.push_back(std::move(warning));
    });
  return problems;
}

}  // namespace sy
