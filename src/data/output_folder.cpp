#include "src/data/output_folder.h"

#include <sstream>

#include "src/data/tokenizer.h"
#include "src/io/manifest.h"
#include "src/system/files.h"
#include "src/system/new_folders.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

constexpr const char *description_name = "dataset.ini", *staging_name = "prepare.tmp";
// Exists while a data set is replaced. It lists the file names of both data sets, one a line. The
// next `prepare` may remove these files if this one is interrupted.
constexpr const char* replaced_name = "prepare.replaced";

// Returns the files of the folder's data set, or of one whose replacement was interrupted. Throws
// InputError if the folder holds other files and no data set.
std::set<std::string> old_files(const fs::path& folder) {
  const std::set<std::string> names = names_in(folder);
  std::set<std::string> files;
  if (names.contains(replaced_name)) {
    std::istringstream lines(read_file(folder / replaced_name));
    for (std::string name; std::getline(lines, name);)
      if (name.find('/') == name.npos) files.insert(name);
  }
  if (names.contains(description_name)) {
    DatasetDescription old = read_dataset_ini(folder);
    if (old.model.parent_path() != folder) old.model.clear();
    files.merge(files_of(old));
    return files;
  }
  // it was a data set, so other files may be present
  if (names.contains(replaced_name)) return files;
  for (const std::string& name : names)
    if (!files.contains(name) && !name.starts_with('.') && !name.starts_with(staging_name) &&
        !name.starts_with(replaced_name) && name != lock_name)
      bad_input("--output {} holds '{}', and is no data set: choose a new or an empty folder", folder.string(), name);
  return files;
}

}  // namespace

std::set<std::string> files_of(const DatasetDescription& description) {
  std::set<std::string> files{description_name};
  for (const Domain& domain : description.domains)
    for (const char* suffix : {".train.bin", ".train.idx", ".valid.bin", ".valid.idx"})
      files.insert(domain.name + suffix);
  if (!description.model.empty()) files.insert(description.model.filename().string());
  if (description.tokenizer == "huggingface") files.insert(huggingface_config_name);
  if (!description.chat_template.empty()) files.insert(description.chat_template.filename().string());
  return files;
}

std::set<std::string> check_output(const fs::path& folder, const std::set<std::string>& files, bool overwrite) {
  if (!is_folder(folder)) return {};
  std::set<std::string> old = old_files(folder);
  const std::set<std::string> present = names_in(folder);
  // `prepare` was interrupted after it had removed dataset.ini. Its files are then no data set.
  const bool interrupted = present.contains(replaced_name) && !present.contains(description_name);
  for (const std::set<std::string>& names : {old, files})
    for (const std::string& name : names) {
      if (!file_exists(folder / name, Links::keep)) continue;
      if (!overwrite && !(interrupted && old.contains(name)))
        bad_input("{} exists: choose another --output, or give --overwrite to replace the data set",
                  (folder / name).string());
      if (!old.contains(name))
        bad_input("{} exists, and is not of the data set that is there: move it, or choose another --output",
                  (folder / name).string());
    }
  return old;
}

OutputFolder::OutputFolder(const fs::path& folder) : folder_(folder), staging_(folder / staging_name) {}

OutputFolder::~OutputFolder() {
  if (!lock_) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  lock_.reset();
  if (made_) fs::remove(folder_, ignored);  // fails, as intended, if it is not empty
}

void OutputFolder::open(std::set<std::string> files, bool overwrite) {
  old_ = check_output(folder_, files, overwrite);
  made_ = !file_exists(folder_);
  const std::error_code error = try_make_synced_folders(folder_);
  if (error)
    throw_write_error(error.value(), fmt::format("cannot make the folder {}: {}: choose another --output",
                                                 folder_.string(), error.message()));
  lock_.emplace(folder_, std::chrono::milliseconds(0), "--output", "choose another --output");
  old_ = check_output(folder_, files, overwrite);  // again, now that no other process changes it
  files_ = std::move(files);
  for (const char* name : {replaced_name, description_name}) remove_unfinished(folder_ / name);
  remove_tree(staging_);
  make_folders(staging_);
}

void OutputFolder::commit(const std::string& ini) {
  std::string both;
  for (const auto& names : {files_, old_})
    for (const std::string& name : names) both += name + "\n";
  write_file(folder_ / replaced_name, both);
  remove(description_name);
  sync_folder(folder_);
  for (const std::string& name : old_)
    if (!files_.contains(name)) remove(name);
  for (const std::string& name : files_) {
    if (name == description_name) continue;
    write_point("rename", folder_ / name);
    std::error_code error;
    fs::rename(staging_ / name, folder_ / name, error);
    if (error) fail("cannot rename {} into {}: {}", (staging_ / name).string(), folder_.string(), error.message());
  }
  sync_folder(folder_);  // after a power loss, dataset.ini is there only with its files
  write_file(folder_ / description_name, ini);
  remove(replaced_name);
}

void OutputFolder::remove(const std::string& name) {
  write_point("remove", folder_ / name);
  std::error_code error;
  fs::remove(folder_ / name, error);
  if (error) fail("cannot remove {}: {}", (folder_ / name).string(), error.message());
}

}  // namespace sy
