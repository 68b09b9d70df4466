// Text files as documents: finding them, reading JSON lines, cutting them, checking that they are UTF-8.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// The offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7), if any.
std::optional<Index> invalid_utf8(std::string_view text);

// Where to cut text in two: a place in [low, high] after the last blank line there, else after the last line
// end, else the last one that cuts no UTF-8 character, else `high`. Needs 0 <= low <= high <= text.size().
std::size_t cut_point(std::string_view text, std::size_t low, std::size_t high);

// The offset of the first byte that makes a file binary: NUL, or one that is not UTF-8. Empty if
// there is none.
std::optional<Index> binary_byte(std::string_view text);

// Selects files of a folder by globs (fnmatch, in which * matches slashes, too). A glob without a
// slash is compared with a name, and one with a slash with the path below the folder.
struct FileFilter {
  std::vector<std::string> include;  // files match one of these; empty: all files do
  std::vector<std::string> exclude;  // files and folders match none of these
};

// Files and folders that are not read, by reason.
struct LeftOut {
  Index special = 0;   // links to folders, links to nothing, special files
  Index hidden = 0;    // names that begin with a dot
  Index filtered = 0;  // by a FileFilter
  Index binary = 0;    // files that are not UTF-8 text
  Index copies = 0;    // files with the text of another file
  LeftOut& operator+=(const LeftOut& other);
  std::string text() const;  // "3 binary files, 1 hidden file or folder"; empty if nothing is left out
};
struct LeftOutReason {
  const char *key, *one, *many;  // of JSON; after a count
  Index LeftOut::*count;
};
constexpr LeftOutReason left_out_reasons[] = {
    {"binary", "binary file", "binary files", &LeftOut::binary},
    {"hidden", "hidden file or folder", "hidden files and folders", &LeftOut::hidden},
    {"filtered", "file or folder by --include and --exclude", "files and folders by --include and --exclude",
     &LeftOut::filtered},
    {"special", "link to a folder, broken link or special file", "links to folders, broken links and special files",
     &LeftOut::special},
    {"copies", "file with the text of another file", "files with the text of another file", &LeftOut::copies}};

// Throws InputError unless `path` is a regular file or a folder.
void check_text_path(const std::filesystem::path& path);

// Calls `visit` for every file: `path` itself, or the regular files below a folder that the filter
// selects, in the sorted order of their paths. Links to files are followed. Below a folder, hidden
// files and folders, links to folders, links to nothing and special files are left out (a corpus is
// not read twice, and a circle of links ends). Returns the counts of all that is left out. Holds
// the names of one folder per level. Throws InputError if `path` is missing or a folder cannot be
// read.
LeftOut walk_files(const std::filesystem::path& path, const FileFilter& filter,
                   const std::function<void(const std::filesystem::path& file, Index bytes)>& visit);

struct Document {
  std::string text;
  std::filesystem::path file;
  bool named = false;     // the file is one of the paths, and not found in a folder
  Index file_number = 0;  // among all files of the paths, from 0 on
  Index line = 1;         // of the file: where the text begins, from 1 on
  Index offset = 0;       // of the text in the (uncompressed) file; 0 in a .jsonl file
};

// A file of up to max_document_bytes is a document. A larger one is taken for a collection and cut
// (cut_point) into documents of up to piece_bytes: then a validation split can be drawn from a single large
// file, and no document needs much memory. No byte is lost or added. Of a file NAME.jsonl each line is a JSON object,
// whose `text_key` is a document, treated as a file is. NAME.gz and NAME.zst are read as NAME.
constexpr std::size_t max_document_bytes = 1 << 20;
constexpr std::size_t piece_bytes = 64 << 10;
constexpr std::size_t max_json_line_bytes = 64 << 20;

// Whether the name, without .gz or .zst, ends in .jsonl.
bool is_json_lines(const std::filesystem::path& file);

// Calls `take` with the documents of the files, in order, none empty. If it returns false, the rest
// of the file is skipped. Throws InputError naming a file, and the line of a .jsonl file, that
// cannot be read.
void for_each_document(const std::vector<std::filesystem::path>& paths, const FileFilter& filter,
                       const std::string& text_key, const std::function<bool(Document&&)>& take);

}  // namespace sy
