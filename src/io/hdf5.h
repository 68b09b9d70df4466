// HDF5 files by RAII over the serial C library. Every return code is checked: what fails throws, naming file
// and object, Failure while writing and InputError while reading. The library is not thread-safe: one thread
// at a time.
//
// The library writes some values as late as in the close of their dataset or file, and an error of the disk may pass through it
// unseen. So a handle that writes is closed by close(), which throws, and verify() compares the file, opened again, with a
// checksum of every value that was handed over. Whoever writes a file that counts calls both before it gets its name.
//
// A file that is opened for reading may be forged. Nothing outside of it is followed: links are hard ones, datasets lie in the
// file as one piece (a virtual one names its parts, which the caller reads from where it sees fit), and attributes are one
// element of the class that is asked for. What is allocated is no more than what the file holds.
//
// Names are paths from the root ("/params/embedding.weight"); missing groups on the way are made. Links keep
// the order in which they were made. No times are stored, so equal content gives equal files.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/shard.h"
#include "kernels/tensor.h"

namespace sy {

// An open object of the library (a hid_t), closed with its owner.
class Hdf5Id {
 public:
  Hdf5Id() = default;
  Hdf5Id(std::int64_t id, int (*close)(std::int64_t)) : id_(id), close_(close) {}
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

// A part of a virtual dataset: `box` of it are elements [run.begin, run.end) of the 1-D dataset of the same name in `file`
// (relative to the virtual one's folder). `source_size`: all elements of that one; a file that is read does not tell it (0).
struct Hdf5Part {
  std::string file;
  Index source_size;
  Range run;
  Box box;
};

// Where an error happened, for messages, and which kind it is.
struct Hdf5Where {
  std::filesystem::path file;
  bool writing = false;
};

struct Hdf5Log;  // checksums of all that was handed to a file (hdf5.cpp)

class Hdf5Dataset {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }  // f32, f64, i32, i64
  // The box's elements in row-major order, as the dataset's own type. Not of a virtual dataset.
  void write(const Box& box, const void* data);
  // Required of a dataset that was created, before its file is closed.
  void close();
  void read(const Box& box, void* data) const;
  // Elements [run.begin, run.end) of the row-major order.
  void read(Range run, void* data) const;
  bool is_virtual() const { return virtual_; }
  const std::vector<Hdf5Part>& parts() const { return parts_; }  // of a virtual dataset
  // This dataset is the source of `part`: reads the elements that lie in `box` too to their places in the memory of the
  // whole box, and returns how many they are.
  Index read_part(const Hdf5Part& part, const Box& box, void* data) const;

 private:
  friend class Hdf5File;
  Hdf5Where where_;
  std::string name_;
  Hdf5Id id_;
  Shape shape_;
  DType dtype_ = DType::f32;
  bool virtual_ = false;
  std::vector<Hdf5Part> parts_;
  std::shared_ptr<Hdf5Log> log_;  // of a file that is written
};

class Hdf5File {
 public:
  static Hdf5File create(const std::filesystem::path& path);  // must not exist
  static Hdf5File open(const std::filesystem::path& path);    // read-only
  // Writes what is buffered and forces it to the disk; a destructor alone would keep errors to itself.
  void close();
  // Opens a file that was written and closed again, and compares it with all that was handed over: values of datasets,
  // attributes, parts of virtual datasets, groups. Throws Failure naming the object. Reads every value once.
  void verify() const;

  void make_group(const std::string& name);
  Hdf5Dataset create(const std::string& name, const Shape& shape, DType dtype);
  // Creates a dataset and writes all of it.
  void write(const std::string& name, const Shape& shape, DType dtype, const void* data);

  // f32; what no mapping covers, or whose file is missing, reads as NaN.
  void create_virtual(const std::string& name, const Shape& shape, const std::vector<Hdf5Part>& parts);

  // Throws where a link on the way leads elsewhere.
  bool has(const std::string& name) const;
  bool has(const std::string& object, const std::string& attribute) const;
  Hdf5Dataset open_dataset(const std::string& name) const;
  // The names of all datasets below a group, in the order of their making.
  std::vector<std::string> datasets(const std::string& group = "/") const;

  // `object`: a group or dataset.
  void set(const std::string& object, const std::string& attribute, const std::string& value);
  void set(const std::string& object, const std::string& attribute, std::int64_t value);
  void set(const std::string& object, const std::string& attribute, std::uint64_t value);
  std::string get_string(const std::string& object, const std::string& attribute) const;
  std::int64_t get_int(const std::string& object, const std::string& attribute) const;
  std::uint64_t get_unsigned(const std::string& object, const std::string& attribute) const;

 private:
  void set(const std::string& object, const std::string& attribute, std::int64_t file_type, std::int64_t memory_type,
           const void* value);
  template <class Int>
  void set_number(const std::string& object, const std::string& attribute, Int value);
  template <class Int>
  Int get_number(const std::string& object, const std::string& attribute) const;
  // Throws unless it is one text or one whole number.
  Hdf5Id open_attribute(const std::string& object, const std::string& attribute, bool text) const;

  Hdf5Where where_;
  Hdf5Id id_;
  std::shared_ptr<Hdf5Log> log_;  // of a file that is written
};

// Makes a file in one step, or replaces it: `fill` writes it under another name, and it is closed, verified and renamed.
void write_hdf5(const std::filesystem::path& path, const std::function<void(Hdf5File&)>& fill);

// The library that is loaded.
struct Hdf5Library {
  std::string version;  // "1.10.8"
  bool thread_safe = false, parallel = false;
  bool locks = false;  // $HDF5_USE_FILE_LOCKING has it lock files, of which the file system must be capable
};
Hdf5Library hdf5_library();

// The whole of a tensor, as a box.
Box whole(const Shape& shape);

}  // namespace sy
