// The file format of a checkpoint: CheckpointWriter, CheckpointReader and CheckpointFormat.
//
// A checkpoint is a folder with one shard of each rank, one index and manifest.json. A shard holds
// slices of tensors. The index holds the training state, small tensors, and the mapping of slices
// to whole tensors. If there are many mappings, linked indexes hold them, and the index has a link
// to each tensor. Names are paths from the root: groups ("/state"), tensors ("/params/x").
//
// Invariants, on which the commit protocol of src/io relies (docs/design/checkpoints.md):
// - A writer gets values in host memory. It uses no device, no communicator and no other file.
//   Files may be written in any order, on any rank and on any thread. At most one thread of a
//   process uses a format at a time, because its library may not be thread-safe.
// - A closed file is on the disk, and never changes again. Equal calls write equal bytes.
// - A reader opens only files of the manifest, and trusts none of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dist/shard.h"
#include "kernels/tensor.h"

namespace sy {

// Name, type and global shape of a tensor of a checkpoint.
struct TensorInfo {
  std::string name;  // "/params/...", "/optimizer/m/...", "/experts/...", "/router/bias",
                     // "/norm/averages"
  DType dtype;       // f32, f64, i32 or i64
  Shape shape;
  Index bytes() const { return shape.elements() * size_of(dtype); }
};

// Mapping of a slice to a tensor: `box` of the tensor has the elements `range` of the slice.
// The slice has the tensor's name, and is in `file` of the same folder. box: row-major.
struct SliceMapping {
  std::string file;
  Index slice_elements;  // number of elements of the slice; 0 in a mapping that was read
  Range range;
  Box box;
};

// Value of an attribute of a group or tensor.
using Attribute = std::variant<std::string, std::int64_t, std::uint64_t>;

// A new file of a checkpoint.
// - Order of calls: any of make_group() to link_sharded(), then close(), then verify().
// - Functions that write a tensor make its missing groups.
// - All throw Failure that names the file and the object. The file is then useless.
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;

  // Makes a group, and the missing groups on its path. A group may exist already.
  virtual void make_group(const std::string& name) = 0;
  // Sets a new attribute of an existing group or tensor; "/" is the file itself.
  virtual void set(const std::string& object, const std::string& attribute, const Attribute& value) = 0;
  // Writes a whole tensor. data: row-major, of `dtype`.
  virtual void write(const std::string& name, const Shape& shape, DType dtype, const void* data) = 0;
  // Begins a slice of a tensor, [elements] of f32. The next calls of append() write all of it.
  virtual void begin_slice(const std::string& name, Index elements) = 0;
  // Appends values to the slice. The caller may reuse their memory after the call.
  virtual void append(std::span<const float> values) = 0;
  // Writes an f32 tensor whose values are in slices of other files. Their boxes do not overlap.
  // The files need not exist yet.
  virtual void write_sharded(const std::string& name, const Shape& shape, const std::vector<SliceMapping>& slices) = 0;
  // Links to a tensor of this name that a linked index of the same folder has. The linked index
  // need not exist yet.
  virtual void link_sharded(const std::string& name, const std::string& linked_index) = 0;

  // Completes the file and syncs it to the disk. Every slice must be whole.
  virtual void close() = 0;
  // Reads the closed file, and compares everything in it with checksums of the written values.
  virtual void verify() const = 0;
};

// A checkpoint that is open for reading.
// - Opens shards and linked indexes when a call needs them, and keeps a bounded number of them
//   open.
// - Checks sizes before it allocates memory. All functions throw InputError if a file is damaged.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;

  // Return whether the index has the group or tensor, or its attribute.
  virtual bool has(const std::string& object) const = 0;
  virtual bool has(const std::string& object, const std::string& attribute) const = 0;
  // Returns an attribute, as the type that `value` has. Throws InputError if it is missing or of
  // another type.
  virtual Attribute get(const std::string& object, const std::string& attribute, Attribute value) const = 0;
  template <class T>
  T get(const std::string& object, const std::string& attribute) const {
    return std::get<T>(get(object, attribute, Attribute(T())));
  }

  // Returns the names of all tensors below a group ("/params"), in the order of writing.
  virtual std::vector<std::string> tensors(const std::string& group = "/") const = 0;
  // Returns the type and shape of a tensor. Throws InputError if the index does not have it.
  virtual TensorInfo tensor(const std::string& name) = 0;
  // Reads `box` of a tensor into row-major memory of its type. Also reads sharded tensors.
  virtual void read(const std::string& name, const Box& box, void* data) = 0;
  // Reads like read(), but throws InputError if the tensor is sharded.
  virtual void read_unsharded(const std::string& name, const Box& box, void* data) = 0;
  // Adds the names of the files that read() of this box opens, except the indexes. Opens no shard.
  virtual void add_files(const std::string& name, const Box& box, std::set<std::string>& files) = 0;
  // Returns the names of the files that the indexes map to tensors, listed in the manifest or not.
  // Throws InputError for a linked index that the manifest does not list.
  virtual std::set<std::string> mapped_files() = 0;
};

// Check of a file's bytes before a reader opens the file.
// Usage: call scan() with all chunks of a file in order, then problem() with the same file.
class FileCheck {
 public:
  virtual ~FileCheck() = default;
  // Reads the next bytes of the file.
  virtual void scan(std::string_view chunk) = 0;
  // Returns an error message; empty if a reader may open the file.
  // content: the file's bytes; nullptr if they are read from the file
  virtual std::string problem(const std::filesystem::path& file, const std::string_view* content) const = 0;
};

// Bytes of the index of a checkpoint and of its linked indexes, by name.
using IndexBytes = std::map<std::string, std::string>;

// A row of the table of formats (src/io/checkpoint_formats.cpp).
struct CheckpointFormat {
  const char* extension;  // of the names of all files: ".h5"
  // Creates a file, which must not exist. Throws Failure.
  std::unique_ptr<CheckpointWriter> (*create)(const std::filesystem::path& file);
  // Opens the index of a checkpoint. Throws InputError.
  // indexes: bytes of all indexes, which are then not read from the folder; may be nullptr
  // check_file: called with the name of each file before it is opened. It throws InputError unless
  // the file has its size of the manifest.
  std::unique_ptr<CheckpointReader> (*open)(const std::filesystem::path& step_dir,
                                            std::shared_ptr<const IndexBytes> indexes,
                                            std::function<void(const std::string& name)> check_file);
  // Returns the check of one file; nullptr if a reader withstands any bytes.
  std::unique_ptr<FileCheck> (*make_check)();

  std::string index_name() const;                   // "index.h5"
  std::string linked_index_name(int number) const;  // "index-00001.h5"; numbers count from 1
  std::string shard_name(int rank) const;           // "shard-00003.h5"
  // Returns whether `name` is the name of a linked index.
  bool is_linked_index(std::string_view name) const;
  // Returns whether `name` is the name of an index, of a linked index or of a shard.
  bool has_name(std::string_view name) const;
};

}  // namespace sy
