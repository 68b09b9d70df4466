// Whole tensors of a checkpoint: reading, statistics and comparison, all in bounded memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include "src/io/checkpoint_formats.h"
#include "src/io/checkpoint_internal.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Calls f(range) for consecutive ranges of [0, n).
template <class F>
void for_chunks(Index n, F f) {
  for (Index begin = 0; begin < n; begin += chunk_elements) f(Range{begin, std::min(n, begin + chunk_elements)});
}

TensorDifference compare(const CheckpointTensors& a, const CheckpointTensors& b, const std::string& name) {
  TensorDifference d{name, std::numeric_limits<double>::quiet_NaN(), false, ""};
  const TensorInfo *in_a = a.find(name), *in_b = b.find(name);
  if (!in_a || !in_b) {
    d.note = in_a ? "only in the first" : "only in the second";
  } else if (in_a->shape != in_b->shape) {
    d.note = in_a->shape.str() + " against " + in_b->shape.str();
  } else if (in_a->dtype != in_b->dtype) {
    d.note = fmt::format("{} against {}", info(in_a->dtype).name, info(in_b->dtype).name);
  }
  if (!d.note.empty()) return d;

  d.bitwise_equal = true;
  d.max_abs = 0;
  std::vector<std::byte> bytes_a, bytes_b;
  for_chunks(in_a->shape.elements(), [&](Range range) {
    bytes_a.resize(static_cast<std::size_t>(range.size() * size_of(in_a->dtype)));
    bytes_b.resize(bytes_a.size());
    a.read(name, range, bytes_a.data());
    b.read(name, range, bytes_b.data());
    if (bytes_a == bytes_b) return;
    d.bitwise_equal = false;
    const std::vector<double> x = a.values(name, range), y = b.values(name, range);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      const double difference = std::abs(x[i] - y[i]);
      if (!(difference <= d.max_abs)) d.max_abs = std::isnan(d.max_abs) ? d.max_abs : difference;
    }
  });
  return d;
}

}  // namespace

std::vector<std::string> unlisted_files(const fs::path& step_dir) try {
  const OpenCheckpoint checkpoint = open_checkpoint(step_dir);
  std::set<std::string> foreign = checkpoint.reader->mapped_files();
  for (const Manifest::File& file : checkpoint.manifest.files) foreign.erase(file.name);
  std::vector<std::string> problems;
  for (const std::string& file : foreign)
    problems.push_back(fmt::format("{} needs {}, which is not in its manifest: use another checkpoint",
                                   (step_dir / format_of(checkpoint.manifest).index_name()).string(), file));
  return problems;
} catch (const InputError& e) {
  return {e.what()};
}

CheckpointTensors::CheckpointTensors(const CheckpointFolder& folder) : reader_(open_checkpoint(folder).reader) {
  for (const std::string& name : reader_->tensors()) {
    by_name_[name] = list_.size();
    list_.push_back(reader_->tensor(name));
  }
}

const TensorInfo* CheckpointTensors::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &list_[it->second];
}

void CheckpointTensors::read(const std::string& name, Range range, void* data) const {
  const TensorInfo tensor = reader_->tensor(name);
  auto* out = static_cast<std::byte*>(data);
  for (const Box& box : boxes_of_range(tensor.shape, range)) {
    reader_->read(name, box, out);
    out += box.elements() * size_of(tensor.dtype);
  }
}

std::vector<double> CheckpointTensors::values(const std::string& name, Range range) const {
  const DType dtype = reader_->tensor(name).dtype;
  std::vector<double> values(static_cast<std::size_t>(range.size()));
  // Returns false if the tensor has another type.
  const auto read_as = [&](auto zero) {
    using T = decltype(zero);
    if (dtype != DTypeOf<T>::value) return false;
    std::vector<T> typed(values.size());
    read(name, range, typed.data());
    std::copy(typed.begin(), typed.end(), values.begin());
    return true;
  };
  const bool is_known = read_as(float{}) || read_as(double{}) || read_as(std::int32_t{}) || read_as(std::int64_t{});
  SY_ASSERT(is_known, "type {}", info(dtype).name);
  return values;
}

std::string first_not_finite(const CheckpointTensors& tensors) {
  for (const TensorInfo& tensor : tensors.list()) {
    bool finite = true;
    for_chunks(tensor.name.starts_with("/experts/") ? 0 : tensor.shape.elements(), [&](Range range) {
      if (!finite) return;
      for (double x : tensors.values(tensor.name, range)) finite &= std::isfinite(x);
    });
    if (!finite) return tensor.name;
  }
  return {};
}

TensorStatistics statistics(const CheckpointTensors& tensors, const std::string& name) {
  TensorStatistics s;
  const TensorInfo* tensor = tensors.find(name);
  SY_ASSERT(tensor, "no tensor {}", name);
  double sum = 0, squares = 0;
  Index count = 0;
  for_chunks(tensor->shape.elements(), [&](Range range) {
    for (double x : tensors.values(name, range)) {
      if (std::isnan(x)) {
        ++s.nans;
        continue;
      }
      s.min = count ? std::min(s.min, x) : x;
      s.max = count ? std::max(s.max, x) : x;
      sum += x;
      squares += x * x;
      ++count;
    }
  });
  if (count) {
    s.mean = sum / static_cast<double>(count);
    s.rms = std::sqrt(squares / static_cast<double>(count));
  }
  return s;
}

std::vector<TensorDifference> diff_checkpoints(const fs::path& a, const fs::path& b) {
  const CheckpointTensors first(a), second(b);
  std::vector<TensorDifference> differences;
  for (const TensorInfo& tensor : first.list()) differences.push_back(compare(first, second, tensor.name));
  for (const TensorInfo& tensor : second.list())
    if (!first.find(tensor.name)) differences.push_back(compare(first, second, tensor.name));
  return differences;
}

}  // namespace sy
