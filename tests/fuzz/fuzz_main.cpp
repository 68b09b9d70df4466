// The fuzz targets under libFuzzer. tests/fuzz/fuzz.sh calls it.
//
//   fuzz TARGET [ARGUMENTS OF LIBFUZZER]   such as -runs=1000 CORPUS, or files to run
//   fuzz --list                            names of the targets without known findings
//   fuzz --commit                          commit of this build
//   fuzz --summary JOURNAL                 the table of the journal
//
// libFuzzer starts this program again for some of its commands. The environment then names the
// target.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "kernels/environment.h"
#include "src/build_info.h"
#include "tests/fuzz/journal.h"
#include "tests/fuzz/targets.h"

namespace sy::fuzz {
namespace {

constexpr const char* target_variable = "SWITCHYARD_FUZZ_TARGET";
const Target* chosen = nullptr;

[[noreturn]] void usage() {
  fmt::print(stderr,
             "fuzz: name a target: fuzz TARGET [ARGUMENTS OF LIBFUZZER]; tests/fuzz/corpus has a folder for each\n");
  std::exit(2);
}

// Runs a command that is not libFuzzer's. Returns false if it is no such command.
bool run_command(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--list") {
    for (const Target& target : targets())
      if (!target.has_known_findings) fmt::print("{}\n", target.name);
  } else if (name == "--commit") {
    fmt::print("{}\n", commit_text(build_info()));
  } else if (name == "--summary" && argc == 3) {
    fmt::print("{}", summary(read_journal(argv[2])));
  } else {
    return false;
  }
  return true;
}

}  // namespace
}  // namespace sy::fuzz

// NOLINTBEGIN(readability-identifier-naming): names of libFuzzer
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace sy::fuzz;
  sy::set_library_defaults();
  try {
    if (run_command(*argc, *argv)) std::exit(0);
  } catch (const std::exception& e) {
    fmt::print(stderr, "fuzz: {}\n", e.what());
    std::exit(2);
  }
  if (*argc > 1 && find_target((*argv)[1])) {
    setenv(target_variable, (*argv)[1], 1);
    (*argv)[1] = (*argv)[0];
    ++*argv;
    --*argc;
  }
  const char* const name = std::getenv(target_variable);
  chosen = name ? find_target(name) : nullptr;
  if (!chosen) usage();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sy::fuzz;
  const Verdict verdict = run(*chosen, std::as_bytes(std::span(data, size)));
  if (verdict.failure.empty()) return 0;
  fmt::print(stderr, "fuzz: {}: {}\n", chosen->name, verdict.failure);
  std::abort();
}
// NOLINTEND(readability-identifier-naming)
