// The shards of a checkpoint: the values that each rank writes. Uses no communicator.
#include <algorithm>
#include <set>

#include "src/io/checkpoint_internal.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Returns true if a lower rank holds the same box: the next lower rank along an axis that
// splits the parameter.
bool lower_rank_holds(const ParamSlice& slice, const Layout& layout, const Coord& coord) {
  constexpr std::pair<Axis, int Coord::*> axes[] = {
      {Axis::tp, &Coord::tp}, {Axis::ep, &Coord::ep}, {Axis::etp, &Coord::etp}};
  const Split& split = slice.spec->split;
  for (const auto& [axis, index] : axes) {
    if (coord.*index == 0 || std::find(split.begin(), split.end(), axis) == split.end()) continue;
    Coord below = coord;
    --(below.*index);
    const Box box = owned_box(slice.spec->shape, split, layout, below);
    if (box.begin == slice.box.begin && box.size == slice.box.size) return true;
  }
  return false;
}

// Calls f(kind, range) for each range of a tensor that a rank writes, in order.
template <class F>
void for_ranges(const ShardContents& contents, int rank, F f) {
  const std::vector<OwnedRange> ranges = shard_ranges(contents.flat, contents.layout, coord_of(contents.layout, rank));
  for (const TensorKind& kind : contents.kinds)
    for (const OwnedRange& range : ranges)
      if (kind.covers(*range.slice->spec)) f(kind, range);
}

// Elements of host memory that are copied at once: a quarter of a common L2 cache.
constexpr Index cached_elements = Index{1} << 16;

// Visits the values that a rank writes. Calls begin(name, elements) for each range of a tensor,
// then chunk(values) for each chunk of it, in order.
// - size: number of values of a chunk
// - to: gets all values; nullptr if they are not kept
template <class Begin, class Chunk>
void for_shard(const ShardContents& contents, int rank, Index size, float* to, Begin begin, Chunk chunk) {
  std::vector<float> host;
  for_ranges(contents, rank, [&](const TensorKind& kind, const OwnedRange& range) {
    begin(kind.prefix + range.slice->spec->name, range.flat.size());
    for (Index done = 0; done < range.flat.size(); done += size) {
      const auto elements = static_cast<std::size_t>(std::min(size, range.flat.size() - done));
      if (!to) host.resize(elements);
      const std::span<float> values(to ? to : host.data(), elements);
      contents.read(kind, range, done, values);
      chunk(values);
      if (to) to += elements;
    }
  });
}

}  // namespace

// It is verified after hashing: if the file changes in between, verify() fails, or later the digest
// does.
WrittenFile finish_file(CheckpointWriter& file, const fs::path& path) {
  file.close();
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) fail("cannot read {}: {}", path.string(), error.message());
  WrittenFile written{static_cast<Index>(bytes), {}};
  try {
    written.sha256 = sha256_file(path);
  } catch (const InputError& e) {  // the file is not the user's, so this is a failure
    fail("{}", e.what());
  }
  file.verify();
  return written;
}

std::optional<std::size_t> TensorKind::state_index(Optimizer optimizer) const {
  const std::span<const StateTensor> all = update_rule(optimizer).state;
  const auto at = std::find_if(all.begin(), all.end(), [&](const StateTensor& t) { return t.name == state; });
  if (at == all.end()) return {};
  return static_cast<std::size_t>(at - all.begin());
}

std::vector<TensorKind> tensor_kinds(const std::vector<ParamSpec>& specs) {
  std::set<Optimizer> optimizers;
  for (const ParamSpec& spec : specs) optimizers.insert(spec.optimizer);
  std::vector<TensorKind> kinds = {{params_prefix, "", "weights"}};
  for (const Optimizer optimizer : optimizers)
    for (const StateTensor& state : update_rule(optimizer).state)
      if (std::none_of(kinds.begin(), kinds.end(), [&](const TensorKind& kind) { return kind.state == state.name; }))
        kinds.push_back({fmt::format("/optimizer/{}/", state.name), state.name, state.meaning});
  return kinds;
}

std::vector<OwnedRange> shard_ranges(const FlatLayout& flat, const Layout& layout, const Coord& coord) {
  std::vector<OwnedRange> ranges;
  for (const GroupLayout& group : flat.groups)
    for (const OwnedRange& range : owned_ranges(group))
      if (!lower_rank_holds(*range.slice, layout, coord)) ranges.push_back(range);
  return ranges;
}

ShardContents shard_contents(const ParamStore& store) {
  store.device().synchronize();
  const auto read = [&store](const TensorKind& kind, const OwnedRange& range, Index begin, std::span<float> values) {
    if (kind.state.empty()) return store.get_values(*range.slice, range.local.begin + begin, values);
    const std::size_t group = range.slice->group;
    const Index first = range.flat.begin - store.layout().groups[group].owned().begin;
    store.get_state(group, *kind.state_index(range.slice->spec->optimizer), first + begin, values);
  };
  return {store.specs(),  store.mesh_layout(),
          store.layout(), tensor_kinds(store.specs()),
          read,           store.device().on_host() ? cached_elements : chunk_elements};
}

WrittenFile write_shard(const CheckpointFormat& format, const fs::path& dir, const TrainState& state,
                        const ShardContents& contents, int rank) {
  const fs::path path = dir / format.shard_name(rank);
  const std::unique_ptr<CheckpointWriter> file = format.create(path);
  file->set("/", "step", state.step);
  file->set("/", "rank", static_cast<std::int64_t>(rank));
  file->set("/", "layout", contents.layout.str());
  ValueSum sum;
  for_shard(
      contents, rank, chunk_elements, nullptr,
      [&](const std::string& name, Index elements) { file->begin_slice(name, elements); },
      [&](std::span<const float> values) {
        file->append(values);
        if (contents.copied_sum) sum.add(values);
      });
  if (contents.copied_sum && sum != *contents.copied_sum)
    fail(
        "the copy for {} has changed in the memory of rank {} while it was written, and nothing was saved: the machine "
        "is at fault: test its memory, and go on from an older checkpoint (--run.resume=true) on another one",
        path.string(), rank);
  return finish_file(*file, path);
}

std::string first_not_finite(const ParamStore& store, int rank) {
  return copy_shard(shard_contents(store), rank, nullptr).not_finite;
}

Index shard_elements(const ShardContents& contents, int rank) {
  Index elements = 0;
  for_ranges(contents, rank, [&](const TensorKind&, const OwnedRange& range) { elements += range.flat.size(); });
  return elements;
}

ShardCopy copy_shard(const ShardContents& contents, int rank, float* to) {
  static_assert(chunk_elements % ValueSum::block == 0 && cached_elements % ValueSum::block == 0);
  std::string name;
  ShardCopy copy;
  for_shard(
      contents, rank, contents.copy_chunk_elements, to, [&](const std::string& tensor, Index) { name = tensor; },
      [&](std::span<const float> values) {
        if (!copy.sum.add(values) && copy.not_finite.empty()) copy.not_finite = name;
      });
  return copy;
}

ShardContents copied_contents(const ShardContents& contents, const float* from, const ValueSum& sum) {
  const auto read = [from](const TensorKind&, const OwnedRange&, Index, std::span<float> values) mutable {
    std::copy_n(from, values.size(), values.data());
    from += values.size();
  };
  ShardContents copied{contents.specs, contents.layout, contents.flat, contents.kinds, read};
  copied.copied_sum = sum;
  copied.mappings_per_index = contents.mappings_per_index;
  return copied;
}

}  // namespace sy
