// Tensors in files as Hugging Face keeps them (safetensors 0.4): 8 bytes with the length of a JSON header, the header, which
// names each tensor with its type, shape and place, and the tensors. A model is one such file, or several with an index.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// How numbers are stored. Rows: "F32", "F16", "BF16".
struct StoredType {
  std::string_view name;  // in the header
  std::string_view word;  // for people, and of --dtype: "f32"
  Index bytes;
  // n numbers that lie `stride` numbers apart. store rounds to nearest, ties to even.
  void (*load)(const std::byte* from, Index stride, Index n, float* to);
  void (*store)(const float* from, Index n, std::byte* to, Index stride);
};
const std::vector<StoredType>& stored_types();
const StoredType* stored_type(std::string_view name_or_word);  // nullptr: none of these

struct StoredTensor {
  std::string name;
  std::string type;  // as the header names it; stored_types has those whose values can be read
  std::vector<Index> shape;
  Index bytes = 0;
  const std::byte* data = nullptr;  // in the mapped file
  Index elements() const;
};
std::string shape_text(const std::vector<Index>& shape);  // "[4, 2]"

// The tensors of a folder: of the files that model.safetensors.index.json names, or of model.safetensors. All headers are
// checked when it is opened: that tensors lie within their file, one after the other and without gaps, have a size that fits
// type and shape, and that no name occurs twice. Throws InputError, which says what is wrong with which file. The files must
// not change while they are open.
class StoredTensors {
 public:
  explicit StoredTensors(const std::filesystem::path& folder);
  ~StoredTensors();
  StoredTensors(const StoredTensors&) = delete;
  StoredTensors& operator=(const StoredTensors&) = delete;

  struct File {
    std::string name;                  // within the folder
    std::vector<std::string> tensors;  // in the order of the data
    std::map<std::string, std::string> metadata;
  };
  const std::vector<File>& files() const { return files_; }
  const StoredTensor* find(const std::string& name) const;
  std::size_t size() const { return tensors_.size(); }

 private:
  class Mapping;
  void open(const std::filesystem::path& folder, const std::string& name);

  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::vector<File> files_;
  std::map<std::string, StoredTensor> tensors_;
};

// One file that is being written. The header is fixed when it is made; the tensors' bytes are filled in by whoever can reach
// the file, in any order.
struct StoredLayout {
  std::string name;
  std::string_view type;  // of StoredType
  std::vector<Index> shape;
};
// The file's first bytes, and where each tensor's data begin, counted from the start of the file.
struct StoredHeader {
  std::string bytes;
  std::vector<Index> begins;
  Index file_bytes = 0;
};
StoredHeader stored_header(const std::vector<StoredLayout>& tensors,
                           const std::map<std::string, std::string>& metadata);

// A file of a known size, mapped for writing. The space is taken when it is made, so that a full disk is an error then.
class MappedOutput {
 public:
  // create: makes a new file of so many bytes; none of that name may exist. Otherwise opens the file
  // that another rank has created. Links are not followed.
  MappedOutput(const std::filesystem::path& path, Index bytes, bool create);
  ~MappedOutput();
  MappedOutput(const MappedOutput&) = delete;
  MappedOutput& operator=(const MappedOutput&) = delete;
  std::byte* data() const { return data_; }
  // What was written is on the disk, or Failure is thrown.
  void sync();

 private:
  std::filesystem::path path_;
  std::byte* data_ = nullptr;
  Index bytes_ = 0;
};

}  // namespace sy
