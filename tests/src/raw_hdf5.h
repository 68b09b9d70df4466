// HDF5 by its own library alone: files as any other tool reads them, and forged files.
#pragma once

#include <hdf5.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/src/checkpoint_fixture.h"

namespace sy::test {

// An open object of the library. The destructor closes it.
class Raw {
 public:
  Raw(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {
    if (id < 0) throw std::runtime_error("the HDF5 library refuses a call of the test");
  }
  ~Raw() { close_(id_); }
  Raw(const Raw&) = delete;
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

inline void done(herr_t result) {
  if (result < 0) throw std::runtime_error("the HDF5 library refuses a call of the test");
}

// An open file; by default it may be changed.
class RawFile : public Raw {
 public:
  explicit RawFile(const std::filesystem::path& path, unsigned mode = H5F_ACC_RDWR)
      : Raw(H5Fopen(path.c_str(), mode, H5P_DEFAULT), H5Fclose) {}
};

// All values of a dataset, as floats.
inline std::vector<float> raw_values(const std::filesystem::path& path, const std::string& name) {
  const RawFile file(path, H5F_ACC_RDONLY);
  const Raw dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose), space(H5Dget_space(dataset), H5Sclose);
  std::vector<float> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  done(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  return values;
}

inline std::vector<hsize_t> raw_shape(hid_t file, const std::string& name) {
  const Raw dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose), space(H5Dget_space(dataset), H5Sclose);
  std::vector<hsize_t> shape(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space)));
  H5Sget_simple_extent_dims(space, shape.data(), nullptr);
  return shape;
}

// Replaces an attribute. If `values` is nullptr, no value is written.
inline void raw_attribute(hid_t file, const char* object, const char* name, hid_t type, hid_t space,
                          const void* values) {
  H5Adelete_by_name(file, object, name, H5P_DEFAULT);
  const Raw made(H5Acreate_by_name(file, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (values) done(H5Awrite(made, type, values));
}

inline void raw_number(hid_t file, const char* object, const char* name, long long value) {
  const Raw space(H5Screate(H5S_SCALAR), H5Sclose);
  raw_attribute(file, object, name, H5T_NATIVE_LLONG, space, &value);
}

// Replaces a dataset by an empty one of this shape, type and creation property list.
inline void raw_dataset(hid_t file, const std::string& name, const std::vector<hsize_t>& shape, hid_t type,
                        hid_t creation) {
  H5Ldelete(file, name.c_str(), H5P_DEFAULT);
  const Raw space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
  const Raw made(H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT), H5Dclose);
}

// Replaces a dataset by a virtual f32 dataset of the first elements of `source_name` in
// `source_file`. The source is declared with `source_size` elements; 0 means those of `name`.
inline void raw_virtual(hid_t file, const std::string& name, const std::string& source_file,
                        const std::string& source_name, hsize_t source_size = 0) {
  const std::vector<hsize_t> shape = raw_shape(file, name);
  hsize_t elements = 1;
  for (hsize_t n : shape) elements *= n;
  const Raw creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const Raw target(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
  const std::vector<hsize_t> zeros(shape.size(), 0);
  done(H5Sselect_hyperslab(target, H5S_SELECT_SET, zeros.data(), nullptr, shape.data(), nullptr));
  const hsize_t size = source_size ? source_size : elements, zero = 0;
  const Raw source(H5Screate_simple(1, &size, nullptr), H5Sclose);
  done(H5Sselect_hyperslab(source, H5S_SELECT_SET, &zero, nullptr, &elements, nullptr));
  done(H5Pset_virtual(creation, target, source_file.c_str(), source_name.c_str(), source));
  raw_dataset(file, name, shape, H5T_IEEE_F32LE, creation);
}

// Error of the first reader that refuses a checkpoint; empty if all readers accept it.
inline std::string refusal(const fs::path& dir) {
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  const std::function<void()> readers[] = {[&] { read_state(dir); },
                                           [&] {
                                             const CheckpointTensors tensors(dir);
                                             for (const TensorInfo& t : tensors.list()) statistics(tensors, t.name);
                                           },
                                           [&] { diff_checkpoints(dir, dir); }, [&] { load_checkpoint(dir, store); }};
  std::string first;
  for (const auto& reader : readers) {
    const std::string error = error_of(reader);
    if (first.empty()) first = error;
  }
  return first;
}

// A change of a checkpoint that readers must refuse.
struct Forgery {
  const char* name;
  const char* says;  // part of the error
  std::function<void(const std::filesystem::path& dir)> forge;
};
inline std::ostream& operator<<(std::ostream& out, const Forgery& f) {
  return out << f.name;
}

// Changes a file of the checkpoint through the library.
inline std::function<void(const fs::path&)> with(const std::string& file, const std::function<void(hid_t)>& change) {
  return [=](const fs::path& dir) { change(RawFile(dir / file)); };
}

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

// Writes a checkpoint as older versions did, without a check that its values are finite.
inline fs::path write_unchecked(const SingleRank& trainer, const fs::path& run_dir, Index step,
                                const TrainState& state = example_state(0)) {
  const fs::path dir = checkpoints_of(run_dir) / step_name(step);
  fs::create_directories(dir);
  TrainState now = state;
  now.step = step;
  write_shard(written_format(), dir, now, shard_contents(trainer.store), 0);
  write_index(written_format(), dir, now, trainer.store.specs(), Layout{});
  done(H5Adelete_by_name(RawFile(dir / index_name), "/state", finite_attribute, H5P_DEFAULT));
  seal(dir, step);
  return dir;
}

}  // namespace sy::test
