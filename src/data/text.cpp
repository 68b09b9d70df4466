#include "src/data/text.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "src/data/stream.h"
#include "src/text/json.h"

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

using Take = std::function<void(Document&&)>;

// Reads more of the stream, so that the buffer holds `size` bytes or the stream has ended.
bool fill(ByteStream& stream, std::string& buffer, std::size_t size) {
  const std::size_t have = buffer.size();
  if (have >= size) return true;
  buffer.resize(size);
  buffer.resize(have + stream.read(std::span(buffer).subspan(have)));
  return buffer.size() == size;
}

std::size_t document_size(std::string_view text, std::size_t limit) {
  return text.size() <= limit ? text.size() : cut_point(text, limit / 2, limit);
}

// Cuts one file into documents. `document` says which file it is.
void read_text(Document document, const Take& take) {
  const auto stream = open_stream(document.file);
  std::string buffer;
  const bool large = fill(*stream, buffer, max_document_bytes + 1);
  const std::size_t limit = large ? piece_bytes : max_document_bytes;
  while (!buffer.empty()) {
    const std::size_t size = document_size(buffer, limit);
    document.text = buffer.substr(0, size);
    buffer.erase(0, size);
    const Index lines = std::count(document.text.begin(), document.text.end(), '\n');
    take(Document(document));
    document.line += lines;
    document.offset += static_cast<Index>(size);
    if (large && buffer.size() <= limit) fill(*stream, buffer, max_document_bytes);
  }
}

// The text of a line, empty where the line is blank.
std::string text_of_json(std::string_view json_line, const std::string& key, const fs::path& file, Index line) {
  if (json_line.find_first_not_of(" \t\r") == json_line.npos) return "";
  if (const auto bad = invalid_utf8(json_line))
    bad_input("{}: line {} is not UTF-8 from its byte {} on: convert the file (iconv -t UTF-8)", file.string(), line,
              *bad);
  try {
    Json object = Json::parse(json_line);
    if (!object.is_object())
      bad_input("{}: line {} is of JSON type {}, not an object: write {{\"{}\": \"...\"}}, one to a line",
                file.string(), line, object.type_name(), key);
    if (!object.contains(key))
      bad_input("{}: line {} has no key '{}': name the key of the text with --text-key", file.string(), line, key);
    Json& text = object[key];
    if (!text.is_string())
      bad_input("{}: line {}: '{}' is of JSON type {}, not a string: name the key of the text with --text-key",
                file.string(), line, key, text.type_name());
    return text.take_string();
  } catch (const JsonError& e) {
    bad_input("{}: line {} is {}: correct it, or rename a file that is plain text", file.string(), line, e.what());
  }
}

void read_json_lines(Document document, const std::string& key, const Take& take) {
  const auto stream = open_stream(document.file);
  std::string buffer;
  std::size_t begin = 0;  // of the line in the buffer
  for (bool more = true; more || begin < buffer.size(); ++document.line) {
    std::size_t end = buffer.find('\n', begin);
    while (end == buffer.npos && more) {
      buffer.erase(0, std::exchange(begin, 0));
      const std::size_t seen = buffer.size();
      if (seen >= max_json_line_bytes)
        bad_input("{}: line {} has {} MiB or more: is it JSON lines? split the line", document.file.string(),
                  document.line, max_json_line_bytes >> 20);
      more = fill(*stream, buffer, std::clamp(2 * seen, max_document_bytes, max_json_line_bytes));
      end = buffer.find('\n', seen);
    }
    end = std::min(end, buffer.size());
    const auto line = std::string_view(buffer).substr(begin, end - begin);
    const std::string text = text_of_json(line, key, document.file, document.line);
    const std::size_t limit = text.size() > max_document_bytes ? piece_bytes : max_document_bytes;
    for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(document.text.size())) {
      document.text = rest.substr(0, document_size(rest, limit));
      take(Document(document));
    }
    begin = end + 1;
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

void for_each_document(const std::vector<fs::path>& paths, const std::string& text_key, const Take& take) {
  Document document;
  for (const fs::path& path : paths)
    walk_files(path, [&](const fs::path& file, Index) {
      document.file = file;
      if (uncompressed_name(file).extension() == ".jsonl")
        read_json_lines(document, text_key, take);
      else
        read_text(document, take);
      ++document.file_number;
    });
}

}  // namespace sy
