// Crash-safe writes and bounded reads of files and folders, with fault injection for tests.
// Errors name the path. Functions that read throw InputError, since the user chose the file.
// Functions that write throw Failure, except open_for_writing, which may throw both.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist/file_activity.h"
#include "kernels/tensor.h"

namespace sy {

// Calls FileActivity::write_fault, a hook of tests that may throw. Code that writes checkpoints,
// data sets or exports calls write_point before each operation. open_for_writing, remove_unfinished
// and FolderLock do not call it.
inline void write_point(std::string_view operation, const std::filesystem::path& path) {
  if (const auto& fault = file_activity().write_fault) fault(operation, path);
}

// Throws the error of a failed write to a path that the user has named. error: an errno value.
// Throws Failure if the machine is at fault, as for a full disk, and InputError if the path is at
// fault, as for a missing permission.
[[noreturn]] void throw_write_error(int error, const std::string& message);

// follow: a link counts as the file that it names, and a broken link as no file.
// keep: a link counts as a link.
enum class Links { follow, keep };
// Returns the type of the file at a path; not_found if there is none, or if a part of the path is
// no folder. Throws InputError if the look-up fails: without permission, after an error of the
// disk, in a loop of links, for a path that is too long. A file that may exist never counts as
// missing.
std::filesystem::file_type file_type(const std::filesystem::path& path, Links links = Links::follow);
// Returns whether there is a file of any type; a regular file; a folder. Throws as file_type().
bool file_exists(const std::filesystem::path& path, Links links = Links::follow);
bool is_file(const std::filesystem::path& path, Links links = Links::follow);
bool is_folder(const std::filesystem::path& path, Links links = Links::follow);

// Returns the paths of the files and folders in a folder, sorted. Throws InputError if it cannot be
// read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

// Returns whether a name is safe to append to a folder. Pure function.
// Refuses an empty name, "." and "..", and names with a slash or a control character.
bool is_plain_name(std::string_view name);

// An open input, which must be a regular file. A FIFO, a device or a folder is an InputError at
// once, without a wait.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  int descriptor() const { return descriptor_; }
  Index size() const { return size_; }  // in bytes, when it was opened
  // Reads up to out.size() bytes from the end of the last read, or from byte `offset` on. Returns
  // the number of bytes; 0 at the end of the file.
  std::size_t read_some(std::span<char> out);
  std::size_t read_at(Index offset, std::span<char> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
  Index size_ = 0;
};

// Returns the content of a file. Throws InputError if it has more than `max_bytes`.
constexpr Index max_input_bytes = Index{256} << 20;
std::string read_file(const std::filesystem::path& path, Index max_bytes = max_input_bytes);
// Calls `consume` with consecutive chunks of at most 1 MiB of the file.
void read_chunks(const std::filesystem::path& path, const std::function<void(std::string_view)>& consume);

// A line of a text file.
constexpr Index max_line_bytes = Index{64} << 20;
struct TextLine {
  std::string_view text;  // without the newline; empty if it is longer than max_line_bytes
  Index number = 0;       // 1 is the first
  Index end = 0;          // byte offset of the end of the line, after its newline
  bool whole = true;      // false if the file ends before the newline
};
// Calls `consume` with each line of a text file.
void read_lines(const std::filesystem::path& path, const std::function<void(const TextLine&)>& consume);

// Opens or creates a file of a run folder. mode: "w" or "a", as for fopen. Never nullptr.
// Throws InputError for a link, a file with several hard links, and a file that is not regular.
std::FILE* open_for_writing(const std::filesystem::path& path, const char* mode);

// Path of this program's executable; empty if /proc cannot be read.
std::filesystem::path program_path();
// Candidate folders of files such as launch/mpirun.sh, in search order. They need not exist.
// 1: the parent of the executable's folder (source tree). 2: its share/switchyard (installation).
// 3: the executable's folder (a build folder with links to configs/ and launch/).
std::vector<std::filesystem::path> resource_folders();

// Creates or replaces a file atomically, and syncs it and its folder.
void write_file(const std::filesystem::path& path, std::string_view content);
// Returns whether `name` is a temporary name that write_file uses for the file name `of`.
bool is_unfinished(std::string_view name, std::string_view of);
// Deletes the temporary files of `path` that killed processes left. Ignores errors.
// The caller ensures that no process is writing `path`.
void remove_unfinished(const std::filesystem::path& path);

void sync_file(const std::filesystem::path& path);    // forces the content to the disk
void sync_folder(const std::filesystem::path& path);  // forces the names in the folder to the disk

void make_folders(const std::filesystem::path& path);  // with missing parents; no-op if it exists
// Renames `from` to `to`, replacing a file there, and syncs the folder of `to`.
// Call sync_file(from) first: this function does not sync the content.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);
// Renames the folder `from` to `to`. If `to` exists, the two folders exchange their names.
// If the file system cannot exchange names, `to` is briefly absent: its old folder is at FROM.old.
// Syncs nothing: call sync_folder on the parent folder afterwards.
void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to);
void remove_tree(const std::filesystem::path& path);  // no-op if it does not exist

}  // namespace sy
