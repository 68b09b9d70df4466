#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include "dist/activity.h"
#include "src/io/hdf5.h"
#include "src/io/hdf5_calls.h"

namespace sy {

namespace fs = std::filesystem;
using namespace h5;

namespace {

// Returns the shape of a dataset. Throws InputError if its number of bytes does not fit an Index.
Shape shape_of(hid_t space, const Hdf5Where& where, const std::string& name) {
  const int rank = check(H5Sget_simple_extent_ndims(space), where, "read", name);
  if (rank > max_dims) bad_input("{} of {} has {} dimensions", name, where.file.string(), rank);
  Dims dims{};
  check(H5Sget_simple_extent_dims(space, dims.data(), nullptr), where, "read", name);
  Shape shape;
  Index bytes = sizeof(double);
  for (hsize_t dim : std::span(dims).first(static_cast<std::size_t>(rank))) {
    if (dim > std::numeric_limits<Index>::max() || __builtin_mul_overflow(bytes, static_cast<Index>(dim), &bytes))
      bad_input("{} of {} claims more elements than there can be", name, where.file.string());
    shape.push_back(static_cast<Index>(dim));
  }
  return shape;
}

// Returns the box of a selection. Throws InputError if the selection is not a box.
Box box_of(hid_t space, const Hdf5Where& where, const std::string& name) {
  const int rank = check(H5Sget_simple_extent_ndims(space), where, "read", name);
  Dims first{}, last{};
  Box box;
  if (rank <= max_dims && H5Sget_select_bounds(space, first.data(), last.data()) >= 0) {
    hsize_t elements = 1;
    constexpr hsize_t most = std::numeric_limits<Index>::max();
    for (std::size_t i = 0; i < static_cast<std::size_t>(rank) && last[i] < most; ++i) {
      box.begin.push_back(static_cast<Index>(first[i]));
      box.size.push_back(static_cast<Index>(last[i] - first[i] + 1));
      if (__builtin_mul_overflow(elements, last[i] - first[i] + 1, &elements)) elements = 0;
    }
    if (box.size.size() == rank && elements > 0 && elements == static_cast<hsize_t>(H5Sget_select_npoints(space)))
      return box;
  }
  bad_input("{} of {} has a part that is no box", name, where.file.string());
}

// Returns the text of a library call with arguments (buffer, size).
template <class Call>
std::string text_of(Call call, const Hdf5Where& where, const std::string& object) {
  std::string text(static_cast<std::size_t>(check(call(nullptr, std::size_t{0}), where, "read", object)), '\0');
  check(call(text.data(), text.size() + 1), where, "read", object);
  return text;
}

// Returns the mappings of a virtual dataset. It opens none of their files; the library does so if
// the number of files is not fixed.
std::vector<Hdf5Part> parts_of(hid_t creation, const Hdf5Where& where, const std::string& name) {
  std::size_t count = 0;
  check(H5Pget_virtual_count(creation, &count), where, "read", name);
  std::vector<Hdf5Part> parts;
  for (std::size_t i = 0; i < count; ++i) {
    const auto text = [&](auto get) {
      return text_of([&](char* out, std::size_t size) { return get(creation, i, out, size); }, where, name);
    };
    const Hdf5Id target(check(H5Pget_virtual_vspace(creation, i), where, "read", name), H5Sclose);
    const Hdf5Id source(check(H5Pget_virtual_srcspace(creation, i), where, "read", name), H5Sclose);
    const Box box = box_of(target.get(), where, name), run = box_of(source.get(), where, name);
    if (text(H5Pget_virtual_dsetname) != name || run.size.size() != 1 || run.elements() != box.elements())
      bad_input("{} of {} has a part that is no run of {}", name, where.file.string(), name);
    parts.push_back({text(H5Pget_virtual_filename), 0, {run.begin[0], run.begin[0] + run.size[0]}, box});
  }
  return parts;
}

// Throws InputError if `link`, which exists in a group or file, is a soft or external link.
void check_hard_link(hid_t from, const std::string& link, const Hdf5Where& where) {
  H5L_info_t info;
  check(H5Lget_info(from, link.c_str(), &info, H5P_DEFAULT), where, "look up", link);
  if (info.type != H5L_TYPE_HARD) bad_input("{} of {} is a link to elsewhere", link, where.file.string());
}

// Appends the names of the datasets below an open group. prefix: name of the group. seen: groups
// visited before.
void list_datasets(hid_t group, const std::string& prefix, const Hdf5Where& where, std::set<haddr_t>& seen,
                   std::vector<std::string>& names) {
  constexpr int most_levels = 8;
  const auto forged = [&](const std::string& name, const char* why) {
    bad_input("{} of {} {}", name, where.file.string(), why);
  };
  H5O_info_t object;
  check(H5Oget_info2(group, &object, H5O_INFO_BASIC), where, "read", prefix);
  if (!seen.insert(object.addr).second) forged(prefix, "is a group that is linked twice");
  if (std::count(prefix.begin(), prefix.end(), '/') > most_levels) forged(prefix, "lies too deep");
  H5G_info_t info;
  check(H5Gget_info(group, &info), where, "read", prefix);
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const std::string name = prefix + text_of(
                                          [&](char* out, std::size_t size) {
                                            return H5Lget_name_by_idx(group, ".", H5_INDEX_CRT_ORDER, H5_ITER_INC, i,
                                                                      out, size, H5P_DEFAULT);
                                          },
                                          where, prefix);
    const std::string link = name.substr(prefix.size());
    check_hard_link(group, link, where);
    const Hdf5Id id(check(H5Oopen(group, link.c_str(), H5P_DEFAULT), where, "read", name), H5Oclose);
    if (H5Iget_type(id.get()) == H5I_DATASET)
      names.push_back(name);
    else if (H5Iget_type(id.get()) == H5I_GROUP)
      list_datasets(id.get(), name + "/", where, seen, names);
  }
}

}  // namespace

void Hdf5Dataset::read(const Box& box, void* data) const {
  if (virtual_) bad_input("{} of {} is spread over other files, which it must not be", name_, where_.file.string());
  ++local_progress;
  if (box.elements() == 0) return;
  const Hdf5Id space = make_space(shape_, box, where_), memory = make_space(box.size);
  check(H5Dread(id_.get(), types_of(dtype_).memory, memory.get(), space.get(), H5P_DEFAULT, data), where_, "read",
        name_);
}

void Hdf5Dataset::read(Range run, void* data) const {
  auto* out = static_cast<std::byte*>(data);
  for (const Box& box : boxes_of_run(shape_, run)) {
    read(box, out);
    out += box.elements() * size_of(dtype_);
  }
}

Index Hdf5Dataset::read_part(const Hdf5Part& part, const Box& box, void* data) const {
  if (virtual_ || shape_.size() != 1 || part.run.end > shape_[0])
    bad_input("{} of {} has no elements {} to {}", name_, where_.file.string(), part.run.begin, part.run.end);
  const Shape& from = part.box.size;
  Box common = whole(from);  // in the coordinates of the part
  for (int d = 0; d < from.size(); ++d) {
    const Index low = box.begin[d] - part.box.begin[d];
    common.begin[d] = std::max<Index>(0, low);
    common.size[d] = std::min(from[d], low + box.size[d]) - common.begin[d];
    if (common.size[d] <= 0) return 0;
  }
  // The dimensions after d are complete, so they form one block with d. Dimension d - 1 repeats the
  // block with a stride. The loop below iterates over the dimensions before.
  int d = from.size() - 1;
  while (d > 0 && common.size[d] == from[d]) --d;
  const int repeated = d - 1, counted = std::max(0, repeated);
  const hsize_t block = common.size.elements(std::max(0, d)), stride = repeated >= 0 ? from.elements(d) : block;
  const hsize_t count = repeated >= 0 ? common.size[repeated] : 1;
  Shape outer;
  for (int i = 0; i < counted; ++i) outer.push_back(common.size[i]);
  const Hdf5Id space = make_space(shape_);
  for (Index n = 0; n < outer.elements(); ++n) {
    Box piece = common;
    for (int i = 0; i < counted; ++i) {
      piece.begin[i] += n / outer.elements(i + 1) % outer[i];
      piece.size[i] = 1;
    }
    hsize_t first = part.run.begin;
    for (int i = 0; i < from.size(); ++i) {
      first += piece.begin[i] * from.elements(i + 1);
      piece.begin[i] += part.box.begin[i] - box.begin[i];  // in the coordinates of `box`
    }
    check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, &stride, &count, &block), where_, "read", name_);
    const Hdf5Id memory = make_space(box.size, piece, where_);
    check(H5Dread(id_.get(), types_of(dtype_).memory, memory.get(), space.get(), H5P_DEFAULT, data), where_, "read",
          name_);
  }
  return common.elements();
}

Hdf5File Hdf5File::open(const std::filesystem::path& path) {
  Hdf5File file;
  file.where_ = {path, false};
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) bad_input("{} is no regular file", path.string());
  const Hdf5Id access = file_access();
  file.id_ = {H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose};
  check(file.id_.get(), file.where_, "read");
  const Hdf5Id creation(check(H5Fget_create_plist(file.id_.get()), file.where_, "read"), H5Pclose);
  std::size_t address_bytes = 0, length_bytes = 0;
  check(H5Pget_sizes(creation.get(), &address_bytes, &length_bytes), file.where_, "read");
  if (address_bytes != 8 || length_bytes != 8)  // src/io/global_heap.h requires this
    bad_input("{} has addresses of {} and lengths of {} bytes, which must be 8", path.string(), address_bytes,
              length_bytes);
  return file;
}

bool Hdf5File::has(const std::string& name) const {
  if (name == "/") return true;
  std::vector<std::string> way = parents(name);
  way.push_back(name);
  for (const std::string& link : way) {
    if (check(H5Lexists(id_.get(), link.c_str(), H5P_DEFAULT), where_, "look up", link) == 0) return false;
    check_hard_link(id_.get(), link, where_);
  }
  return true;
}

Hdf5Dataset Hdf5File::open_dataset(const std::string& name) const {
  if (!has(name)) bad_input("{} holds no {}", where_.file.string(), name);
  Hdf5Dataset dataset;
  dataset.where_ = where_;
  dataset.name_ = name;
  dataset.id_ = {check(H5Dopen2(id_.get(), name.c_str(), H5P_DEFAULT), where_, "read", name), H5Dclose};
  const Hdf5Id creation(check(H5Dget_create_plist(dataset.id_.get()), where_, "read", name), H5Pclose);
  dataset.virtual_ = H5Pget_layout(creation.get()) == H5D_VIRTUAL;
  if (dataset.virtual_) {
    dataset.parts_ = parts_of(creation.get(), where_, name);
  } else if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0) {
    bad_input("{} of {} does not lie in it as one piece", name, where_.file.string());
  }
  const Hdf5Id type(check(H5Dget_type(dataset.id_.get()), where_, "read", name), H5Tclose);
  const Hdf5Id space(check(H5Dget_space(dataset.id_.get()), where_, "read", name), H5Sclose);
  const auto table = type_table();
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const Types& t) { return H5Tequal(type.get(), t.file) > 0; });
  if (row == table.end()) bad_input("{} of {} has a type that is unknown here", name, where_.file.string());
  dataset.dtype_ = row->dtype;
  dataset.shape_ = shape_of(space.get(), where_, name);
  const Shape& shape = dataset.shape_;
  const auto bytes = static_cast<hsize_t>(shape.elements()) * static_cast<hsize_t>(size_of(dataset.dtype_));
  hsize_t file_bytes = 0;
  check(H5Fget_filesize(id_.get(), &file_bytes), where_, "read");
  if (!dataset.virtual_ && (H5Dget_storage_size(dataset.id_.get()) != bytes || bytes > file_bytes))
    bad_input("{} of {} does not hold its {} elements", name, where_.file.string(), shape.elements());
  for (const Hdf5Part& part : dataset.parts_) {
    bool within = part.box.size.size() == shape.size();
    for (int d = 0; within && d < shape.size(); ++d) within = part.box.begin[d] + part.box.size[d] <= shape[d];
    if (!within) bad_input("{} of {} has a part beyond its end", name, where_.file.string());
  }
  return dataset;
}

std::vector<std::string> Hdf5File::datasets(const std::string& group) const {
  if (!has(group)) bad_input("{} holds no {}", where_.file.string(), group);
  const Hdf5Id id(check(H5Gopen2(id_.get(), group.c_str(), H5P_DEFAULT), where_, "read", group), H5Gclose);
  std::vector<std::string> names;
  std::set<haddr_t> seen;
  list_datasets(id.get(), group == "/" ? group : group + "/", where_, seen, names);
  return names;
}

bool Hdf5File::has(const std::string& object, const std::string& attribute) const {
  return has(object) && check(H5Aexists_by_name(id_.get(), object.c_str(), attribute.c_str(), H5P_DEFAULT), where_,
                              "look up attribute " + attribute, object) > 0;
}

Hdf5Id Hdf5File::open_attribute(const std::string& object, const std::string& attribute, bool text) const {
  if (!has(object)) bad_input("{} holds no {}", where_.file.string(), object);
  const std::string action = "read attribute " + attribute;
  Hdf5Id id(check(H5Aopen_by_name(id_.get(), object.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT), where_,
                  action, object),
            H5Aclose);
  const Hdf5Id type(check(H5Aget_type(id.get()), where_, action, object), H5Tclose);
  const Hdf5Id space(check(H5Aget_space(id.get()), where_, action, object), H5Sclose);
  const bool right = text ? H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0
                          : H5Tget_class(type.get()) == H5T_INTEGER;
  if (!right || H5Sget_simple_extent_npoints(space.get()) != 1)
    bad_input("attribute {} of {} of {} is not one {}", attribute, object, where_.file.string(),
              text ? "text" : "whole number");
  return id;
}

std::string Hdf5File::get_string(const std::string& object, const std::string& attribute) const {
  const Hdf5Id id = open_attribute(object, attribute, true);
  const Hdf5Id type(check(H5Aget_type(id.get()), where_, "read attribute " + attribute, object), H5Tclose);
  std::string value(H5Tget_size(type.get()), '\0');
  check(H5Aread(id.get(), type.get(), value.data()), where_, "read attribute " + attribute, object);
  value.resize(value.find_last_not_of('\0') + 1);
  return value;
}

template <class Int>
Int Hdf5File::get_number(const std::string& object, const std::string& attribute) const {
  const Hdf5Id id = open_attribute(object, attribute, false);
  Int value = 0;
  check(H5Aread(id.get(), std::is_signed_v<Int> ? H5T_NATIVE_INT64 : H5T_NATIVE_UINT64, &value), where_,
        "read attribute " + attribute, object);
  return value;
}
std::int64_t Hdf5File::get_int(const std::string& object, const std::string& attribute) const {
  return get_number<std::int64_t>(object, attribute);
}
std::uint64_t Hdf5File::get_unsigned(const std::string& object, const std::string& attribute) const {
  return get_number<std::uint64_t>(object, attribute);
}

}  // namespace sy
