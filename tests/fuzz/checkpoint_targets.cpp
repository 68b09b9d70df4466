// Checkpoints, and tensors of other programs.
#include <algorithm>

#include "src/io/checkpoint.h"
#include "src/io/checkpoint_internal.h"
#include "src/io/manifest.h"
#include "src/io/safetensors.h"
#include "src/system/digest.h"
#include "tests/fuzz/checksums.h"
#include "tests/fuzz/helpers.h"

namespace sy::fuzz {

namespace fs = std::filesystem;

namespace {

constexpr Index step = 20;

void read_manifest_file(Input input) {
  const std::string text(view_of(input));
  require(to_text(parse_manifest(text, step_name(step))) == text, "a manifest has one text");
}

// Reads everything of a checkpoint, as `inspect` and a resume do.
void read_whole_checkpoint(const fs::path& dir) {
  for (const std::string& problem : verify_checkpoint(dir)) bad_input("{}", problem);
  Attempts attempts;
  attempts([&] { read_state(dir); });
  attempts([&] {
    for (const std::string& problem : unlisted_files(dir)) bad_input("{}", problem);
  });
  attempts([&] {
    const CheckpointTensors tensors(dir);
    for (const TensorInfo& tensor : tensors.list())
      attempts([&] {
        const Index some = std::min<Index>(tensor.shape.elements(), 1000);
        tensors.values(tensor.name, {0, some});
        tensors.values(tensor.name, {tensor.shape.elements() - some, tensor.shape.elements()});
      });
    attempts([&] { first_not_finite(tensors); });
  });
  attempts.finish();
}

// The input is index.h5 and shard-00000.h5, and the second one is index-00001.h5, too. The digests
// of the manifest are right, as a forger's would be.
void read_checkpoint_files(Input input) {
  static Scratch scratch;
  const auto [index, shard] = two_files(input);
  Manifest manifest{step, {}};
  const fs::path folder = step_name(step);
  for (const auto& [name, content] :
       {std::pair{"index.h5", index}, std::pair{"index-00001.h5", shard}, std::pair{"shard-00000.h5", shard}}) {
    scratch.write((folder / name).string(), content);
    manifest.files.push_back({name, std::ssize(content), to_hex(sha256(content))});
  }
  scratch.write((folder / manifest_name).string(), to_text(manifest));
  read_whole_checkpoint(scratch.path() / folder);
}

void read_forged_checkpoint(Input input) {
  const ForgedChecksums forged;
  read_checkpoint_files(input);
}

// Reads the first and the last number of each tensor.
void read_tensors(const StoredTensors& stored) {
  for (const StoredTensors::File& file : stored.files())
    for (const std::string& name : file.tensors) {
      const StoredTensor& tensor = *stored.find(name);
      const StoredType* const type = stored_type(tensor.type);
      if (!type || tensor.bytes == 0) continue;
      float value = 0;
      type->load(tensor.data, 1, 1, &value);
      type->load(tensor.data + tensor.bytes - type->bytes, 1, 1, &value);
    }
}

void read_safetensors(Input input) {
  static Scratch scratch;
  scratch.write("model.safetensors", view_of(input));
  read_tensors(StoredTensors(scratch.path()));
}

// Folder with the file model.safetensors of two tensors.
Scratch& folder_with_tensors() {
  static Scratch scratch;
  static const bool written = [] {
    const StoredHeader header = stored_header({{"a", "F32", {2, 3}}, {"b", "BF16", {5}}}, {});
    scratch.write("model.safetensors",
                  header.bytes + std::string(static_cast<std::size_t>(header.file_bytes) - header.bytes.size(), '\1'));
    return true;
  }();
  static_cast<void>(written);
  return scratch;
}

void read_safetensors_index(Input input) {
  Scratch& scratch = folder_with_tensors();
  scratch.write("model.safetensors.index.json", view_of(input));
  read_tensors(StoredTensors(scratch.path()));
}

}  // namespace

std::vector<Target> checkpoint_targets() {
  return {
      {"manifest", "manifest.json of a checkpoint", read_manifest_file},
      {"checkpoint", "index.h5 and a shard of a checkpoint", read_checkpoint_files},
      {"checkpoint_forged", "the same, with right checksums in HDF5's metadata", read_forged_checkpoint, true},
      {"safetensors", "model.safetensors", read_safetensors},
      {"safetensors_index", "model.safetensors.index.json", read_safetensors_index},
  };
}

}  // namespace sy::fuzz
