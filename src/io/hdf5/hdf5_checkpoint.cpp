#include "src/io/hdf5/hdf5_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "dist/file_activity.h"
#include "kernels/check.h"
#include "src/io/format/box_index.h"
#include "src/io/hdf5/global_heap.h"
#include "src/io/hdf5/hdf5.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Attribute of a sharded tensor: the shape of its dataset, "6 3 29". The library decodes all
// mappings of a virtual dataset when it opens the dataset, but not when it reads an attribute.
// Older indexes lack it.
constexpr const char* shape_attribute = "shape";

// Parses the attribute. Throws InputError if it is no shape.
Shape parse_shape(const std::string& text, const std::string& name, const fs::path& step_dir) {
  Shape shape;
  Index bytes = size_of(DType::f32);
  const char *at = text.data(), *const end = at + text.size();
  for (; at < end; ++at) {
    Index dim = -1;
    const auto [next, error] = std::from_chars(at, end, dim);
    if (error != std::errc() || dim < 0 || shape.size() == max_dims || __builtin_mul_overflow(bytes, dim, &bytes) ||
        (next < end && (*next != ' ' || next + 1 == end)))
      bad_input("the shape of {} of {} is damaged: use another checkpoint", name, step_dir.string());
    shape.push_back(dim);
    at = next;
  }
  return shape;
}

class Hdf5CheckpointWriter final : public CheckpointWriter {
 public:
  explicit Hdf5CheckpointWriter(const fs::path& path) : file_(Hdf5File::create(path)) {}

  void make_group(const std::string& name) override { file_.make_group(name); }
  void set(const std::string& object, const std::string& attribute, const Attribute& value) override {
    file_.set(object, attribute, value);
  }
  void write(const std::string& name, const Shape& shape, DType dtype, const void* data) override {
    file_.write(name, shape, dtype, data);
  }
  void begin_slice(const std::string& name, Index elements) override {
    end_slice();
    slice_ = file_.create(name, {elements}, DType::f32);
    written_ = 0;
  }
  void append(std::span<const float> values) override {
    SY_ASSERT(slice_, "append() without begin_slice()");
    slice_->write({{written_}, {std::ssize(values)}}, values.data());
    written_ += std::ssize(values);
  }
  void write_sharded(const std::string& name, const Shape& shape, const std::vector<SliceMapping>& slices) override {
    file_.create_virtual(name, shape, slices);
    file_.set(name, shape_attribute, fmt::format("{}", fmt::join(shape, " ")));
  }
  void link_sharded(const std::string& name, const std::string& linked_index) override {
    file_.link(name, linked_index);
  }
  void close() override {
    end_slice();
    file_.close();
  }
  void verify() const override { file_.verify(); }

 private:
  void end_slice() {
    if (!slice_) return;
    SY_ASSERT(written_ == slice_->shape().elements(), "{} has {} of its {} elements", slice_->name(), written_,
              slice_->shape().elements());
    slice_->close();
    slice_.reset();
  }

  Hdf5File file_;
  std::optional<Hdf5Dataset> slice_;  // the one that append() writes
  Index written_ = 0;                 // elements of it
};

// Open files, the latest used first. A further one closes the one that was not used for longest.
class OpenFiles {
 public:
  // Returns an open file, which is valid until the next call. open(): opens it
  template <class Open>
  const Hdf5File& get(const std::string& name, Open open) {
    constexpr std::size_t max_open = 4;
    const auto known =
        std::find_if(files_.begin(), files_.end(), [&](const auto& entry) { return entry.first == name; });
    if (known != files_.end()) {
      files_.splice(files_.begin(), files_, known);
      return files_.front().second;
    }
    if (files_.size() == max_open) files_.pop_back();
    files_.emplace_front(name, open());
    return files_.front().second;
  }

 private:
  std::list<std::pair<std::string, Hdf5File>> files_;
};

// Assembles tensors from the shards that the indexes map. It does not read virtual datasets through
// libhdf5, which shows missing files as NaN and opens any path. Nor does it follow external links
// through libhdf5, which opens any path, too.
class Hdf5CheckpointReader final : public CheckpointReader {
 public:
  Hdf5CheckpointReader(const fs::path& step_dir, std::shared_ptr<const IndexBytes> indexes,
                       std::function<void(const std::string&)> check_file)
      : dir_(step_dir),
        indexes_(std::move(indexes)),
        check_file_(std::move(check_file)),
        index_(open_index(hdf5_format.index_name(),
                          [](const std::string& file) { return hdf5_format.is_linked_index(file); })) {}

  bool has(const std::string& object) const override { return index_.has(object); }
  bool has(const std::string& object, const std::string& attribute) const override {
    return file_of(object).has(object, attribute);
  }
  Attribute get(const std::string& object, const std::string& attribute, Attribute value) const override {
    return file_of(object).get(object, attribute, std::move(value));
  }

  std::vector<std::string> tensors(const std::string& group) const override { return index_.datasets(group); }
  TensorInfo tensor(const std::string& name) override {
    if (!opened_.contains(name) && has(name, shape_attribute)) return {name, DType::f32, shape_in(name)};
    const Hdf5Dataset& dataset = opened(name).dataset;
    return {name, dataset.dtype(), dataset.shape()};
  }

  void read(const std::string& name, const Box& box, void* data) override {
    const OpenTensor& tensor = opened(name);
    if (!tensor.dataset.is_virtual()) return tensor.dataset.read(box, data);
    Index found = 0;
    mapping_counts().compared += static_cast<std::uint64_t>(tensor.boxes.find(box, [&](std::size_t i) {
      const SliceMapping& mapping = tensor.dataset.mappings()[i];
      const Hdf5Dataset source = shard(mapping.file).open_dataset(name);
      if (source.dtype() != tensor.dataset.dtype())
        bad_input("{} of {} in {} has another type than the whole", name, dir_.string(), mapping.file);
      found += source.read_mapped(mapping, box, data);
    }));
    if (found != box.elements())
      bad_input("{} of {} is not covered by its shards: use another checkpoint", name, dir_.string());
  }
  void read_unsharded(const std::string& name, const Box& box, void* data) override {
    opened(name).dataset.read(box, data);
  }

  void add_files(const std::string& name, const Box& box, std::set<std::string>& files) override {
    const OpenTensor& tensor = opened(name);
    mapping_counts().compared += static_cast<std::uint64_t>(
        tensor.boxes.find(box, [&](std::size_t i) { files.insert(tensor.dataset.mappings()[i].file); }));
  }
  std::set<std::string> mapped_files() override {
    std::set<std::string> files;
    for (const std::string& name : index_.datasets()) {
      const Hdf5Dataset dataset = file_of(name).open_dataset(name);
      for (const SliceMapping& mapping : dataset.mappings()) files.insert(mapping.file);
    }
    return files;
  }

 private:
  // A dataset of an index whose values are read.
  struct OpenTensor {
    Hdf5Dataset dataset;
    BoxIndex boxes;  // of its mappings
  };
  // Returns the shape of a tensor that has the attribute.
  Shape shape_in(const std::string& name) const {
    return parse_shape(CheckpointReader::get<std::string>(name, shape_attribute), name, dir_);
  }
  // Returns a tensor; its mappings are decoded in the first call. Valid as long as this reader.
  const OpenTensor& opened(const std::string& name) {
    const auto known = opened_.find(name);
    if (known != opened_.end()) return known->second;
    const Hdf5File& file = file_of(name);
    OpenTensor tensor{file.open_dataset(name), {}};
    if (&file != &index_ && !tensor.dataset.is_virtual())
      bad_input("{} of {} has its values in a linked index: use another checkpoint", name, dir_.string());
    if (file.has(name, shape_attribute) &&
        (shape_in(name) != tensor.dataset.shape() || tensor.dataset.dtype() != DType::f32))
      bad_input("{} of {} has another shape or type than its attribute says: use another checkpoint", name,
                dir_.string());
    std::vector<Box> boxes;
    for (const SliceMapping& mapping : tensor.dataset.mappings()) boxes.push_back(mapping.box);
    mapping_counts().decoded += boxes.size();
    tensor.boxes = BoxIndex(std::move(boxes));
    if (tensor.dataset.is_virtual()) tensor.dataset.close();  // frees the library's mappings
    return opened_.emplace(name, std::move(tensor)).first->second;
  }

  const Hdf5File& shard(const std::string& file) {
    return shards_.get(file, [&] { return open_file(file); });
  }

  // Returns the index that holds an object: the linked index of a tensor that the index links to,
  // otherwise the index. Valid until the next call.
  const Hdf5File& file_of(const std::string& object) const {
    const std::string name = index_.linked_file(object);
    if (name.empty()) return index_;
    const Hdf5File& linked = linked_.get(name, [&] { return open_index(name); });
    if (!linked.has_dataset(object))
      bad_input("{} holds no tensor {}, to which the index links: use another checkpoint", (dir_ / name).string(),
                object);
    return linked;
  }

  // Opens an index from its bytes, or from the folder. Throws InputError unless the manifest lists
  // it.
  Hdf5File open_index(const std::string& name, Hdf5File::MayLink may_link = {}) const {
    if (indexes_)
      if (const auto bytes = indexes_->find(name); bytes != indexes_->end())
        return Hdf5File::open(dir_ / name, &bytes->second, std::move(may_link));
    return open_file(name, std::move(may_link));
  }
  Hdf5File open_file(const std::string& file, Hdf5File::MayLink may_link = {}) const {
    check_file_(file);
    ++file_activity().opened;
    return Hdf5File::open(dir_ / file, nullptr, std::move(may_link));
  }

  fs::path dir_;
  std::shared_ptr<const IndexBytes> indexes_;  // nullptr if they are read from the folder
  std::function<void(const std::string&)> check_file_;
  Hdf5File index_;
  std::map<std::string, OpenTensor> opened_;  // tensors of which values were read
  OpenFiles shards_;
  mutable OpenFiles linked_;  // linked indexes
};

}  // namespace

MappingCounts& mapping_counts() {
  static MappingCounts counts;
  return counts;
}

constinit const CheckpointFormat hdf5_format = {
    .extension = ".h5",
    .create = [](const fs::path& file) -> std::unique_ptr<CheckpointWriter> {
      return std::make_unique<Hdf5CheckpointWriter>(file);
    },
    .open = [](const fs::path& step_dir, std::shared_ptr<const IndexBytes> indexes,
               std::function<void(const std::string&)> check_file) -> std::unique_ptr<CheckpointReader> {
      return std::make_unique<Hdf5CheckpointReader>(step_dir, std::move(indexes), std::move(check_file));
    },
    .make_check = []() -> std::unique_ptr<FileCheck> { return std::make_unique<GlobalHeaps>(); },
};

}  // namespace sy
