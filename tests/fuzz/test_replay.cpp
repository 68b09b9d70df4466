// Replays the corpora of the fuzz targets, and some changes of each input.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <ostream>

#include "tests/fuzz/mutator.h"
#include "tests/fuzz/targets.h"
#include "tests/src/temp_folder.h"

// Size of the largest allocation by C++ since it was set to 0. Operators of this program record it.
static std::atomic<std::size_t> largest_allocation = 0;

static void* allocate_recorded(std::size_t bytes) {
  std::size_t largest = largest_allocation.load(std::memory_order_relaxed);
  while (bytes > largest && !largest_allocation.compare_exchange_weak(largest, bytes, std::memory_order_relaxed)) {
  }
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes) {
  return allocate_recorded(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate_recorded(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
  return allocate_recorded(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(bytes, nothrow);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace sy::fuzz {

// Names a target in a failure of gtest.
void PrintTo(const Target& target, std::ostream* out) {
  *out << target.name;
}

namespace {

namespace fs = std::filesystem;

struct CorpusFile {
  std::string name, content;
};

std::vector<CorpusFile> corpus_of(const Target& target) {
  std::vector<CorpusFile> files;
  for (const auto& entry : fs::directory_iterator(fs::path(FUZZ_CORPUS) / target.name)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files.push_back({entry.path().filename().string(), {std::istreambuf_iterator<char>(in), {}}});
  }
  std::ranges::sort(files, {}, &CorpusFile::name);
  return files;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The input that a target reads. After a crash it is written, too.
static const std::string* current_input = nullptr;
static std::string finding_file;

// Writes the input, so that `fuzz TARGET FILE` repeats the finding.
void save_finding() {
  const int file = ::open(finding_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  [[maybe_unused]] const auto written = ::write(file, current_input->data(), current_input->size());
  ::close(file);
}

void save_and_end(int signal) {
  if (current_input) save_finding();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class FuzzReplay : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    finding_file = (fs::temp_directory_path() / (std::string("finding-") + GetParam().name)).string();
    for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) std::signal(signal, save_and_end);
  }
  // Runs the target, and expects that it accepts or refuses the input within its bounds.
  Verdict replay(const std::string& input) {
    const Target& target = GetParam();
    largest_allocation = 0;
    current_input = &input;
    const double begin = seconds_now();
    const Verdict verdict = run(target, input_of(input));
    if (!verdict.failure.empty() || largest_allocation > max_allocation_bytes || seconds_now() - begin > max_seconds) {
      save_finding();
      ADD_FAILURE() << finding_file << " takes " << seconds_now() - begin << " s and allocates " << largest_allocation
                    << " bytes at once: " << verdict.failure;
    }
    current_input = nullptr;
    return verdict;
  }
};

TEST_P(FuzzReplay, AcceptsOrRefusesTheCorpus) {
  const std::vector<CorpusFile> files = corpus_of(GetParam());
  int accepted = 0;
  for (const CorpusFile& file : files) {
    SCOPED_TRACE(file.name);
    const std::string refusal = replay(file.content).refusal;
    // Otherwise the target would test nothing but its first check.
    if (file.name.starts_with("valid")) {
      EXPECT_EQ(refusal, "");
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 0) << "the corpus has no valid file";
}

TEST_P(FuzzReplay, AcceptsOrRefusesChangedInputs) {
  const int changes_of_file = GetParam().has_known_findings ? 0 : 100;
  std::vector<std::string> contents;
  for (const CorpusFile& file : corpus_of(GetParam())) contents.push_back(file.content);
  Mutator mutator(1);
  for (const std::string& content : contents)
    for (int i = 0; i < changes_of_file; ++i) replay(mutator.changed(content, contents));
}

TEST_P(FuzzReplay, EndsForEmptyAndUniformInputs) {
  for (const std::size_t bytes : {0, 1, 3, 4, 5, 1000})
    for (const char c : {'\0', '\xff', ' ', '[', '{', '9', '('}) replay(std::string(bytes, c));
}

INSTANTIATE_TEST_SUITE_P(All, FuzzReplay, testing::ValuesIn(targets()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(FuzzTargets, HaveUniqueNames) {
  std::vector<std::string> names;
  for (const Target& target : targets()) names.emplace_back(target.name);
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  EXPECT_EQ(find_target("no target"), nullptr);
}

}  // namespace
}  // namespace sy::fuzz
