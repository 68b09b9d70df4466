// A folder that is written under a temporary name and renamed when it is complete.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "src/io/lock.h"

namespace sy {

// Writes go to TARGET.tmp, locked by one process at a time; commit() renames it to TARGET.
// A note in the lock file of TARGET.tmp marks it as removable after a kill or a power loss.
class NewFolder {
 public:
  // command: names the program's command in messages ("export").
  NewFolder(const std::filesystem::path& target, std::string command);
  ~NewFolder();  // removes TARGET.tmp, unless it was committed or belongs to another process

  // Creates TARGET.tmp, or empties the one that a killed process of this program left.
  // Throws InputError if TARGET exists, or if another process holds TARGET.tmp.
  // Throws InputError if TARGET.tmp has files and is no staging folder, but perhaps a run.
  // May wait as FolderLock does.
  void open();
  // Syncs TARGET.tmp, renames it to TARGET, and syncs the parent folder.
  // Call sync_file on every file first. Throws InputError if TARGET exists by now. If the last sync
  // fails, throws Failure, and TARGET stays.
  void commit();

  // TARGET without a slash at its end, and TARGET.tmp.
  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& staging() const { return staging_; }

 private:
  [[noreturn]] void refuse_existing() const;
  std::filesystem::path target_, staging_;
  std::string command_;
  std::optional<FolderLock> lock_;
  bool renamed_ = false;  // TARGET.tmp is TARGET now
};

}  // namespace sy
