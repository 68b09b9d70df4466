#include "src/io/checkpoint_formats.h"

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/check.h"
#include "src/io/hdf5/hdf5_checkpoint.h"

namespace sy {

std::span<const CheckpointFormat* const> checkpoint_formats() {
  static constexpr const CheckpointFormat* formats[] = {&hdf5_format};
  return formats;
}

const CheckpointFormat& format_of(const Manifest& manifest) {
  for (const CheckpointFormat* format : checkpoint_formats())
    if (std::ranges::find(manifest.files, format->index_name(), &Manifest::File::name) != manifest.files.end())
      return *format;
  return *checkpoint_formats().front();
}

OpenCheckpoint open_checkpoint(const std::filesystem::path& step_dir) {
  Manifest manifest = read_manifest(step_dir);
  const auto problems = file_problems(step_dir, manifest, CheckFiles::sizes);
  if (!problems.empty()) bad_input("{}: use another checkpoint", fmt::join(problems, "; "));
  std::set<std::string> files;
  for (const Manifest::File& file : manifest.files) files.insert(file.name);
  auto reader = format_of(manifest).open(step_dir, std::move(files));
  return {std::move(manifest), std::move(reader)};
}

}  // namespace sy
