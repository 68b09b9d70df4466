#include "src/data/text.h"

#include <fnmatch.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "src/data/stream.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/strings.h"
#include "src/tokenizers/unicode.h"

namespace sy {

namespace fs = std::filesystem;

std::optional<Index> binary_byte(std::string_view text) {
  const std::size_t nul = text.find('\0');
  const std::optional<Index> bad = invalid_utf8(text.substr(0, nul));
  return bad || nul == text.npos ? bad : static_cast<Index>(nul);
}

SkippedFiles& SkippedFiles::operator+=(const SkippedFiles& other) {
  for (const SkipReason& reason : skip_reasons) this->*reason.count += other.*reason.count;
  return *this;
}

std::string SkippedFiles::text() const {
  std::vector<std::string> texts;
  for (const SkipReason& reason : skip_reasons)
    if (const Index count = this->*reason.count; count > 0)
      texts.push_back(fmt::format("{} {}", count, count == 1 ? reason.one : reason.many));
  return join(texts, ", ");
}

std::size_t cut_point(std::string_view text, std::size_t low, std::size_t high) {
  SY_ASSERT(low <= high && high <= text.size(), "cut within {}..{} of {}", low, high, text.size());
  std::optional<std::size_t> line_end;
  for (std::size_t at = high; at > 0 && at >= low; --at) {
    if (text[at - 1] != '\n') continue;
    if (at > 1 && text[at - 2] == '\n') return at;
    if (!line_end) line_end = at;
  }
  if (line_end) return *line_end;
  const auto continues = [&](std::size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  // A character has at most three continuation bytes. Longer sequences are not UTF-8 and may be cut
  // anywhere.
  for (std::size_t at = high; at + 4 > high && at >= low; --at) {
    if (!continues(at)) return at;
    if (at == 0) break;
  }
  return high;
}

namespace {

bool matches_any(const std::vector<std::string>& globs, const fs::path& below) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    const fs::path& text = glob.find('/') == glob.npos ? below.filename() : below;
    return ::fnmatch(glob.c_str(), text.c_str(), 0) == 0;
  });
}

// Returns the type of an entry of a folder, as walk_files() selects it. A link to a file has the
// type of the file. Throws InputError if the entry cannot be looked up, or has vanished.
fs::file_type selected_type(const fs::path& entry) {
  const fs::file_type type = file_type(entry, Links::keep);
  if (type == fs::file_type::not_found) bad_input("{} has vanished while its folder was read", entry.string());
  if (type != fs::file_type::symlink) return type;
  std::error_code error;
  const fs::file_type target = fs::status(entry, error).type();
  const bool is_broken = target == fs::file_type::not_found || error.value() == ELOOP;
  if (is_broken || target == fs::file_type::directory) return type;
  if (target == fs::file_type::none)
    bad_input("cannot look up {}: {}: correct it, or leave it out with --exclude", entry.string(), error.message());
  return target;
}

// Walks a folder recursively. below: its path relative to the named folder.
SkippedFiles walk_folder(const fs::path& folder, const fs::path& below, const FileFilter& filter,
                         const std::function<void(const fs::path&)>& visit) {
  SkippedFiles skipped;
  for (const fs::path& entry : entries_of(folder)) {
    const fs::path name = below / entry.filename();
    if (name.filename().native().starts_with('.')) {
      ++skipped.hidden;
      continue;
    }
    if (matches_any(filter.exclude, name)) {  // perhaps because it cannot be looked up
      ++skipped.filtered;
      continue;
    }
    const fs::file_type type = selected_type(entry);
    const bool is_text = type == fs::file_type::regular;
    if (!is_text && type != fs::file_type::directory)
      ++skipped.special;
    else if (is_text && !filter.include.empty() && !matches_any(filter.include, name))
      ++skipped.filtered;
    else if (is_text)
      visit(entry);
    else
      skipped += walk_folder(entry, name, filter, visit);
  }
  return skipped;
}

using Take = std::function<bool(Document&&)>;

// Reads more of the stream, so that the buffer holds `size` bytes or the stream has ended.
bool fill(ByteStream& stream, std::string& buffer, std::size_t size) {
  while (buffer.size() < size) {
    // Most files are small: the buffer grows with the text.
    const std::size_t have = buffer.size(), wanted = std::min(size - have, std::max(have, chunk_bytes));
    buffer.resize(have + wanted);
    const std::size_t n = stream.read(std::span(buffer).subspan(have));
    buffer.resize(have + n);
    if (n < wanted) return false;
  }
  return true;
}

std::size_t document_size(std::string_view text, std::size_t limit) {
  return text.size() <= limit ? text.size() : cut_point(text, limit / 2, limit);
}

// Cuts one file into documents. `document` has the file's path and number.
void read_text(Document document, const Take& take) {
  const auto stream = open_stream(document.file);
  std::string buffer;
  const bool large = fill(*stream, buffer, max_document_bytes + 1);
  const std::size_t limit = large ? chunk_bytes : max_document_bytes;
  while (!buffer.empty()) {
    const std::size_t size = document_size(buffer, limit);
    document.text = buffer.substr(0, size);
    buffer.erase(0, size);
    const Index lines = std::count(document.text.begin(), document.text.end(), '\n');
    if (!take(Document(document))) return;
    document.line += lines;
    document.offset += static_cast<Index>(size);
    if (large && buffer.size() <= limit) fill(*stream, buffer, max_document_bytes);
  }
}

// Returns the text of a line. Empty if the line is blank.
std::string text_of_json(std::string_view json_line, const std::optional<std::string>& key, const fs::path& file,
                         Index line) {
  if (json_line.find_first_not_of(" \t\r") == json_line.npos) return "";
  if (const auto bad = invalid_utf8(json_line))
    bad_input("{}: line {} is not UTF-8 from its byte {} on: convert the file (iconv -t UTF-8)", file.string(), line,
              *bad);
  if (!key) return std::string(json_line);
  try {
    Json object = Json::parse(json_line);
    if (!object.is_object())
      bad_input("{}: line {} is of JSON type {}, not an object: write {{\"{}\": \"...\"}}, one to a line",
                file.string(), line, object.type_name(), *key);
    if (!object.contains(*key))
      bad_input("{}: line {} has no key '{}': name the key of the text with --text-key", file.string(), line, *key);
    Json& text = object[*key];
    if (!text.is_string())
      bad_input("{}: line {}: '{}' is of JSON type {}, not a string: name the key of the text with --text-key",
                file.string(), line, *key, text.type_name());
    return text.take_string();
  } catch (const JsonError& e) {
    bad_input("{}: line {} is {}: correct it, or rename a file that is plain text", file.string(), line, e.what());
  }
}

void read_json_lines(Document document, const std::optional<std::string>& key, const Take& take) {
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
    const std::size_t limit = !key                               ? max_json_line_bytes
                              : text.size() > max_document_bytes ? chunk_bytes
                                                                 : max_document_bytes;
    for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(document.text.size())) {
      document.text = rest.substr(0, document_size(rest, limit));
      if (!take(Document(document))) return;
    }
    begin = end + 1;
  }
}

}  // namespace

void check_text_path(const fs::path& path) {
  const fs::file_type type = file_type(path);
  if (type == fs::file_type::regular || type == fs::file_type::directory) return;
  if (type == fs::file_type::not_found) bad_input("{}: {}: check the path", path.string(), std::strerror(ENOENT));
  bad_input("{} is neither a file nor a folder: name text files", path.string());
}

SkippedFiles walk_files(const fs::path& path, const FileFilter& filter,
                        const std::function<void(const fs::path&)>& visit) {
  check_text_path(path);
  if (is_folder(path)) return walk_folder(path, {}, filter, visit);
  visit(path);
  return {};
}

bool is_json_lines(const fs::path& file) {
  return uncompressed_name(file).extension() == ".jsonl";
}

void for_each_document(const std::vector<fs::path>& paths, const FileFilter& filter,
                       const std::optional<std::string>& text_key, const Take& take) {
  Document document;
  for (const fs::path& path : paths)
    walk_files(path, filter, [&](const fs::path& file) {
      document.file = file;
      document.named = file == path;
      if (is_json_lines(file))
        read_json_lines(document, text_key, take);
      else if (!text_key)
        bad_input("{} is not *.jsonl: write conversations as JSON lines, or choose files with --include '*.jsonl'",
                  file.string());
      else
        read_text(document, take);
      ++document.file_number;
    });
}

}  // namespace sy
