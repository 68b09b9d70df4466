// Helpers of the fuzz targets.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/check.h"
#include "tests/fuzz/targets.h"
#include "tests/src/temp_folder.h"

namespace sy::fuzz {

// A temporary folder whose files get new content for each input. It is in $TMPDIR, which fuzz.sh
// sets to a folder in memory. A file stays open, so that a write looks up no path.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() {
    for (const auto& [name, descriptor] : open_) ::close(descriptor);
  }
  Scratch(const Scratch&) = delete;
  const std::filesystem::path& path() const { return folder_.path(); }
  // Replaces the content of a file, whose folder is made first. Returns its path.
  std::filesystem::path write(const std::string& name, std::string_view content) {
    auto found = open_.find(name);
    if (found == open_.end()) {
      const std::filesystem::path file = folder_.write(name, "");
      found = open_.emplace(name, ::open(file.c_str(), O_WRONLY | O_CLOEXEC)).first;
    }
    const auto bytes = static_cast<ssize_t>(content.size());
    if (::pwrite(found->second, content.data(), content.size(), 0) != bytes || ::ftruncate(found->second, bytes) != 0)
      throw std::runtime_error("cannot write " + name);
    return path() / name;
  }

 private:
  TempFolder folder_;
  std::map<std::string, int> open_;
};

// Divides an input into two files. It begins with the size of the first file: 4 bytes,
// little-endian. A size beyond the end gives an empty second file.
inline std::array<std::string_view, 2> two_files(Input input) {
  const std::string_view all = view_of(input);
  std::uint32_t size = 0;
  if (all.size() < sizeof size) return {all, {}};
  std::memcpy(&size, all.data(), sizeof size);
  const std::string_view rest = all.substr(sizeof size);
  return {rest.substr(0, size), rest.substr(std::min<std::size_t>(size, rest.size()))};
}

// Calls several readers of one input: an InputError of one does not keep the others from it.
// Usage: attempts([&] { read_a(); }); attempts([&] { read_b(); }); attempts.finish();
class Attempts {
 public:
  template <class Read>
  void operator()(const Read& read) {
    try {
      read();
    } catch (const InputError& e) {
      if (!first_) first_ = e;
    }
  }
  // Throws the first InputError.
  void finish() const {
    if (first_) throw *first_;
  }

 private:
  std::optional<InputError> first_;
};

// Throws an error that is no InputError, so that the input is a finding.
inline void require(bool holds, std::string_view what) {
  if (!holds) throw std::logic_error("it does not hold that " + std::string(what));
}

}  // namespace sy::fuzz
