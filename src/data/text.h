// Text files as documents: walking folders, reading JSON lines, cutting text.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Returns an offset in [low, high] at which to cut text in two.
// It is after the last blank line in that range, or else after the last line end. Without these it
// is the last offset that cuts no UTF-8 character, or else `high`.
// Requires 0 <= low <= high <= text.size().
std::size_t cut_point(std::string_view text, std::size_t low, std::size_t high);

// Returns the offset of the first byte that makes a file binary: NUL or invalid UTF-8. Empty if
// there is none.
std::optional<Index> binary_byte(std::string_view text);

// Selects files of a folder by globs (fnmatch; * also matches slashes). A glob without a slash is
// matched against the name, one with a slash against the path below the folder.
struct FileFilter {
  std::vector<std::string> include;  // files match one of these; empty if all files match
  std::vector<std::string> exclude;  // files and folders match none of these
};

// Files, folders and conversations that are left out, by reason.
struct SkippedFiles {
  Index special = 0;        // links to folders, links to nothing, special files
  Index hidden = 0;         // names that begin with a dot
  Index filtered = 0;       // by a FileFilter
  Index binary = 0;         // files that are not UTF-8 text
  Index copies = 0;         // files with the text of another file
  Index long_examples = 0;  // conversations over PrepareOptions::max_tokens
  SkippedFiles& operator+=(const SkippedFiles& other);
  // "3 binary files, 1 hidden file or folder"; empty if nothing is left out
  std::string text() const;
};
struct SkipReason {
  const char *key, *one, *many;  // key in JSON; texts after a count
  Index SkippedFiles::*count;
};
constexpr SkipReason skip_reasons[] = {
    {"binary", "binary file", "binary files", &SkippedFiles::binary},
    {"hidden", "hidden file or folder", "hidden files and folders", &SkippedFiles::hidden},
    {"filtered", "file or folder by --include and --exclude", "files and folders by --include and --exclude",
     &SkippedFiles::filtered},
    {"special", "link to a folder, broken link or special file", "links to folders, broken links and special files",
     &SkippedFiles::special},
    {"copies", "file with the text of another file", "files with the text of another file", &SkippedFiles::copies},
    {"long", "conversation of more tokens than --max-tokens", "conversations of more tokens than --max-tokens",
     &SkippedFiles::long_examples}};

// Throws InputError unless `path` is a regular file or a folder.
void check_text_path(const std::filesystem::path& path);

// Calls `visit` for `path` itself, or for the selected regular files below it, in sorted order of
// their paths.
// Links to files are followed. Below a folder, hidden files and folders, links to folders, broken
// links and special files are left out. So no text is read twice, and cycles of links end.
// Returns the counts of everything left out. Holds the names of one folder per level. Throws
// InputError if `path` is missing or a folder is unreadable.
SkippedFiles walk_files(const std::filesystem::path& path, const FileFilter& filter,
                        const std::function<void(const std::filesystem::path& file)>& visit);

struct Document {
  std::string text;
  std::filesystem::path file;
  bool named = false;     // the file is one of the paths; it was not found in a folder
  Index file_number = 0;  // among all files of the paths, from 0
  Index line = 1;         // line of the file at which the text begins, from 1
  Index offset = 0;       // of the text in the (uncompressed) file; 0 in a .jsonl file
};

// A file of up to max_document_bytes is one document. A larger file is a collection, which is cut
// (cut_point) into documents of up to chunk_bytes. So a validation split can be drawn from a single
// large file, and no document needs much memory. No byte is lost or added.
// Each line of NAME.jsonl is a JSON object whose `text_key` is a document, cut by the same rule.
// NAME.gz and NAME.zst are read like NAME.
constexpr std::size_t max_document_bytes = 1 << 20;
constexpr std::size_t chunk_bytes = 64 << 10;
constexpr std::size_t max_json_line_bytes = 64 << 20;

// Returns true if the name, without .gz or .zst, ends in .jsonl.
bool is_json_lines(const std::filesystem::path& file);

// Calls `take` with the documents of the files, in order. Documents are never empty. If `take`
// returns false, the rest of the file is skipped.
// If text_key is empty, all files are JSON lines, and a document is a whole line.
// Throws InputError that names an unreadable file, and the line of a .jsonl file.
void for_each_document(const std::vector<std::filesystem::path>& paths, const FileFilter& filter,
                       const std::optional<std::string>& text_key, const std::function<bool(Document&&)>& take);

}  // namespace sy
