#include "src/io/format/checkpoint_format.h"

#include "kernels/check.h"

namespace sy {

std::string CheckpointFormat::index_name() const {
  return fmt::format("index{}", extension);
}

std::string CheckpointFormat::shard_name(int rank) const {
  return fmt::format("shard-{:05}{}", rank, extension);
}

bool CheckpointFormat::has_name(std::string_view name) const {
  constexpr std::string_view shard = "shard-", digits = "0123456789";
  if (name == index_name()) return true;
  if (!name.starts_with(shard) || !name.ends_with(extension)) return false;
  name.remove_prefix(shard.size());
  const std::size_t end = name.find_first_not_of(digits);
  return end > 0 && end != name.npos && name.substr(end) == extension;
}

}  // namespace sy
