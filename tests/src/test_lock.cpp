#include "src/io/lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <fstream>
#include <thread>

#include "kernels/check.h"
#include "src/system/files.h"

#include "tests/src/temp_folder.h"

namespace {
bool no_locks = false;  // true: like some network file systems
}

// Replaces flock() of the C library in this program. A struct of POSIX has the same name.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
extern "C" int flock(int file, int operation) noexcept {
  if (!no_locks) return static_cast<int>(syscall(SYS_flock, file, operation));
  errno = ENOLCK;
  return -1;
}
#pragma GCC diagnostic pop

namespace sy {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

struct LockTest : testing::TestWithParam<bool> {
  LockTest() { no_locks = GetParam(); }
  ~LockTest() override { no_locks = false; }
  std::string file() const { return (folder.path() / "switchyard.lock").string(); }
  void take(milliseconds timeout = milliseconds(0), milliseconds stale_after = milliseconds(300)) const {
    const FolderLock lock(folder.path(), timeout, "run.dir", "choose another run.dir", stale_after);
    EXPECT_NE(read_file(file()).find(", process " + std::to_string(getpid())), std::string::npos);
  }
  TempFolder folder;
};
INSTANTIATE_TEST_SUITE_P(FileSystems, LockTest, testing::Values(false, true),
                         [](const auto& test) { return test.param ? "WithoutLocks" : "WithLocks"; });

// lock_holder() takes no lock.
TEST_P(LockTest, NamesTheHolder) {
  EXPECT_EQ(lock_holder(folder.path()), "");
  {
    const FolderLock lock(folder.path(), milliseconds(0), "run.dir", "choose another run.dir");
    if (GetParam()) return;  // without locks, its own file looks old to a process
    EXPECT_TRUE(has(lock_holder(folder.path()), ", process " + std::to_string(getpid())));
    EXPECT_TRUE(lock.held());
  }
  EXPECT_EQ(lock_holder(folder.path()), "");
  folder.write("switchyard.lock", "");
  EXPECT_EQ(lock_holder(folder.path()), "");
  fs::remove(file());
  ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
  EXPECT_EQ(lock_holder(folder.path()), "");
}
// A file of another host is judged by its age.
TEST_P(LockTest, NamesAHolderOnAnotherHostWhileItsFileIsRecent) {
  folder.write("switchyard.lock", "elsewhere, process 7\n");
  EXPECT_EQ(lock_holder(folder.path()), "elsewhere, process 7");
  fs::last_write_time(file(), fs::file_time_type::clock::now() - std::chrono::minutes(5));
  EXPECT_EQ(lock_holder(folder.path()), "");
}

// A process that holds the lock. SIGKILL ends it; after SIGTERM it releases the lock and exits.
struct Holder {
  explicit Holder(const fs::path& folder) {
    EXPECT_EQ(pipe(ready), 0);
    process = fork();
    if (process != 0) {
      char c;
      EXPECT_EQ(read(ready[0], &c, 1), 1);
      return;
    }
    {
      // A blocked signal stays pending until sigwait(), even if it arrives early.
      sigset_t signals;
      sigemptyset(&signals);
      sigaddset(&signals, SIGTERM);
      sigprocmask(SIG_BLOCK, &signals, nullptr);
      const FolderLock lock(folder, milliseconds(0), "run.dir", "");
      static_cast<void>(!write(ready[1], "x", 1));
      int signal = 0;
      sigwait(&signals, &signal);
    }
    _exit(0);
  }
  void end(int signal) {
    kill(process, signal);
    waitpid(process, nullptr, 0);
    for (const int end : ready) close(end);
  }
  pid_t process;
  int ready[2];
};

TEST_P(LockTest, IsHeldByOneProcessAndNamesIt) {
  setenv("SLURM_JOB_ID", "4711", 1);
  Holder holder(folder.path());
  unsetenv("SLURM_JOB_ID");
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::string who = fmt::format("{}, process {}, job 4711", host, holder.process);
  const std::string text = read_file(file());
  EXPECT_EQ(text.find(who + "\nsince 20"), 0u) << text;
  EXPECT_BAD_INPUT(take(), fmt::format("run.dir = {} is in use by {}: wait for it, or choose another run.dir",
                                       folder.path().string(), who));
  EXPECT_EQ(read_file(file()), text);  // unchanged
  holder.end(SIGTERM);
  EXPECT_FALSE(fs::exists(file()));
  take();
  EXPECT_FALSE(fs::exists(file()));
}

TEST_P(LockTest, IsLostIfItsFileIsRemoved) {
  const FolderLock lock(folder.path(), milliseconds(0), "run.dir", "choose another run.dir");
  EXPECT_TRUE(lock.held());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string error;
  try {
    error = lock.held() ? "held" : "lost";  // not known: no file can be opened
  } catch (const Failure& e) {
    error = e.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(error, fmt::format("cannot look up {}: Too many open files", file()));
  fs::remove(file());
  EXPECT_FALSE(lock.held());
  write_file(file(), "elsewhere, process 1\n");  // of another process
  EXPECT_FALSE(lock.held());
}

TEST_P(LockTest, IsFreeAfterAKill) {
  Holder holder(folder.path());
  holder.end(SIGKILL);
  ASSERT_TRUE(fs::exists(file()));
  take();
  EXPECT_FALSE(fs::exists(file()));
}

TEST_P(LockTest, WaitsForAnEndingProcess) {
  Holder holder(folder.path());
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(300));
    holder.end(SIGKILL);
  });
  EXPECT_NO_THROW(take(std::chrono::minutes(1)));
  later.join();
}

// A leftover file does not show whether a process of another host is alive. A free lock, or a file
// that no longer changes, shows that it has ended.
TEST_P(LockTest, IsRefusedForAnotherHostWithoutLocks) {
  write_file(file(), "elsewhere, process 1\n");
  if (!no_locks) return take();
  EXPECT_BAD_INPUT(take(), "in use by elsewhere, process 1: wait");
  EXPECT_BAD_INPUT(take(), "if that process is gone, delete " + file());
}

// If locks are local to a host, two hosts may both get one. The holder's file changes, which the
// other host sees even if the clocks differ.
TEST_P(LockTest, IsRefusedWhileAnotherHostHoldsIt) {
  if (no_locks) return;
  write_file(file(), "elsewhere, process 1\n");
  std::jthread holder([&](const std::stop_token& stop) {
    for (std::time_t time = 1; !stop.stop_requested(); ++time) {  // since 1970: a wrong clock
      const timespec now[2] = {{time, 0}, {time, 0}};
      utimensat(AT_FDCWD, file().c_str(), now, 0);
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_BAD_INPUT(take(milliseconds(0), std::chrono::minutes(1)), "in use by elsewhere, process 1: wait for it");
  EXPECT_BAD_INPUT(take(milliseconds(0), std::chrono::minutes(1)), "if that process is gone, delete " + file());
  holder.request_stop();
  holder.join();
  EXPECT_NO_THROW(take());
}

TEST_P(LockTest, UpdatesItsFileWhileHeld) {
  const FolderLock lock(folder.path(), milliseconds(0), "run.dir", "", milliseconds(60));
  struct stat before {
  }, now{};
  ASSERT_EQ(stat(file().c_str(), &before), 0);
  do {
    std::this_thread::sleep_for(milliseconds(5));
    ASSERT_EQ(stat(file().c_str(), &now), 0);
  } while (now.st_mtim.tv_sec == before.st_mtim.tv_sec && now.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
  EXPECT_TRUE(lock.held());
  std::ofstream(file()) << "elsewhere, process 1\n";  // another host took the lock
  EXPECT_FALSE(lock.held());
}

TEST_P(LockTest, RejectsLinksToAnotherFile) {
  const fs::path victim = folder.path() / "victim";
  std::ofstream(victim) << "precious";
  fs::create_hard_link(victim, file());
  EXPECT_BAD_INPUT(take(), "cannot be written (its switchyard.lock is a second name of another file)");
  fs::remove(file());
  fs::create_symlink(victim, file());
  EXPECT_BAD_INPUT(take(), "cannot be written (its switchyard.lock is a link)");
  EXPECT_EQ(read_file(victim), "precious");
}

TEST_P(LockTest, RejectsAMissingFolder) {
  EXPECT_BAD_INPUT(FolderLock(folder.path() / "no", milliseconds(0), "run.dir", "choose another run.dir"),
                   "run.dir = " + (folder.path() / "no").string() + " cannot be written (No such file");
}

}  // namespace
}  // namespace sy
