// A folder that one process at a time writes in, on whatever machines and file systems the others look at it.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

namespace sy {

constexpr const char* lock_name = "switchyard.lock";

// Holds FOLDER/switchyard.lock from its construction on: a file locked with flock(), in which a person reads who has it: host,
// process, and job of the batch system. A process that dies, however it dies, loses the lock with it, and what it left in
// the file is overwritten. Where the file system has no such locks the file alone decides: it counts while its process
// lives, or, as nobody can know that of another host, until it is deleted.
//
// Some network file systems keep flock() local to a host. So the holder also touches the file now
// and then (a heartbeat), and a file that names another host counts until it has been watched for
// `stale_after` without a change. Clocks are not compared.
class FolderLock {
 public:
  static constexpr std::chrono::milliseconds default_stale_after = std::chrono::seconds(30);
  // Waits up to `patience` for another holder to end. Throws InputError where it does not, or where the folder cannot be
  // written: `user` ("run.dir") names it, and `elsewhere` ("choose another run.dir") ends the message.
  FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience, const std::string& user,
             const std::string& elsewhere, std::chrono::milliseconds stale_after = default_stale_after);
  ~FolderLock();  // deletes the file
  // Whether the file is still there and names this process: a folder that was removed or replaced
  // meanwhile is nobody's.
  bool held() const;
  // Call after the folder was renamed.
  void moved_to(const std::filesystem::path& folder) { path_ = folder / lock_name; }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int take();  // once; 0, or the error that stood in the way: EWOULDBLOCK where another has it
  // Whether the file that another host's holder wrote has not changed for stale_after_. Called
  // again and again.
  bool is_stale(int file, const std::string& written);
  void beat(const std::stop_token& stop) const;

  std::filesystem::path path_;
  std::chrono::milliseconds stale_after_;
  int file_ = -1;
  std::string text_;                               // what this process has written
  std::string seen_;                               // the file of another host's holder, when it changed last
  std::chrono::steady_clock::time_point seen_at_;  // and when that was
  bool watching_ = false;                          // for a change
  std::jthread heartbeat_;
  std::string holder_, advice_;  // what another has written, and what to do where it may be out of date
};

}  // namespace sy
