// Tensors in files of Hugging Face's format safetensors 0.4. A file has 8 bytes with the length of
// a JSON header, the header and the data. The header gives the type, shape and offsets of each
// tensor. A model is one file, or several with an index.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Storage type of numbers: F32, F16 or BF16.
struct StoredType {
  std::string_view name;        // name in the header
  std::string_view dtype_name;  // name in messages and in --dtype: "f32"
  Index bytes;
  // Convert n numbers that are `stride` numbers apart. store rounds to nearest, ties to even.
  void (*load)(const std::byte* from, Index stride, Index n, float* to);
  void (*store)(const float* from, Index n, std::byte* to, Index stride);
};
const std::vector<StoredType>& stored_types();
const StoredType* stored_type(std::string_view name);  // nullptr if unknown

struct StoredTensor {
  std::string name;
  std::string type;  // name in the header; stored_types has the readable ones
  std::vector<Index> shape;
  Index bytes = 0;
  const std::byte* data = nullptr;  // within the mapped file
};
std::string shape_text(const std::vector<Index>& shape);  // "[4, 2]"

// Tensors of a folder: of the files in model.safetensors.index.json, or of model.safetensors.
//
// The constructor checks all headers. Tensors must lie within their file, in order and without
// gaps. Their size must fit type and shape, and names must be unique. Throws InputError, which
// names file and problem. The files must not change while they are open.
class StoredTensors {
 public:
  explicit StoredTensors(const std::filesystem::path& folder);

  struct File {
    std::string name;                  // relative to the folder
    std::vector<std::string> tensors;  // in order of their data
    std::map<std::string, std::string> metadata;
  };
  const std::vector<File>& files() const { return files_; }
  const StoredTensor* find(const std::string& name) const;
  std::size_t size() const { return tensors_.size(); }

 private:
  void open(const std::filesystem::path& folder, const std::string& name);

  std::vector<std::shared_ptr<std::byte>> mappings_;  // of the files, read-only
  std::vector<File> files_;
  std::map<std::string, StoredTensor> tensors_;
};

// A tensor of a file to write. The header is fixed in advance. Any process can then write the data,
// in any order.
struct StoredLayout {
  std::string name;
  std::string_view type;  // StoredType::name
  std::vector<Index> shape;
};
// First bytes of the file, and the offset of each tensor's data from the start of the file.
struct StoredHeader {
  std::string bytes;
  std::vector<Index> begins;
  Index file_bytes = 0;
};
StoredHeader stored_header(const std::vector<StoredLayout>& tensors,
                           const std::map<std::string, std::string>& metadata);

// File of a known size, mapped for writing. The constructor allocates its space on the disk, so a
// full disk is an error then.
class MappedOutput {
 public:
  // create: if true, creates a new file of `bytes` bytes; the name must not exist. Otherwise opens
  // the file that another rank created. Links are not followed.
  MappedOutput(const std::filesystem::path& path, Index bytes, bool create);
  std::byte* data() const { return data_.get(); }
  // Syncs the written data to the disk. Throws Failure.
  void sync();

 private:
  std::filesystem::path path_;
  std::shared_ptr<std::byte> data_;
  Index bytes_ = 0;
};

}  // namespace sy
