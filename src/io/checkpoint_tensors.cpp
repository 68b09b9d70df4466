// Whole tensors of a checkpoint: reading, statistics, comparison. All in bounded memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "src/io/checkpoint.h"
#include "src/io/checkpoint_parts.h"
#include "src/io/hdf5.h"

namespace sy {

namespace fs = std::filesystem;

struct CheckpointTensors::Impl {
  Hdf5File file;
  std::vector<TensorInfo> list;
  std::map<std::string, std::size_t> by_name;
};

CheckpointTensors::CheckpointTensors(const fs::path& step_dir) {
  impl_ = std::make_unique<Impl>(open_index(step_dir));
  for (const std::string& name : impl_->file.datasets()) {
    const Hdf5Dataset dataset = impl_->file.open_dataset(name);
    impl_->by_name[name] = impl_->list.size();
    impl_->list.push_back({name, dataset.dtype(), dataset.shape()});
  }
}

CheckpointTensors::~CheckpointTensors() = default;

const std::vector<TensorInfo>& CheckpointTensors::list() const {
  return impl_->list;
}

const TensorInfo* CheckpointTensors::find(const std::string& name) const {
  const auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : &impl_->list[it->second];
}

void CheckpointTensors::read(const std::string& name, Range run, void* data) const {
  impl_->file.open_dataset(name).read(run, data);
}

std::vector<double> CheckpointTensors::values(const std::string& name, Range run) const {
  const Hdf5Dataset dataset = impl_->file.open_dataset(name);
  std::vector<double> values(static_cast<std::size_t>(run.size()));
  const auto convert = [&](auto zero) {
    std::vector<decltype(zero)> own(values.size());
    dataset.read(run, own.data());
    std::copy(own.begin(), own.end(), values.begin());
  };
  switch (dataset.dtype()) {
    case DType::f32:
      convert(float{});
      break;
    case DType::f64:
      convert(double{});
      break;
    case DType::i32:
      convert(std::int32_t{});
      break;
    case DType::i64:
      convert(std::int64_t{});
      break;
    default:
      SY_ASSERT(false, "type {}", info(dataset.dtype()).name);
  }
  return values;
}

namespace {

// Calls f(run) for pieces of [0, n).
template <class F>
void for_pieces(Index n, F f) {
  for (Index begin = 0; begin < n; begin += piece_elements) f(Range{begin, std::min(n, begin + piece_elements)});
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
  for_pieces(in_a->shape.elements(), [&](Range run) {
    bytes_a.resize(static_cast<std::size_t>(run.size() * size_of(in_a->dtype)));
    bytes_b.resize(bytes_a.size());
    a.read(name, run, bytes_a.data());
    b.read(name, run, bytes_b.data());
    if (bytes_a == bytes_b) return;
    d.bitwise_equal = false;
    const std::vector<double> x = a.values(name, run), y = b.values(name, run);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      const double difference = std::abs(x[i] - y[i]);
      if (!(difference <= d.max_abs)) d.max_abs = std::isnan(d.max_abs) ? d.max_abs : difference;
    }
  });
  return d;
}

}  // namespace

TensorStatistics statistics(const CheckpointTensors& tensors, const std::string& name) {
  TensorStatistics s;
  const TensorInfo* tensor = tensors.find(name);
  SY_ASSERT(tensor, "no tensor {}", name);
  double sum = 0, squares = 0;
  Index count = 0;
  for_pieces(tensor->shape.elements(), [&](Range run) {
    for (double x : tensors.values(name, run)) {
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
