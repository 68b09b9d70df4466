// A folder that one process at a time writes in, on whatever machines and file systems the others look at it.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace sy {

// Holds FOLDER/switchyard.lock from its construction on: a file locked with flock(), in which a person reads who has it: host,
// process, and job of the batch system. A process that dies, however it dies, loses the lock with it, and what it left in
// the file is overwritten. Where the file system has no such locks the file alone decides: it counts while its process
// lives, or, as nobody can know that of another host, until it is deleted.
constexpr const char* lock_name = "switchyard.lock";
class FolderLock {
 public:
  // Waits up to `patience` for another holder to end. Throws InputError where it does not, or where the folder cannot be
  // written: `user` ("run.dir") names it, and `elsewhere` ("choose another run.dir") ends the message.
  FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience, const std::string& user,
             const std::string& elsewhere);
  ~FolderLock();  // deletes the file
  // Whether the file is still there: a folder that was removed or replaced meanwhile is nobody's.
  bool held() const;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int take();  // once; 0, or the error that stood in the way: EWOULDBLOCK where another has it
  std::filesystem::path path_;
  int file_ = -1;
  std::string holder_, advice_;  // what another has written, and what to do where it may be out of date
};

}  // namespace sy
