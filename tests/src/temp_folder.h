// A temporary folder of a test, and checks of texts and errors.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "kernels/tensor.h"
#include "src/system/files.h"

namespace sy {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "switchyard-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw Failure("cannot make " + name);
    path_ = name;
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

inline bool has(const std::string& text, const std::string& substring) {
  return text.find(substring) != std::string::npos;
}
// Number of occurrences of `substring`, without overlaps.
inline Index count(const std::string& text, const std::string& substring) {
  Index n = 0;
  for (std::size_t at = 0; (at = text.find(substring, at)) != std::string::npos; at += substring.size()) ++n;
  return n;
}

// Returns the message of the E that `code` throws. The test fails if it throws another exception,
// or none.
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

// Expects that `code` throws an InputError whose message contains the text.
#define EXPECT_BAD_INPUT(code, text)                                          \
  do {                                                                        \
    const std::string thrown = MESSAGE_OF(sy::InputError, code);              \
    EXPECT_NE(thrown.find(text), std::string::npos) << "message: " << thrown; \
  } while (false)

}  // namespace sy
