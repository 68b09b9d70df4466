#include "dist/errors.h"

#include <gtest/gtest.h>

#include <csignal>
#include <new>
#include <stdexcept>
#include <thread>

namespace sy {
namespace {

template <class Exception>
void throw_in_thread(const Exception& exception) {
  install_terminate_handler();
  std::thread([&] { throw exception; }).join();
}

struct TerminateHandlerDeathTest : testing::Test {
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(TerminateHandlerDeathTest, PrintsALackOfMemory) {
  EXPECT_EXIT(throw_in_thread(std::bad_alloc()), testing::ExitedWithCode(1),
              "^switchyard: not enough memory: [^\n]*\n$");
  EXPECT_EXIT(throw_in_thread(NoMemory("no memory for 7 bytes")), testing::ExitedWithCode(1),
              "^switchyard: no memory for 7 bytes\n$");
}

TEST_F(TerminateHandlerDeathTest, AbortsAfterOtherExceptions) {
  EXPECT_EXIT(throw_in_thread(std::logic_error("a mistake")), testing::KilledBySignal(SIGABRT), "a mistake");
}

}  // namespace
}  // namespace sy
