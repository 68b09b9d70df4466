// Files and folders written so that they survive a crash, and the place where tests make writes fail.
// All functions throw Failure naming the path, except those that read, whose file is the user's (InputError).
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Called before every operation that changes the disk; a test sets it to throw at the n-th. Empty otherwise.
using WriteFault = std::function<void(std::string_view operation, const std::filesystem::path& path)>;
extern WriteFault write_fault;

inline void write_point(std::string_view operation, const std::filesystem::path& path) {
  if (write_fault) write_fault(operation, path);
}

// Throws what keeps a path that the user has named from being written: Failure if the machine is at fault, as for a full
// disk, and InputError if the path is.
[[noreturn]] void cannot_write(int error, const std::string& message);

// Whether a name that was read from a file names an entry of its folder: not empty, no slash or
// control character, and not "." or "..".
bool is_plain_name(std::string_view name);

// An input, opened: a regular file. A FIFO, a device or a folder in its place is an InputError at
// once, without a wait.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  int descriptor() const { return descriptor_; }
  Index size() const { return size_; }  // in bytes, when it was opened
  // Reads up to out.size() bytes from where the last call ended, or from byte `offset` on. Returns
  // the number of bytes, 0 at the end of the file.
  std::size_t read_some(std::span<char> out);
  std::size_t read_at(Index offset, std::span<char> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
  Index size_ = 0;
};

// The content of an input. A file of more than `most_bytes` is an InputError.
constexpr Index most_input_bytes = Index{256} << 20;
std::string read_file(const std::filesystem::path& path, Index most_bytes = most_input_bytes);
// Passes the content on piece by piece.
void read_pieces(const std::filesystem::path& path, const std::function<void(std::string_view)>& take);

// A line of a text file. If it is longer than most_line_bytes, its text is empty.
constexpr Index most_line_bytes = Index{64} << 20;
struct TextLine {
  std::string_view text;  // without the newline
  Index number = 0;       // 1 is the first
  Index end = 0;          // of the file's bytes, those up to the end of this line
  bool whole = true;      // false: the file ends before the newline
};
void read_lines(const std::filesystem::path& path, const std::function<void(const TextLine&)>& take);

// Opens a file of a run folder for writing, and makes it if it is missing. mode: "w" or "a", as of
// fopen. A link is not followed. A link, a second name of another file (a hard link) and what is no
// regular file are InputErrors that say so.
std::FILE* open_for_writing(const std::filesystem::path& path, const char* mode);

// This program's own file; empty where the system does not tell it.
std::filesystem::path own_program();
// Folders that hold the files that come with this program, such as launch/mpirun.sh: its source tree,
// its installation, and a build folder outside the tree, which has links to configs/ and launch/.
std::vector<std::filesystem::path> own_folders();

// Replaces the file in one step: a reader sees the old content or the new one.
void write_file(const std::filesystem::path& path, std::string_view content);
// Whether write_file makes files of this name beside a file `of`, and leaves them if the process is
// killed.
bool is_unfinished(std::string_view name, std::string_view of);
// Deletes such files beside `path`. The caller sees to it that no process is writing one.
void remove_unfinished(const std::filesystem::path& path);

// After these return, the content of the file (the names in the folder) is on the disk.
void sync_file(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& path);

void make_folders(const std::filesystem::path& path);
// Replaces `to` by a file that has been forced to the disk, and forces its new name there.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);
// `to` may be an existing folder: then the two change places, in one step where the file system can.
void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to);
void remove_tree(const std::filesystem::path& path);

}  // namespace sy
