#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include "dist/file_activity.h"
#include "src/io/hdf5/hdf5.h"
#include "src/io/hdf5/hdf5_calls.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;
using namespace h5;

namespace {

// Returns the shape of a dataset. Throws InputError if its number of bytes does not fit an Index.
Shape shape_of(hid_t space, const Hdf5Context& context, const std::string& name) {
  const int rank = check(H5Sget_simple_extent_ndims(space), context, "read", name);
  if (rank > max_dims) bad_input("{} of {} has {} dimensions", name, context.file.string(), rank);
  Dims dims{};
  check(H5Sget_simple_extent_dims(space, dims.data(), nullptr), context, "read", name);
  Shape shape;
  Index bytes = sizeof(double);
  for (hsize_t dim : std::span(dims).first(static_cast<std::size_t>(rank))) {
    if (dim > std::numeric_limits<Index>::max() || __builtin_mul_overflow(bytes, static_cast<Index>(dim), &bytes))
      bad_input("{} of {} claims more elements than there can be", name, context.file.string());
    shape.push_back(static_cast<Index>(dim));
  }
  return shape;
}

// Returns the box of a selection. Throws InputError if the selection is not a box.
Box box_of(hid_t space, const Hdf5Context& context, const std::string& name) {
  const int rank = check(H5Sget_simple_extent_ndims(space), context, "read", name);
  Dims first{}, last{};
  Box box;
  if (rank <= max_dims && H5Sget_select_bounds(space, first.data(), last.data()) >= 0) {
    hsize_t elements = 1;
    constexpr hsize_t max_extent = std::numeric_limits<Index>::max();
    for (std::size_t i = 0; i < static_cast<std::size_t>(rank) && last[i] < max_extent; ++i) {
      box.begin.push_back(static_cast<Index>(first[i]));
      box.size.push_back(static_cast<Index>(last[i] - first[i] + 1));
      if (__builtin_mul_overflow(elements, last[i] - first[i] + 1, &elements)) elements = 0;
    }
    if (box.size.size() == rank && elements > 0 && elements == static_cast<hsize_t>(H5Sget_select_npoints(space)))
      return box;
  }
  bad_input("{} of {} has a mapping that is no box", name, context.file.string());
}

// Returns the text of a library call with arguments (buffer, size).
template <class Call>
std::string text_of(Call call, const Hdf5Context& context, const std::string& object) {
  std::string text(static_cast<std::size_t>(check(call(nullptr, std::size_t{0}), context, "read", object)), '\0');
  check(call(text.data(), text.size() + 1), context, "read", object);
  return text;
}

// Returns the mappings of a virtual dataset. It opens none of their files; the library does so if
// the number of files is not fixed.
std::vector<SliceMapping> mappings_of(hid_t creation, const Hdf5Context& context, const std::string& name) {
  std::size_t count = 0;
  check(H5Pget_virtual_count(creation, &count), context, "read", name);
  std::vector<SliceMapping> mappings;
  for (std::size_t i = 0; i < count; ++i) {
    const auto text = [&](auto get) {
      return text_of([&](char* out, std::size_t size) { return get(creation, i, out, size); }, context, name);
    };
    const Hdf5Id target(check(H5Pget_virtual_vspace(creation, i), context, "read", name), H5Sclose);
    const Hdf5Id source(check(H5Pget_virtual_srcspace(creation, i), context, "read", name), H5Sclose);
    const Box box = box_of(target.get(), context, name), range = box_of(source.get(), context, name);
    if (text(H5Pget_virtual_dsetname) != name || range.size.size() != 1 || range.elements() != box.elements())
      bad_input("{} of {} has a mapping that is no range of {}", name, context.file.string(), name);
    mappings.push_back({text(H5Pget_virtual_filename), 0, {range.begin[0], range.begin[0] + range.size[0]}, box});
  }
  return mappings;
}

// Returns the file of an external link of a group or file; empty if it is a hard link.
// Throws InputError for a soft link, and unless the external link leads to the object `name` of a
// file that is allowed.
std::string target_file(hid_t from, const std::string& link, const std::string& name, const Hdf5Context& context,
                        const Hdf5File::MayLink& may_link) {
  H5L_info_t info;
  check(H5Lget_info(from, link.c_str(), &info, H5P_DEFAULT), context, "look up", link);
  if (info.type == H5L_TYPE_HARD) return "";
  if (info.type == H5L_TYPE_EXTERNAL && may_link) {
    std::vector<char> value(info.u.val_size);
    const char *file = nullptr, *object = nullptr;
    check(H5Lget_val(from, link.c_str(), value.data(), value.size(), H5P_DEFAULT), context, "read", link);
    check(H5Lunpack_elink_val(value.data(), value.size(), nullptr, &file, &object), context, "read", link);
    if (object == name && may_link(file)) return file;
  }
  bad_input("{} of {} is a link to elsewhere", link, context.file.string());
}

// Appends the names of the datasets below an open group. prefix: name of the group. seen: groups
// visited before.
void list_datasets(hid_t group, const std::string& prefix, const Hdf5Context& context,
                   const Hdf5File::MayLink& may_link, std::set<haddr_t>& seen, std::vector<std::string>& names) {
  constexpr int max_levels = 8;
  const auto forged = [&](const std::string& name, const char* why) {
    bad_input("{} of {} {}", name, context.file.string(), why);
  };
  H5O_info_t object;
  check(H5Oget_info2(group, &object, H5O_INFO_BASIC), context, "read", prefix);
  if (!seen.insert(object.addr).second) forged(prefix, "is a group that is linked twice");
  if (std::count(prefix.begin(), prefix.end(), '/') > max_levels) forged(prefix, "lies too deep");
  H5G_info_t info;
  check(H5Gget_info(group, &info), context, "read", prefix);
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const std::string name = prefix + text_of(
                                          [&](char* out, std::size_t size) {
                                            return H5Lget_name_by_idx(group, ".", H5_INDEX_CRT_ORDER, H5_ITER_INC, i,
                                                                      out, size, H5P_DEFAULT);
                                          },
                                          context, prefix);
    const std::string link = name.substr(prefix.size());
    if (!target_file(group, link, name, context, may_link).empty()) {
      names.push_back(name);
      continue;
    }
    // The library decodes all mappings of a virtual dataset when it opens the dataset.
    H5O_info_t child;
    check(H5Oget_info_by_name2(group, link.c_str(), &child, H5O_INFO_BASIC, H5P_DEFAULT), context, "read", name);
    if (child.type == H5O_TYPE_DATASET) {
      names.push_back(name);
    } else if (child.type == H5O_TYPE_GROUP) {
      const Hdf5Id id(check(H5Gopen2(group, link.c_str(), H5P_DEFAULT), context, "read", name), H5Gclose);
      list_datasets(id.get(), name + "/", context, may_link, seen, names);
    }
  }
}

}  // namespace

void Hdf5Dataset::read(const Box& box, void* data) const {
  if (virtual_) bad_input("{} of {} is spread over other files, which it must not be", name_, context_.file.string());
  ++file_activity().chunks;
  if (box.elements() == 0) return;
  const Hdf5Id space = make_dataspace(shape_, box, context_), memory = make_dataspace(box.size);
  check(H5Dread(id_.get(), types_of(dtype_).memory, memory.get(), space.get(), H5P_DEFAULT, data), context_, "read",
        name_);
}

Index Hdf5Dataset::read_mapped(const SliceMapping& mapping, const Box& box, void* data) const {
  if (virtual_ || shape_.size() != 1 || mapping.range.end > shape_[0])
    bad_input("{} of {} has no elements {} to {}", name_, context_.file.string(), mapping.range.begin,
              mapping.range.end);
  const Shape& from = mapping.box.size;
  Box common = full_box(from);  // in the coordinates of the mapping
  for (int d = 0; d < from.size(); ++d) {
    const Index low = box.begin[d] - mapping.box.begin[d];
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
  const Hdf5Id space = make_dataspace(shape_);
  for (Index n = 0; n < outer.elements(); ++n) {
    Box slab = common;
    for (int i = 0; i < counted; ++i) {
      slab.begin[i] += n / outer.elements(i + 1) % outer[i];
      slab.size[i] = 1;
    }
    hsize_t first = mapping.range.begin;
    for (int i = 0; i < from.size(); ++i) {
      first += slab.begin[i] * from.elements(i + 1);
      slab.begin[i] += mapping.box.begin[i] - box.begin[i];  // in the coordinates of `box`
    }
    check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, &stride, &count, &block), context_, "read", name_);
    const Hdf5Id memory = make_dataspace(box.size, slab, context_);
    check(H5Dread(id_.get(), types_of(dtype_).memory, memory.get(), space.get(), H5P_DEFAULT, data), context_, "read",
          name_);
  }
  return common.elements();
}

Hdf5File Hdf5File::open(const std::filesystem::path& path, const std::string* image, MayLink may_link) {
  Hdf5File file;
  file.may_link_ = std::move(may_link);
  file.context_ = {path, false};
  if (!image) {
    const fs::file_type type = file_type(path);
    if (type != fs::file_type::not_found && type != fs::file_type::regular)
      bad_input("{} is no regular file", path.string());
  }
  const Hdf5Id access = file_access();
  std::string name = path.string();
  if (image) {
    // The library refuses an image if a file has its name, or an open image. It looks for a file;
    // nothing is below /dev/null.
    static Index images = 0;
    name = fmt::format("/dev/null/{}", ++images);
    constexpr std::size_t growth = 1 << 16;  // of the memory, if the file were written
    check(H5Pset_fapl_core(access.get(), growth, false), file.context_, "read");
    std::string copy = *image;  // the library wants bytes that are not const
    check(H5Pset_file_image(access.get(), copy.data(), copy.size()), file.context_, "read");
  }
  check_cache_memory(path);
  file.id_ = {H5Fopen(name.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose};
  check(file.id_.get(), file.context_, "read");
  const Hdf5Id creation(check(H5Fget_create_plist(file.id_.get()), file.context_, "read"), H5Pclose);
  std::size_t address_bytes = 0, length_bytes = 0;
  check(H5Pget_sizes(creation.get(), &address_bytes, &length_bytes), file.context_, "read");
  if (address_bytes != 8 || length_bytes != 8)  // src/io/hdf5/global_heap.h requires this
    bad_input("{} has addresses of {} and lengths of {} bytes, which must be 8", path.string(), address_bytes,
              length_bytes);
  return file;
}

std::optional<std::string> Hdf5File::find(const std::string& name) const {
  std::string file;
  if (name == "/") return file;
  for (const std::string& link : path_to(name)) {
    if (check(H5Lexists(id_.get(), link.c_str(), H5P_DEFAULT), context_, "look up", link) == 0) return {};
    file = target_file(id_.get(), link, name, context_, link == name ? may_link_ : MayLink());
  }
  return file;
}

void Hdf5File::require(const std::string& name) const {
  const std::optional<std::string> file = find(name);
  if (!file) bad_input("{} holds no {}", context_.file.string(), name);
  if (!file->empty()) bad_input("{} of {} is a link to {}", name, context_.file.string(), *file);
}

bool Hdf5File::has_dataset(const std::string& name) const {
  if (!has(name)) return false;
  require(name);
  H5O_info_t object;
  check(H5Oget_info_by_name2(id_.get(), name.c_str(), &object, H5O_INFO_BASIC, H5P_DEFAULT), context_, "read", name);
  return object.type == H5O_TYPE_DATASET;
}

Hdf5Dataset Hdf5File::open_dataset(const std::string& name) const {
  require(name);
  Hdf5Dataset dataset;
  dataset.context_ = context_;
  dataset.name_ = name;
  dataset.id_ = {check(H5Dopen2(id_.get(), name.c_str(), H5P_DEFAULT), context_, "read", name), H5Dclose};
  const Hdf5Id creation(check(H5Dget_create_plist(dataset.id_.get()), context_, "read", name), H5Pclose);
  dataset.virtual_ = H5Pget_layout(creation.get()) == H5D_VIRTUAL;
  if (dataset.virtual_) {
    dataset.mappings_ = mappings_of(creation.get(), context_, name);
  } else if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0) {
    bad_input("{} of {} is not contiguous in it", name, context_.file.string());
  }
  const Hdf5Id type(check(H5Dget_type(dataset.id_.get()), context_, "read", name), H5Tclose);
  const Hdf5Id space(check(H5Dget_space(dataset.id_.get()), context_, "read", name), H5Sclose);
  const auto table = type_table();
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const Types& t) { return H5Tequal(type.get(), t.file) > 0; });
  if (row == table.end()) bad_input("{} of {} has a type that is unknown here", name, context_.file.string());
  dataset.dtype_ = row->dtype;
  dataset.shape_ = shape_of(space.get(), context_, name);
  const Shape& shape = dataset.shape_;
  const auto bytes = static_cast<hsize_t>(shape.elements()) * static_cast<hsize_t>(size_of(dataset.dtype_));
  hsize_t file_bytes = 0;
  check(H5Fget_filesize(id_.get(), &file_bytes), context_, "read");
  if (!dataset.virtual_ && (H5Dget_storage_size(dataset.id_.get()) != bytes || bytes > file_bytes))
    bad_input("{} of {} does not hold its {} elements", name, context_.file.string(), shape.elements());
  for (const SliceMapping& mapping : dataset.mappings_) {
    bool within = mapping.box.size.size() == shape.size();
    for (int d = 0; within && d < shape.size(); ++d) within = mapping.box.begin[d] + mapping.box.size[d] <= shape[d];
    if (!within) bad_input("{} of {} has a mapping beyond its end", name, context_.file.string());
  }
  return dataset;
}

std::vector<std::string> Hdf5File::datasets(const std::string& group) const {
  require(group);
  const Hdf5Id id(check(H5Gopen2(id_.get(), group.c_str(), H5P_DEFAULT), context_, "read", group), H5Gclose);
  std::vector<std::string> names;
  std::set<haddr_t> seen;
  list_datasets(id.get(), group == "/" ? group : group + "/", context_, may_link_, seen, names);
  return names;
}

bool Hdf5File::has(const std::string& object, const std::string& attribute) const {
  if (!has(object)) return false;
  require(object);
  return check(H5Aexists_by_name(id_.get(), object.c_str(), attribute.c_str(), H5P_DEFAULT), context_,
               "look up attribute " + attribute, object) > 0;
}

Attribute Hdf5File::get(const std::string& object, const std::string& attribute, Attribute value) const {
  require(object);
  const std::string action = "read attribute " + attribute;
  const Hdf5Id id(check(H5Aopen_by_name(id_.get(), object.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                        context_, action, object),
                  H5Aclose);
  const Hdf5Id type(check(H5Aget_type(id.get()), context_, action, object), H5Tclose);
  const Hdf5Id space(check(H5Aget_space(id.get()), context_, action, object), H5Sclose);
  auto* const text = std::get_if<std::string>(&value);
  const bool right = text ? H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0
                          : H5Tget_class(type.get()) == H5T_INTEGER;
  if (!right || H5Sget_simple_extent_npoints(space.get()) != 1)
    bad_input("attribute {} of {} of {} is not one {}", attribute, object, context_.file.string(),
              text ? "text" : "whole number");
  const auto read = [&](hid_t memory_type, void* memory) {
    check(H5Aread(id.get(), memory_type, memory), context_, action, object);
  };
  if (text) {
    text->assign(H5Tget_size(type.get()), '\0');
    read(type.get(), text->data());
    text->resize(text->find_last_not_of('\0') + 1);
  } else if (auto* const number = std::get_if<std::int64_t>(&value)) {
    read(H5T_NATIVE_INT64, number);
  } else {
    read(H5T_NATIVE_UINT64, &std::get<std::uint64_t>(value));
  }
  return value;
}

}  // namespace sy
