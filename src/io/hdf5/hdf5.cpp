#include "src/io/hdf5/hdf5.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "dist/file_activity.h"
#include "src/io/hdf5/hdf5_calls.h"
#include "src/system/digest.h"
#include "src/system/files.h"

namespace sy {

static_assert(std::is_same_v<hid_t, std::int64_t> && std::is_same_v<herr_t, int>);

namespace h5 {
namespace {

// The library's clean-up at exit crashes on a file whose close failed, as on a full disk. The exit
// code would then be that of the crash. Every file is closed by its owner, so no clean-up is
// needed. This must precede any other call.
[[maybe_unused]] const herr_t no_clean_up_at_exit = H5dont_atexit();

// Returns the innermost error message of the library.
// After a failed system call this is the message of the system.
std::string innermost_error() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* error, void* out) -> herr_t {
        if (n == 0 && error->desc) *static_cast<std::string*>(out) = error->desc;
        return 0;
      },
      &text);
  constexpr std::string_view key = "error message = '";
  if (const auto at = text.find(key); at != std::string::npos) {
    text.erase(0, at + key.size());
    text.erase(std::min(text.find('\''), text.size()));
  }
  return text.empty() ? "HDF5 gives no reason" : text;
}

Dims dims_of(const Shape& shape) {
  Dims dims{};
  std::copy(shape.begin(), shape.end(), dims.begin());
  return dims;
}

}  // namespace

void throw_error(const Hdf5Context& context, std::string_view action, const std::string& object) {
  const std::string text = fmt::format("cannot {} {}{}{}: {}", action, object, object.empty() ? "" : " of ",
                                       context.file.string(), innermost_error());
  if (context.writing) throw Failure(text);
  throw InputError(text);
}

Hdf5Id property_list(hid_t kind) {
  return {H5Pcreate(kind), H5Pclose};
}

std::array<Types, 4> type_table() {
  return {{{DType::f32, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT},
           {DType::f64, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE},
           {DType::i32, H5T_STD_I32LE, H5T_NATIVE_INT32},
           {DType::i64, H5T_STD_I64LE, H5T_NATIVE_INT64}}};
}
Types types_of(DType dtype) {
  for (const Types& t : type_table())
    if (t.dtype == dtype) return t;
  SY_ASSERT(false, "no HDF5 type for {}", info(dtype).name);
  std::abort();
}

Hdf5Id make_dataspace(const Shape& shape) {
  const Dims dims = dims_of(shape);
  return {shape.size() ? H5Screate_simple(shape.size(), dims.data(), nullptr) : H5Screate(H5S_SCALAR), H5Sclose};
}

Hdf5Id make_dataspace(const Shape& shape, const Box& box, const Hdf5Context& context) {
  SY_ASSERT(box.begin.size() == shape.size() && box.size.size() == shape.size(), "{} in {}", box.size.str(),
            shape.str());
  for (int i = 0; i < shape.size(); ++i)
    SY_ASSERT(box.begin[i] >= 0 && box.begin[i] + box.size[i] <= shape[i], "box of {}+{} in {}", box.begin.str(),
              box.size.str(), shape.str());
  Hdf5Id space = make_dataspace(shape);
  check(space.get(), context, "select a box");
  if (shape.size())
    check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, dims_of(box.begin).data(), nullptr, dims_of(box.size).data(),
                              nullptr),
          context, "select a box");
  return space;
}

Hdf5Id file_access() {
  // A thread-safe HDF5 prints the errors of each thread that does not turn this off.
  [[maybe_unused]] thread_local const herr_t quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  Hdf5Id access = property_list(H5P_FILE_ACCESS);
  // STRONG: closing the file closes all its open objects. Locks are useless here, since a
  // checkpoint is complete before it has its name, and many network file systems refuse them.
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  H5Pset_file_locking(access.get(), false, true);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  return access;
}

void check_cache_memory(const std::filesystem::path& file) {
  constexpr std::size_t bytes = std::size_t{2} << 20;  // the cache has half a MiB
  void* const memory = H5allocate_memory(bytes, false);
  if (!memory) no_memory("there is not enough memory to open {}", file.string());
  H5free_memory(memory);
}

std::vector<std::string> path_to(const std::string& name) {
  std::vector<std::string> path;
  for (std::size_t at = name.find('/', 1); at != std::string::npos; at = name.find('/', at + 1))
    path.push_back(name.substr(0, at));
  path.push_back(name);
  return path;
}

}  // namespace h5

using namespace h5;

// Record of the values that were written to a file: one row for each write.
struct Hdf5WriteLog {
  struct Row {
    std::string object;  // "/params/x", "attribute step of /state"
    Checksum::Value written;
    std::function<Checksum::Value(const Hdf5File&, std::vector<std::byte>& buffer)> read;
  };
  std::vector<Row> rows;
  int open_datasets = 0;
};

namespace {

void add_shape(Checksum& sum, const Shape& shape) {
  for (Index dim : shape) sum.update(&dim, sizeof dim);
  sum.update("]");
}

Checksum::Value checksum_of(const Shape& shape, DType dtype) {
  Checksum sum;
  add_shape(sum, shape);
  sum.update(info(dtype).name);
  return sum.finish();
}

// Excludes slice_elements, which is not in the file.
Checksum::Value checksum_of(const Shape& shape, const std::vector<SliceMapping>& mappings, float fill) {
  Checksum sum;
  add_shape(sum, shape);
  for (const SliceMapping& mapping : mappings) {
    sum.update(mapping.file);
    add_shape(sum, {mapping.range.begin, mapping.range.end});
    add_shape(sum, mapping.box.begin);
    add_shape(sum, mapping.box.size);
  }
  sum.update(&fill, sizeof fill);
  return sum.finish();
}

Checksum::Value checksum_of(const Attribute& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text) return checksum(text->data(), text->size());
  return std::visit([](const auto& number) { return checksum(&number, sizeof number); }, value);
}

// Checksum of the values of a box, read slab by slab.
Checksum::Value checksum_of(const Hdf5Dataset& dataset, const Box& box, std::vector<std::byte>& buffer) {
  constexpr Index slab_bytes = Index{16} << 20;
  Checksum sum;
  Box slab = box;
  const bool scalar = box.size.size() == 0;
  const Index row_bytes = box.size.elements(scalar ? 0 : 1) * size_of(dataset.dtype()), rows = scalar ? 1 : box.size[0];
  const Index max_rows = std::max<Index>(1, slab_bytes / std::max<Index>(1, row_bytes));
  for (Index row = 0; row < rows; row += max_rows) {
    const Index n = std::min(max_rows, rows - row);
    if (!scalar) {
      slab.begin[0] = box.begin[0] + row;
      slab.size[0] = n;
    }
    const auto bytes = static_cast<std::size_t>(n * row_bytes);
    if (buffer.size() < bytes) buffer.resize(bytes);
    dataset.read(slab, buffer.data());
    sum.update(buffer.data(), bytes);
  }
  return sum.finish();
}

// Returns the properties with which a file, a group or a dataset is made.
Hdf5Id creation_list(hid_t kind) {
  Hdf5Id creation = property_list(kind);
  H5Pset_obj_track_times(creation.get(), false);
  if (kind != H5P_DATASET_CREATE)
    H5Pset_link_creation_order(creation.get(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  return creation;
}

}  // namespace

int Hdf5Id::close() {
  if (id_ < 0) return 0;
  return close_(std::exchange(id_, -1));
}

void Hdf5Dataset::write(const Box& box, const void* data) {
  write_point("write " + name_, context_.file);
  ++file_activity().chunks;
  if (box.elements() == 0) return;
  const Hdf5Id space = make_dataspace(shape_, box, context_), memory = make_dataspace(box.size);
  const auto bytes = static_cast<std::size_t>(box.elements() * size_of(dtype_));
  log_->rows.push_back({name_, checksum(data, bytes), [name = name_, box](const Hdf5File& file, auto& buffer) {
                          return checksum_of(file.open_dataset(name), box, buffer);
                        }});
  check(H5Dwrite(id_.get(), types_of(dtype_).memory, memory.get(), space.get(), H5P_DEFAULT, data), context_, "write",
        name_);
}

void Hdf5Dataset::close() {
  check(id_.close(), context_, context_.writing ? "write" : "close", name_);
  if (log_) --log_->open_datasets;
}

Hdf5File Hdf5File::create(const std::filesystem::path& path) {
  Hdf5File file;
  file.context_ = {path, true};
  file.log_ = std::make_shared<Hdf5WriteLog>();
  write_point("create", path);
  const Hdf5Id access = file_access(), creation = creation_list(H5P_FILE_CREATE);
  // Otherwise a small write reaches the disk in H5Dclose, which drops its error.
  H5Pset_sieve_buf_size(access.get(), 0);
  check_cache_memory(path);
  file.id_ = {H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()), H5Fclose};
  check(file.id_.get(), file.context_, "create");
  return file;
}

void Hdf5File::close() {
  if (context_.writing) {
    SY_ASSERT(log_->open_datasets == 0, "{} datasets of {} were not closed", log_->open_datasets,
              context_.file.string());
    write_point("close", context_.file);
    check(H5Fflush(id_.get(), H5F_SCOPE_LOCAL), context_, "write");
  }
  check(id_.close(), context_, context_.writing ? "write" : "close");
  if (context_.writing) sync_file(context_.file);
}

void Hdf5File::verify() const {
  SY_ASSERT(context_.writing && id_.get() < 0, "{} is not a file that was written and closed", context_.file.string());
  constexpr const char* advice = "look at the disk and its file system, or write elsewhere";
  try {
    const Hdf5File file = open(context_.file, nullptr, [](const std::string&) { return true; });
    std::vector<std::byte> buffer;
    for (const Hdf5WriteLog::Row& row : log_->rows)
      if (row.read(file, buffer) != row.written)
        fail("{} of {} reads back as other values than were written: {}", row.object, context_.file.string(), advice);
  } catch (const InputError& e) {
    fail("what was written to {} cannot be read back: {}: {}", context_.file.string(), e.what(), advice);
  }
}

void Hdf5File::make_group(const std::string& name) {
  for (const std::string& group : path_to(name)) {
    if (has(group)) continue;
    const Hdf5Id creation = creation_list(H5P_GROUP_CREATE);
    Hdf5Id made(check(H5Gcreate2(id_.get(), group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), context_,
                      "create", group),
                H5Gclose);
    check(made.close(), context_, "create", group);
    log_->rows.push_back({group, {}, [group](const Hdf5File& file, auto&) {
                            if (!file.has(group)) bad_input("it holds no {}", group);
                            return Checksum::Value{};
                          }});
  }
}

Hdf5Dataset Hdf5File::create(const std::string& name, const Shape& shape, DType dtype) {
  make_group(std::filesystem::path(name).parent_path().string());
  write_point("create " + name, context_.file);
  Hdf5Dataset dataset;
  dataset.context_ = context_;
  dataset.name_ = name;
  dataset.shape_ = shape;
  dataset.dtype_ = dtype;
  const Hdf5Id creation = creation_list(H5P_DATASET_CREATE), space = make_dataspace(shape);
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);  // the caller writes all elements
  dataset.id_ = {
      H5Dcreate2(id_.get(), name.c_str(), types_of(dtype).file, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
      H5Dclose};
  check(dataset.id_.get(), context_, "create", name);
  dataset.log_ = log_;
  ++log_->open_datasets;
  log_->rows.push_back({name, checksum_of(shape, dtype), [name](const Hdf5File& file, auto&) {
                          const Hdf5Dataset made = file.open_dataset(name);
                          return checksum_of(made.shape(), made.dtype());
                        }});
  return dataset;
}

void Hdf5File::write(const std::string& name, const Shape& shape, DType dtype, const void* data) {
  Hdf5Dataset dataset = create(name, shape, dtype);
  dataset.write(full_box(shape), data);
  dataset.close();
}

void Hdf5File::create_virtual(const std::string& name, const Shape& shape, const std::vector<SliceMapping>& mappings) {
  make_group(std::filesystem::path(name).parent_path().string());
  write_point("create " + name, context_.file);
  const Hdf5Id creation = creation_list(H5P_DATASET_CREATE), space = make_dataspace(shape);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  check(H5Pset_fill_value(creation.get(), H5T_NATIVE_FLOAT, &nan), context_, "create", name);
  for (const SliceMapping& mapping : mappings) {
    const Hdf5Id target = make_dataspace(shape, mapping.box, context_);
    const Hdf5Id source =
        make_dataspace({mapping.slice_elements}, {{mapping.range.begin}, {mapping.range.size()}}, context_);
    check(H5Pset_virtual(creation.get(), target.get(), mapping.file.c_str(), name.c_str(), source.get()), context_,
          "create", name);
  }
  Hdf5Id dataset(
      check(H5Dcreate2(id_.get(), name.c_str(), H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
            context_, "create", name),
      H5Dclose);
  check(dataset.close(), context_, "create", name);
  log_->rows.push_back({name, checksum_of(shape, mappings, nan), [name](const Hdf5File& file, auto&) {
                          const Hdf5Dataset made = file.open_dataset(name);
                          const Hdf5Id properties(H5Dget_create_plist(made.id_.get()), H5Pclose);
                          float fill = 0;
                          check(H5Pget_fill_value(properties.get(), H5T_NATIVE_FLOAT, &fill), file.context_, "read",
                                name);
                          return checksum_of(made.shape(), made.mappings(), fill);
                        }});
}

void Hdf5File::link(const std::string& name, const std::string& file) {
  make_group(std::filesystem::path(name).parent_path().string());
  write_point("create " + name, context_.file);
  check(H5Lcreate_external(file.c_str(), name.c_str(), id_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), context_,
        "create", name);
  log_->rows.push_back({name, checksum(file.data(), file.size()), [name](const Hdf5File& written, auto&) {
                          const std::string linked = written.linked_file(name);
                          return checksum(linked.data(), linked.size());
                        }});
}

void Hdf5File::set(const std::string& object, const std::string& attribute, const Attribute& value) {
  const std::string action = "write attribute " + attribute;
  const auto create = [&](hid_t file_type, hid_t memory_type, const void* data) {
    write_point(action + " of " + object, context_.file);
    const Hdf5Id space = make_dataspace(Shape{});
    Hdf5Id id(check(H5Acreate_by_name(id_.get(), object.c_str(), attribute.c_str(), file_type, space.get(), H5P_DEFAULT,
                                      H5P_DEFAULT, H5P_DEFAULT),
                    context_, action, object),
              H5Aclose);
    check(H5Awrite(id.get(), memory_type, data), context_, action, object);
    check(id.close(), context_, action, object);
  };
  if (const auto* text = std::get_if<std::string>(&value)) {
    const Hdf5Id type(H5Tcopy(H5T_C_S1), H5Tclose);
    // A string type has at least one byte.
    const std::string padded = text->empty() ? std::string(1, '\0') : *text;
    H5Tset_size(type.get(), padded.size());
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
    create(type.get(), type.get(), padded.data());
  } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
    create(H5T_STD_I64LE, H5T_NATIVE_INT64, number);
  } else {
    create(H5T_STD_U64LE, H5T_NATIVE_UINT64, &std::get<std::uint64_t>(value));
  }
  // Another value of the same type, so that a read that fills nothing does not look right.
  const Attribute empty = std::visit([](const auto& x) { return Attribute(std::decay_t<decltype(x)>()); }, value);
  log_->rows.push_back({fmt::format("attribute {} of {}", attribute, object), checksum_of(value),
                        [object, attribute, empty](const Hdf5File& file, auto&) {
                          return checksum_of(file.get(object, attribute, empty));
                        }});
}

}  // namespace sy
