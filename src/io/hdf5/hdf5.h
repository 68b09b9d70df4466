// HDF5 files by RAII over the serial C library. Use them from one thread at a time.
// Errors name file and object: Failure while writing, InputError while reading.
// Writers call close(), which throws, then verify(), and only then rename the file.
// Reading trusts no file: sizes are checked before allocation, and soft and external links are
// refused. The caller may allow external links to datasets of the same name in some files.
// Names are paths from the root ("/params/embedding.weight"). Missing groups are created.
// Links keep their creation order. No times are stored, so equal content gives equal files.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/shard.h"
#include "kernels/tensor.h"
#include "src/io/format/checkpoint_format.h"

namespace sy {

// An open object of the library (a hid_t), closed with its owner.
class Hdf5Id {
 public:
  Hdf5Id() = default;
  Hdf5Id(std::int64_t id, int (*close_function)(std::int64_t)) : id_(id), close_(close_function) {}
  Hdf5Id(Hdf5Id&& o) noexcept : id_(o.id_), close_(o.close_) { o.id_ = -1; }
  Hdf5Id& operator=(Hdf5Id&& o) noexcept {
    std::swap(id_, o.id_);
    std::swap(close_, o.close_);
    return *this;
  }
  ~Hdf5Id() { close(); }
  std::int64_t get() const { return id_; }
  int close();  // negative when the library reports an error

 private:
  std::int64_t id_ = -1;
  int (*close_)(std::int64_t) = nullptr;
};

// File of an operation, for error messages. writing: errors are Failure, otherwise InputError.
struct Hdf5Context {
  std::filesystem::path file;
  bool writing = false;
};

struct Hdf5WriteLog;  // checksums of all values that were written to a file (hdf5.cpp)

class Hdf5Dataset {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }  // f32, f64, i32, i64
  // Writes the elements of `box`. data: row-major, of dtype(). Not for a virtual dataset.
  void write(const Box& box, const void* data);
  // Closes a dataset; its facts and mappings stay. A created one must be closed before the file.
  void close();
  // Reads the elements of `box`, row-major. Throws InputError for a virtual dataset.
  void read(const Box& box, void* data) const;
  bool is_virtual() const { return virtual_; }
  // Mappings of a virtual dataset. Each source is 1-D, and has the name of the virtual dataset.
  const std::vector<SliceMapping>& mappings() const { return mappings_; }
  // Reads the overlap of `mapping` and `box` into `data`, the row-major memory of `box`.
  // This dataset is the source of `mapping`. Returns the number of elements that were read.
  Index read_mapped(const SliceMapping& mapping, const Box& box, void* data) const;

 private:
  friend class Hdf5File;
  Hdf5Context context_;
  std::string name_;
  Hdf5Id id_;
  Shape shape_;
  DType dtype_ = DType::f32;
  bool virtual_ = false;
  std::vector<SliceMapping> mappings_;
  std::shared_ptr<Hdf5WriteLog> log_;  // of a file that is written
};

class Hdf5File {
 public:
  // Returns whether external links to datasets of a file are allowed.
  using MayLink = std::function<bool(const std::string& file)>;

  static Hdf5File create(const std::filesystem::path& path);  // must not exist
  // Opens a file, read-only.
  // image: bytes of the file, which the library copies. The file is then not read, and `path` is
  // its name in errors. nullptr: reads the file.
  // may_link: empty if no external link is allowed.
  static Hdf5File open(const std::filesystem::path& path, const std::string* image = nullptr, MayLink may_link = {});
  // Flushes, closes and syncs a created file. Close all its datasets first. Throws.
  void close();
  // Reopens the file after close() and compares each written value with its checksum.
  // It is needed since libhdf5 may drop an error of the disk. Reads every value once.
  // Covers datasets, attributes, mappings of virtual datasets, groups and links.
  // Throws Failure naming the object.
  void verify() const;

  void make_group(const std::string& name);
  // Creates a dataset, and its missing groups. The caller writes every element, then calls close().
  // An element that is never written has an undefined value: there is no fill value.
  Hdf5Dataset create(const std::string& name, const Shape& shape, DType dtype);
  // Creates a dataset and writes all of it.
  void write(const std::string& name, const Shape& shape, DType dtype, const void* data);

  // Creates a virtual f32 dataset. Elements without a mapping, or of a missing file, read as NaN.
  void create_virtual(const std::string& name, const Shape& shape, const std::vector<SliceMapping>& mappings);

  // Links to the dataset of this name in another file of the same folder.
  void link(const std::string& name, const std::string& file);

  // Returns whether the object exists, or an allowed external link of this name. Throws if another
  // link on its path is soft or external. Other functions than has() and linked_file() throw if
  // `name` is an external link.
  bool has(const std::string& name) const { return find(name).has_value(); }
  // Returns the file that an allowed external link leads to; empty if `name` is no such link.
  std::string linked_file(const std::string& name) const { return find(name).value_or(""); }
  bool has_dataset(const std::string& name) const;
  bool has(const std::string& object, const std::string& attribute) const;
  // Opens a dataset with all its mappings.
  Hdf5Dataset open_dataset(const std::string& name) const;
  // Names of all datasets below a group, recursively, in creation order, with those of allowed
  // external links. At most eight levels.
  std::vector<std::string> datasets(const std::string& group = "/") const;

  // `object`: a group or dataset.
  void set(const std::string& object, const std::string& attribute, const Attribute& value);
  // Returns an attribute, which must be one text or one whole number, as the type that `value` has.
  Attribute get(const std::string& object, const std::string& attribute, Attribute value) const;

 private:
  // Returns the file of an object: "" for this one, nullopt if the object is missing.
  std::optional<std::string> find(const std::string& name) const;
  // Throws InputError unless the object is in this file.
  void require(const std::string& name) const;

  Hdf5Context context_;
  Hdf5Id id_;
  MayLink may_link_;
  std::shared_ptr<Hdf5WriteLog> log_;  // of a file that is written
};

}  // namespace sy
