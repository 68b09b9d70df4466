// A folder that goes with the test.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "src/io/files.h"

namespace sy {

class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> number = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("switchyard-test-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Writes a file below the folder and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }

 private:
  std::filesystem::path path_;
};

// The message of the E that `code` throws; fails the test when it throws something else or nothing.
#define MESSAGE_OF(E, code)                                      \
  [&]() -> std::string {                                         \
    try {                                                        \
      code;                                                      \
    } catch (const E& error) {                                   \
      return error.what();                                       \
    } catch (const std::exception& error) {                      \
      ADD_FAILURE() << "threw something else: " << error.what(); \
      return {};                                                 \
    }                                                            \
    ADD_FAILURE() << "did not throw";                            \
    return {};                                                   \
  }()

// `code` throws InputError, and its message has this text.
#define EXPECT_BAD_INPUT(code, text)                                            \
  do {                                                                          \
    const std::string message = MESSAGE_OF(sy::InputError, code);               \
    EXPECT_NE(message.find(text), std::string::npos) << "message: " << message; \
  } while (false)

}  // namespace sy
