#include "dist/file_readers.h"

#include <system_error>

#include "dist/errors.h"
#include "dist/machine.h"
#include "kernels/philox.h"

namespace sy {

bool reads_itself(Comm& world, const std::filesystem::path& path) {
  std::error_code error;  // the working directory may be gone
  const std::string absolute = std::filesystem::absolute(path, error).string();
  const bool same_path = broadcast_text(world, absolute, 0) == absolute, first_of_machine = local_rank(world) == 0;
  return first_of_machine || !same_path;  // rank 0 is the first one of its machine
}

std::string read_for_all_ranks(Comm& world, const std::filesystem::path& path,
                               const std::function<std::string()>& read) {
  const bool reads = reads_itself(world, path);
  std::string text;
  agree_on_errors(world, [&] {
    if (reads) text = read();
  });
  const std::string of_rank_0 = broadcast_text(world, text, 0);
  return reads ? text : of_rank_0;
}

bool equal_on_all_ranks(Comm& world, std::string_view text) {
  const auto digest = static_cast<Index>(hash_name(text));
  Index ends[2] = {digest, ~digest};  // ~max(~digest) is the smallest digest
  world.all_reduce(view_of(ends, {2}), Reduce::max);
  return ends[0] == ~ends[1];
}

}  // namespace sy
