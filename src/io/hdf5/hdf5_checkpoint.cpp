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

// Assembles tensors from the shards that the index maps. It does not read virtual datasets through
// libhdf5, which shows missing files as NaN and opens any path.
class Hdf5CheckpointReader final : public CheckpointReader {
 public:
  Hdf5CheckpointReader(const fs::path& step_dir, const std::string* index,
                       std::function<void(const std::string&)> check_file)
      : dir_(step_dir),
        check_file_(std::move(check_file)),
        index_(index ? Hdf5File::open(dir_ / hdf5_format.index_name(), index) : open_file(hdf5_format.index_name())) {}

  bool has(const std::string& object) const override { return index_.has(object); }
  bool has(const std::string& object, const std::string& attribute) const override {
    return index_.has(object, attribute);
  }
  Attribute get(const std::string& object, const std::string& attribute, Attribute value) const override {
    return index_.get(object, attribute, std::move(value));
  }

  std::vector<std::string> tensors(const std::string& group) const override { return index_.datasets(group); }
  TensorInfo tensor(const std::string& name) override {
    if (!opened_.contains(name) && index_.has(name, shape_attribute)) return {name, DType::f32, shape_in(name)};
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
      const Hdf5Dataset dataset = index_.open_dataset(name);
      for (const SliceMapping& mapping : dataset.mappings()) files.insert(mapping.file);
    }
    return files;
  }

 private:
  // A dataset of the index whose values are read.
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
    OpenTensor tensor{index_.open_dataset(name), {}};
    if (index_.has(name, shape_attribute) &&
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
    constexpr std::size_t max_open_shards = 4;
    const auto open =
        std::find_if(shards_.begin(), shards_.end(), [&](const auto& entry) { return entry.first == file; });
    if (open != shards_.end()) {
      shards_.splice(shards_.begin(), shards_, open);
      return shards_.front().second;
    }
    if (shards_.size() == max_open_shards) shards_.pop_back();
    shards_.emplace_front(file, open_file(file));
    return shards_.front().second;
  }

  Hdf5File open_file(const std::string& file) const {
    check_file_(file);
    ++file_activity().opened;
    return Hdf5File::open(dir_ / file);
  }

  fs::path dir_;
  std::function<void(const std::string&)> check_file_;
  Hdf5File index_;
  std::map<std::string, OpenTensor> opened_;            // tensors of which values were read
  std::list<std::pair<std::string, Hdf5File>> shards_;  // open shards, the latest used first
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
    .open = [](const fs::path& step_dir, const std::string* index,
               std::function<void(const std::string&)> check_file) -> std::unique_ptr<CheckpointReader> {
      return std::make_unique<Hdf5CheckpointReader>(step_dir, index, std::move(check_file));
    },
    .make_check = []() -> std::unique_ptr<FileCheck> { return std::make_unique<GlobalHeaps>(); },
};

}  // namespace sy
