// A file that is appended to in flushed chunks, so that a reader sees whole chunks.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "src/system/files.h"

namespace sy {

class AppendFile {
 public:
  // Empties the file. Throws InputError or Failure if it cannot be opened (open_for_writing()).
  explicit AppendFile(std::filesystem::path path) : path_(std::move(path)), file_(open_for_writing(path_, "w")) {}
  ~AppendFile() { std::fclose(file_); }
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  // Throws Failure if the chunk cannot be written.
  void add(std::string_view chunk) {
    if (std::fwrite(chunk.data(), 1, chunk.size(), file_) != chunk.size() || std::fflush(file_) != 0)
      fail("cannot write {}: {}", path_.string(), std::strerror(errno));
  }

 private:
  std::filesystem::path path_;
  std::FILE* file_;
};

}  // namespace sy
