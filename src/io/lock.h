// A lock on a folder: one process at a time writes there, also across hosts.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

namespace sy {

constexpr const char* lock_name = "switchyard.lock";

// Holds an flock() on FOLDER/switchyard.lock, whose text names host, process and batch job.
// The lock ends with its process. The next holder overwrites the text.
// Some network file systems keep flock() local to a host. The holder thus touches the file often.
// A file that names another host counts until it has not changed for `stale_after`.
// Without flock() support the file counts while its process lives; on another host, until deleted.
// Clocks of hosts are not compared.
class FolderLock {
 public:
  static constexpr std::chrono::milliseconds default_stale_after = std::chrono::seconds(30);
  // Takes the lock, waiting up to `timeout` for another holder to release it.
  // If the file names another host, the wait may last `stale_after`, even if `timeout` is 0.
  // - user: names the folder in messages ("run.dir")
  // - remedy: ends the messages ("choose another run.dir")
  // - note: last line of the file, for lock_note(); empty: no such line
  //
  // Throws InputError if the folder is still in use, or if its path cannot be written.
  // Throws Failure if the machine is at fault, as for a full disk.
  FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds timeout, const std::string& user,
             const std::string& remedy, std::chrono::milliseconds stale_after = default_stale_after,
             std::string note = "");
  ~FolderLock();  // deletes the file
  // Returns true if the file still exists and names this process. Returns false if the folder was
  // removed or replaced. Throws Failure if the look-up fails.
  bool held() const;
  // Call after the folder was renamed.
  void moved_to(const std::filesystem::path& folder) { path_ = folder / lock_name; }

 private:
  int try_lock();  // tries once; 0, or an errno value: EWOULDBLOCK if another process has the lock
  // Returns whether another host's file has not changed for stale_after_. Call it repeatedly.
  bool is_stale(int file, const std::string& written);
  void touch_until_stopped(const std::stop_token& stop) const;

  std::filesystem::path path_;
  std::chrono::milliseconds stale_after_;
  int file_ = -1;
  const std::string note_;                         // last line of the file
  std::string text_;                               // text of this process in the file
  std::string seen_;                               // latest state of another host's file
  std::chrono::steady_clock::time_point seen_at_;  // time of its latest change
  bool watching_ = false;                          // waiting for another host's file to change
  std::jthread heartbeat_;
  std::string holder_, advice_;  // text of the other holder; what to do if it is out of date
};

// Returns the text of the process that holds the lock of a folder ("node7, process 1234").
// Empty if no process holds it. Changes nothing. A process of another host counts if its file is
// younger than default_stale_after by this host's clock.
std::string lock_holder(const std::filesystem::path& folder);

// Returns the note of the last process that locked a folder, which may have ended.
// Empty if it gave no note, or if the folder has no lock file. Follows no links.
std::string lock_note(const std::filesystem::path& folder);

}  // namespace sy
