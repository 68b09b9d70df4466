// The folder of a data set that is being written, which may replace an older data set.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "src/data/dataset.h"
#include "src/io/lock.h"

namespace sy {

// Returns the file names of a data set. A model that dataset.ini names elsewhere is not included.
std::set<std::string> files_of(const DatasetDescription& description);

// Returns the files of the folder's data set, or of one whose replacement was interrupted. Empty if
// there is no folder. Throws InputError if the folder holds other files and no data set, or a file
// that conflicts with `files`.
std::set<std::string> check_output(const std::filesystem::path& folder, const std::set<std::string>& files,
                                   bool overwrite);

// The folder OUTPUT, locked by one process. Its staging folder holds growing files until commit().
class OutputFolder {
 public:
  explicit OutputFolder(const std::filesystem::path& folder);
  ~OutputFolder();

  // Throws InputError as check_output does.
  void open(std::set<std::string> files, bool overwrite);
  const std::filesystem::path& staging() const { return staging_; }
  // Replaces the old data set. Without dataset.ini there is no data set, so it is removed first and
  // written last. ini: content of dataset.ini.
  void commit(const std::string& ini);

 private:
  void remove(const std::string& name);

  std::filesystem::path folder_, staging_;
  std::set<std::string> files_, old_;  // of the new data set; of the data set it replaces
  std::optional<FolderLock> lock_;
  bool made_ = false;
};

}  // namespace sy
