#include "src/io/checkpoint_formats.h"

#include <algorithm>
#include <map>
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

OpenCheckpoint open_checkpoint(const CheckpointFolder& folder) {
  const std::filesystem::path& step_dir = folder.path();
  const std::shared_ptr<const CheckpointHead>& head = folder.head();
  Manifest manifest = head ? head->manifest : read_manifest(step_dir);
  std::map<std::string, Index> bytes_of;
  for (const Manifest::File& file : manifest.files) bytes_of[file.name] = file.bytes;
  const auto check_size = [step_dir, bytes_of](const std::string& name) {
    const auto file = bytes_of.find(name);
    if (file == bytes_of.end())
      bad_input("{} needs {}, which is not in its manifest: use another checkpoint", step_dir.string(), name);
    if (const std::string problem = size_problem(step_dir / name, file->second); !problem.empty())
      bad_input("{}: use another checkpoint", problem);
  };
  auto reader = format_of(manifest).open(step_dir, head ? &head->index : nullptr, check_size);
  return {std::move(manifest), std::move(reader)};
}

}  // namespace sy
