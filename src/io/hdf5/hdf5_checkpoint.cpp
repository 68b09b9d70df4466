#include "src/io/hdf5/hdf5_checkpoint.h"

#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include "dist/file_activity.h"
#include "kernels/check.h"
#include "src/io/hdf5/global_heap.h"
#include "src/io/hdf5/hdf5.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

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

bool overlap(const Box& a, const Box& b) {
  for (int d = 0; d < a.size.size(); ++d)
    if (a.begin[d] + a.size[d] <= b.begin[d] || b.begin[d] + b.size[d] <= a.begin[d]) return false;
  return true;
}

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
    const Hdf5Dataset& dataset = dataset_of(name);
    return {name, dataset.dtype(), dataset.shape()};
  }

  void read(const std::string& name, const Box& box, void* data) override {
    const Hdf5Dataset& tensor = dataset_of(name);
    if (!tensor.is_virtual()) return tensor.read(box, data);
    Index found = 0;
    for (const SliceMapping& mapping : tensor.mappings()) {
      if (!overlap(mapping.box, box)) continue;
      const Hdf5Dataset source = shard(mapping.file).open_dataset(name);
      if (source.dtype() != tensor.dtype())
        bad_input("{} of {} in {} has another type than the whole", name, dir_.string(), mapping.file);
      found += source.read_mapped(mapping, box, data);
    }
    if (found != box.elements())
      bad_input("{} of {} is not covered by its shards: use another checkpoint", name, dir_.string());
  }
  void read_unsharded(const std::string& name, const Box& box, void* data) override {
    dataset_of(name).read(box, data);
  }

  std::set<std::string> mapped_files() override {
    std::set<std::string> files;
    for (const std::string& name : index_.datasets())
      for (const SliceMapping& mapping : dataset_of(name).mappings()) files.insert(mapping.file);
    return files;
  }

 private:
  // Returns a dataset of the index; valid until the next call. A dataset is usually read in many
  // boxes, and opening it reads all its mappings.
  const Hdf5Dataset& dataset_of(const std::string& name) {
    if (!dataset_ || dataset_->name() != name) dataset_ = index_.open_dataset(name);
    return *dataset_;
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
  std::optional<Hdf5Dataset> dataset_;                  // of the index: the one that was used last
  std::list<std::pair<std::string, Hdf5File>> shards_;  // open shards, the latest used first
};

}  // namespace

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
