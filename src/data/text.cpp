#include "src/data/text.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace sy {

namespace fs = std::filesystem;

std::optional<Index> invalid_utf8(std::string_view text) {
  // First bytes, the number of continuation bytes after them, and the range of the first of these (the others
  // are 80..BF): what excludes overlong forms, surrogates and values above 10FFFF.
  struct Lead {
    unsigned char first, last;
    std::size_t more;
    unsigned char low, high;
  };
  static constexpr Lead leads[] = {
      {0x00, 0x7F, 0, 0, 0},       {0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
      {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F}, {0xEE, 0xEF, 2, 0x80, 0xBF},
      {0xF0, 0xF0, 3, 0x90, 0xBF}, {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F}};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const Lead* lead = std::find_if(std::begin(leads), std::end(leads),
                                    [&](const Lead& l) { return byte(i) >= l.first && byte(i) <= l.last; });
    if (lead == std::end(leads)) return static_cast<Index>(i);
    for (std::size_t j = 1; j <= lead->more; ++j) {
      const unsigned char low = j == 1 ? lead->low : 0x80, high = j == 1 ? lead->high : 0xBF;
      if (i + j >= text.size() || byte(i + j) < low || byte(i + j) > high) return static_cast<Index>(i);
    }
    i += 1 + lead->more;
  }
  return std::nullopt;
}

std::size_t cut_point(std::string_view text, std::size_t low, std::size_t high) {
  SY_ASSERT(low <= high && high <= text.size(), "cut within {}..{} of {}", low, high, text.size());
  for (const std::string_view end : {"\n\n", "\n"})
    if (high >= end.size())
      if (const std::size_t at = text.rfind(end, high - end.size()); at != text.npos && at + end.size() >= low)
        return at + end.size();
  const auto continues = [&](std::size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  // A character has at most three continuation bytes; more of them are not UTF-8, and may be cut anywhere.
  for (std::size_t at = high; at + 4 > high && at >= low; --at) {
    if (!continues(at)) return at;
    if (at == 0) break;
  }
  return high;
}

namespace {

Index size_of_file(const fs::path& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) bad_input("cannot read {}: {}", path.string(), error.message());
  return static_cast<Index>(bytes);
}

Index walk_folder(const fs::path& folder, const std::function<void(const fs::path&, Index)>& visit) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
    entries.push_back(i->path());
  if (error) bad_input("cannot read the folder {}: {}", folder.string(), error.message());
  std::sort(entries.begin(), entries.end());
  Index left_out = 0;
  for (const fs::path& entry : entries) {
    const bool link = fs::is_symlink(entry, error);
    const fs::file_status status = fs::status(entry, error);
    if (fs::is_regular_file(status))
      visit(entry, size_of_file(entry));
    else if (fs::is_directory(status) && !link)
      left_out += walk_folder(entry, visit);
    else
      ++left_out;
  }
  return left_out;
}

// Cuts one file into documents.
void read_documents(const fs::path& path, const std::function<void(Document&&)>& take) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) bad_input("cannot read {}: {}: check the file and its permissions", path.string(), std::strerror(errno));
  std::string buffer;
  bool ended = false;
  const auto fill = [&](std::size_t size) {
    const std::size_t have = buffer.size();
    if (ended || have >= size) return;
    buffer.resize(size);
    const std::size_t got = std::fread(buffer.data() + have, 1, size - have, file.get());
    if (std::ferror(file.get())) bad_input("cannot read {}: {}", path.string(), std::strerror(errno));
    buffer.resize(have + got);
    ended = got < size - have;
  };

  fill(max_document_bytes + 1);
  Index offset = 0;
  const std::size_t limit = ended ? max_document_bytes : piece_bytes;
  while (!buffer.empty()) {
    const std::size_t size = buffer.size() <= limit ? buffer.size() : cut_point(buffer, limit / 2, limit);
    take({buffer.substr(0, size), path, offset});
    buffer.erase(0, size);
    offset += static_cast<Index>(size);
    if (buffer.size() <= limit) fill(max_document_bytes);
  }
}

}  // namespace

Index walk_files(const fs::path& path, const std::function<void(const fs::path&, Index)>& visit) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_regular_file(status)) {
    visit(path, size_of_file(path));
    return 0;
  }
  if (fs::is_directory(status)) return walk_folder(path, visit);
  if (fs::exists(status)) bad_input("{} is neither a file nor a folder: name text files", path.string());
  bad_input("{}: {}: check the path", path.string(), error ? error.message() : "no such file or folder");
}

void for_each_document(const std::vector<fs::path>& paths, const std::function<void(Document&&)>& take) {
  for (const fs::path& path : paths) walk_files(path, [&](const fs::path& file, Index) { read_documents(file, take); });
}

}  // namespace sy
