#include "src/io/format/checkpoint_format.h"

#include "kernels/check.h"

namespace sy {

namespace {

constexpr std::string_view index_prefix = "index-", shard_prefix = "shard-";

// Returns whether a name is the prefix, a number and the extension.
bool is_numbered(std::string_view name, std::string_view prefix, std::string_view extension) {
  if (!name.starts_with(prefix) || !name.ends_with(extension)) return false;
  name.remove_prefix(prefix.size());
  const std::size_t end = name.find_first_not_of("0123456789");
  return end > 0 && end != name.npos && name.substr(end) == extension;
}

}  // namespace

std::string CheckpointFormat::index_name() const {
  return fmt::format("index{}", extension);
}

std::string CheckpointFormat::linked_index_name(int number) const {
  return fmt::format("{}{:05}{}", index_prefix, number, extension);
}

std::string CheckpointFormat::shard_name(int rank) const {
  return fmt::format("{}{:05}{}", shard_prefix, rank, extension);
}

bool CheckpointFormat::is_linked_index(std::string_view name) const {
  return is_numbered(name, index_prefix, extension);
}

bool CheckpointFormat::has_name(std::string_view name) const {
  return name == index_name() || is_linked_index(name) || is_numbered(name, shard_prefix, extension);
}

}  // namespace sy
