#include "src/io/checkpoint_formats.h"

#include <algorithm>
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

std::vector<Manifest::File> index_files(const Manifest& manifest) {
  const CheckpointFormat& format = format_of(manifest);
  std::vector<Manifest::File> files = {{format.index_name(), 0, ""}};
  for (const Manifest::File& file : manifest.files) {
    if (file.name == files.front().name) files.front() = file;
    if (format.is_linked_index(file.name)) files.push_back(file);
  }
  return files;
}

std::string unlisted_text(const std::filesystem::path& step_dir, const std::string& name) {
  return fmt::format("{} needs {}, which is not in its manifest: use another checkpoint", step_dir.string(), name);
}

const Manifest::File& check_listed(const std::filesystem::path& step_dir, const Manifest& manifest,
                                   const std::string& name) {
  const auto file = std::ranges::find(manifest.files, name, &Manifest::File::name);
  if (file == manifest.files.end()) throw InputError(unlisted_text(step_dir, name));
  return *file;
}

OpenCheckpoint open_checkpoint(const CheckpointFolder& folder) {
  const std::filesystem::path& step_dir = folder.path();
  const std::shared_ptr<const CheckpointMetadata>& metadata = folder.metadata();
  Manifest manifest = metadata ? metadata->manifest : read_manifest(step_dir);
  const auto check_size = [step_dir, manifest](const std::string& name) {
    const Manifest::File& file = check_listed(step_dir, manifest, name);
    if (const std::string problem = size_problem(step_dir / name, file.bytes); !problem.empty())
      bad_input("{}: use another checkpoint", problem);
  };
  const std::shared_ptr<const IndexBytes> indexes(metadata, metadata ? &metadata->indexes : nullptr);
  auto reader = format_of(manifest).open(step_dir, indexes, check_size);
  return {std::move(manifest), std::move(reader)};
}

}  // namespace sy
