#include "src/io/new_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kernels/check.h"
#include "src/system/files.h"
#include "src/system/new_folders.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Note of the lock of a staging folder. It has the folder's name, so that it does not mark the
// renamed folder.
std::string staging_note(const fs::path& staging) {
  return "staging folder " + staging.filename().string();
}

// Returns whether a folder is a staging folder, or holds nothing but perhaps a lock file.
// A run has such a lock file, too. Does not follow links.
bool is_staging_or_empty(const fs::path& folder) {
  if (!is_folder(folder, Links::keep)) return false;
  if (lock_note(folder) == staging_note(folder)) return true;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    if (entry->path().filename() != lock_name) return false;
  return !error;
}

// Returns false also if the path cannot be looked up: the caller then reports an earlier error.
bool is_known(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// Removes everything from a staging folder but its lock file, which marks the folder until then:
// the removals are on the disk before that of the lock file can be.
void empty_folder(const fs::path& staging) {
  for (const fs::directory_entry& entry : fs::directory_iterator(staging))
    if (entry.path().filename() != lock_name) remove_tree(entry.path());
  sync_folder(staging);
}

}  // namespace

NewFolder::NewFolder(const fs::path& target, std::string command)
    : target_(target.has_filename() ? target : target.parent_path()),
      staging_(target_.string() + ".tmp"),
      command_(std::move(command)) {}

NewFolder::~NewFolder() {
  if (renamed_ || !lock_) return;
  try {
    if (!lock_->held()) return;
    empty_folder(staging_);
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
  } catch (const std::exception&) {  // the next command of the same name removes it
  }
}

void NewFolder::refuse_existing() const {
  bad_input("{}: {} is there already: give a new folder", command_, target_.string());
}

void NewFolder::open() {
  if (file_exists(target_, Links::keep)) refuse_existing();
  if (target_.has_parent_path()) make_synced_folders(target_.parent_path());
  write_point("mkdir", staging_);
  if (::mkdir(staging_.c_str(), 0777) != 0) {
    if (errno != EEXIST) fail("cannot make the folder {}: {}", staging_.string(), std::strerror(errno));
    if (!is_staging_or_empty(staging_) && is_known(staging_))
      bad_input(
          "{}: {} is in the way, and no {} of this version left it there, so that it may hold a run: move it away, or "
          "give another folder",
          command_, staging_.string(), command_);
  }
  try {
    lock_.emplace(staging_, std::chrono::milliseconds(0), command_ + ": FOLDER.tmp", "give another folder",
                  FolderLock::default_stale_after, staging_note(staging_));
  } catch (const InputError&) {
    if (is_known(target_)) refuse_existing();  // the other process has committed
    throw;
  }
  if (is_known(target_)) refuse_existing();  // see above
  // After a power loss, the folder has its mark before it has any other file.
  sync_file(staging_ / lock_name);
  empty_folder(staging_);
}

void NewFolder::commit() {
  sync_folder(staging_);
  write_point("rename", target_);
  int error = ::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
  // The file system may not support the atomic variant.
  if ((error == EINVAL || error == ENOSYS) && !is_known(target_))
    error = ::rename(staging_.c_str(), target_.c_str()) == 0 ? 0 : errno;
  if (error != 0 && is_known(target_)) refuse_existing();
  if (error != 0) fail("cannot rename {} to {}: {}", staging_.string(), target_.string(), std::strerror(error));
  renamed_ = true;
  lock_->moved_to(target_);
  // Before the lock file is removed: without it, TARGET.tmp would have no mark after a power loss.
  sync_folder(target_.has_parent_path() ? target_.parent_path() : ".");
  lock_.reset();
}

}  // namespace sy
