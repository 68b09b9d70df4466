#include "dist/leftovers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "kernels/check.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// A job folder with one segment, and a launcher process that the test can end.
class Leftovers : public testing::Test {
 protected:
  void SetUp() override {
    jobs_ = fs::temp_directory_path() / fmt::format("leftovers-{}", getpid());
    job_ = jobs_ / "pid.17";
    fs::create_directories(job_ / "1");
    segment_ = fmt::format("/dev/shm/vader_segment.test.{}", getpid());
    std::ofstream(segment_) << std::string(4096, 'x');
    launcher_ = fork();
    if (launcher_ == 0) {
      if (fork() == 0) {  // the rank: a killed rank
        const int file = open(segment_.c_str(), O_RDWR);
        if (mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED) _exit(1);
        record_job(job_);
        _exit(0);
      }
      wait(nullptr);
      raise(SIGSTOP);
      _exit(0);
    }
    int status = 0;
    waitpid(launcher_, &status, WUNTRACED);
    ASSERT_TRUE(fs::exists(record()));
  }
  void end_launcher() {
    if (launcher_ == 0) return;
    kill(launcher_, SIGKILL);
    waitpid(launcher_, nullptr, 0);
    launcher_ = 0;
  }
  void TearDown() override {
    end_launcher();
    fs::remove_all(jobs_);
    fs::remove(segment_);
  }
  fs::path record() const { return job_ / "switchyard-job"; }
  void expect_no_removal() {
    EXPECT_EQ(collect_leftovers(jobs_), 0);
    EXPECT_TRUE(fs::exists(segment_));
    EXPECT_TRUE(fs::exists(record()));
  }
  void change_record(const std::string& from, const std::string& to) {
    std::stringstream content;
    content << std::ifstream(record()).rdbuf();
    std::string text = content.str();
    ASSERT_NE(text.find(from), text.npos) << text;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(record()) << text;
  }

  fs::path jobs_, job_, segment_;
  pid_t launcher_ = 0;
};

TEST_F(Leftovers, AreDeletedIfTheJobIsDead) {
  fs::create_directories(jobs_ / "pid.18");  // job of another program
  expect_no_removal();                       // the launcher is alive
  end_launcher();
  EXPECT_EQ(collect_leftovers(jobs_), 1);
  EXPECT_FALSE(fs::exists(segment_));
  EXPECT_FALSE(fs::exists(job_));
  EXPECT_TRUE(fs::exists(jobs_ / "pid.18"));
}

TEST_F(Leftovers, StayWhileAProcessUsesThem) {
  end_launcher();
  const int file = open(segment_.c_str(), O_RDWR);
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  ASSERT_NE(mapped, MAP_FAILED);
  expect_no_removal();
  munmap(mapped, 4096);
}

TEST_F(Leftovers, StayIfOfAnotherBootOrNamespace) {
  end_launcher();
  change_record("pid:[", "pid:[1");
  expect_no_removal();
}

TEST_F(Leftovers, StayWithoutACompleteRecord) {
  end_launcher();
  change_record("0 end\n", "");
  expect_no_removal();
}

// The recorded name is now another file: its inode differs.
TEST_F(Leftovers, StayIfTheFileIsNewer) {
  end_launcher();
  change_record(" /dev/shm", "7 /dev/shm");
  EXPECT_EQ(collect_leftovers(jobs_), 1);
  EXPECT_TRUE(fs::exists(segment_));
}

TEST_F(Leftovers, StayBehindALink) {
  end_launcher();
  fs::rename(job_, jobs_ / "elsewhere");
  fs::create_directory_symlink(jobs_ / "elsewhere", job_);
  EXPECT_EQ(collect_leftovers(jobs_), 0);
  EXPECT_TRUE(fs::exists(segment_));
}

}  // namespace
}  // namespace sy
