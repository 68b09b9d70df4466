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

// Calls `visit` for every file: `path` itself, or all regular files below a folder, in the sorted order of
// their paths. Links to files are followed. Below a folder, links to folders, links to nothing and special
// files are left out (a corpus is not read twice, and a circle of links ends); returns how many. Holds the
// names of one folder per level. Throws InputError when `path` is missing or a folder cannot be read.
Index walk_files(const std::filesystem::path& path,
                 const std::function<void(const std::filesystem::path& file, Index bytes)>& visit);

struct Document {
  std::string text;
  std::filesystem::path file;
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

// The documents of the files, in order, none empty. Throws InputError naming a file, and the line of a .jsonl file,
// that cannot be read.
void for_each_document(const std::vector<std::filesystem::path>& paths, const std::string& text_key,
                       const std::function<void(Document&&)>& take);

}  // namespace sy
