// Files and folders written so that they survive a crash, and the place where tests make writes fail.
// All functions throw Failure naming the path, except those that read, whose file is the user's (InputError).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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

std::string read_file(const std::filesystem::path& path);
// Passes the content on piece by piece.
void read_pieces(const std::filesystem::path& path, const std::function<void(std::string_view)>& take);

// This program's own file; empty where the system does not tell it.
std::filesystem::path own_program();
// Folders that hold the files that come with this program, such as launch/mpirun.sh: its source tree,
// its installation, and a build folder outside the tree, which has links to configs/ and launch/.
std::vector<std::filesystem::path> own_folders();

// Replaces the file in one step: a reader sees the old content or the new one.
void write_file(const std::filesystem::path& path, std::string_view content);

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
