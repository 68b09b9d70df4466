// A folder that appears under its name when it is whole.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "src/io/lock.h"

namespace sy {

// The files are written to TARGET.tmp, which one process at a time holds; commit() renames it to TARGET. A killed process
// leaves TARGET.tmp with its lock file, by which the next one knows that it may remove the rest.
class NewFolder {
 public:
  // command: names the program's command in messages ("export").
  NewFolder(const std::filesystem::path& target, std::string command);
  ~NewFolder();  // removes TARGET.tmp, unless it was committed or belongs to another process
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  // Makes an empty TARGET.tmp. Throws InputError if TARGET exists, if another process holds TARGET.tmp, or if TARGET.tmp was
  // not left by this program.
  void open();
  // Syncs the folder and renames it. The files' contents are already on the disk.
  void commit();

  // TARGET without a slash at its end, and TARGET.tmp.
  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& staging() const { return staging_; }

 private:
  [[noreturn]] void refuse_existing() const;
  std::filesystem::path target_, staging_;
  std::string command_;
  std::optional<FolderLock> lock_;
};

}  // namespace sy
