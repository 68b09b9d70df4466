#include "src/params/store.h"

#include <algorithm>
#include <tuple>

#include "kernels/ops/elementwise.h"
#include "src/params/lora.h"
#include "src/params/values.h"

namespace sy {
namespace {

// Alignment of a parameter in elements: at least a cache line, for vector loads.
constexpr Index alignment = 64;

// Copies a tensor of f32 or bf16 to f32 values of the host.
void copy_widened(Device& device, ConstView from, std::span<float> values) {
  if (from.dtype() == DType::f32) return device.to_host(from, values.data());
  std::vector<std::uint16_t> rounded(values.size());
  device.to_host(from, rounded.data());
  std::transform(rounded.begin(), rounded.end(), values.begin(), float_of_bf16);
}

}  // namespace

void copy_rounded(Device& device, std::span<const float> values, View to) {
  if (to.dtype() == DType::f32) return device.to_device(values.data(), to);
  std::vector<std::uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), bf16_of_float);
  device.to_device(rounded.data(), to);
}

FlatLayout flat_layout(const std::vector<ParamSpec>& specs, const Layout& layout, const Coord& c) {
  FlatLayout out;
  using Key = std::tuple<Axes, Optimizer, bool>;
  const auto key_of = [](const ParamSpec& spec) { return Key(spec.summed(), spec.optimizer, spec.frozen); };
  std::map<Key, std::size_t> group_of;
  for (const ParamSpec& spec : specs) group_of[key_of(spec)] = 0;
  const DType state_dtype = specs.empty() ? DType::f32 : specs.front().state_dtype;
  for (auto& [key, group] : group_of) {
    group = out.groups.size();
    const auto& [axes, optimizer, frozen] = key;
    const GroupRank own = group_rank(layout, c, axes);
    out.groups.push_back({axes, optimizer, state_dtype, frozen, {}, 0, own.size, own.index});
  }
  Index discarded = 0;  // elements of the last frozen vector and of those that it is fused with
  for (const ParamSpec& spec : specs) {
    const std::size_t group = group_of[key_of(spec)];
    GroupLayout& g = out.groups[group];
    if (!spec.fused_with_previous) g.elements = round_up(g.elements, alignment);
    SY_ASSERT(!spec.fused_with_previous || key_of(spec) == key_of(*(&spec - 1)),
              "{} is in another group than the previous", spec.name);
    SY_ASSERT(spec.state_dtype == state_dtype, "{}: another type of state", spec.name);
    g.slices.push_back({&spec, owned_box(spec.shape, spec.split, layout, c), g.elements, group});
    g.elements += g.slices.back().box.elements();
    if (!spec.frozen || spec.is_weight) continue;
    const Index before = spec.fused_with_previous ? discarded : 0;
    discarded = before + g.slices.back().box.elements();
    out.discarded_elements = std::max(out.discarded_elements, discarded);
  }
  SY_ASSERT(std::ranges::is_sorted(specs, {}, &ParamSpec::bucket),
            "the parameters are not in the order of their buckets");
  const Index buckets = specs.empty() ? 0 : specs.back().bucket + 1;
  for (GroupLayout& g : out.groups) {
    g.elements = round_up(g.elements, g.shards * alignment);
    const auto begin_of = [&](Index bucket) {
      const auto first =
          std::ranges::lower_bound(g.slices, bucket, {}, [](const ParamSlice& slice) { return slice.spec->bucket; });
      return first == g.slices.end() ? g.elements : first->offset;
    };
    for (Index bucket = 0; bucket < buckets; ++bucket) g.buckets.push_back({begin_of(bucket), begin_of(bucket + 1)});
  }
  return out;
}

bool is_kv_replicated(const ParamSpec& spec, int tp) {
  for (int d = 0; d < spec.shape.size(); ++d)
    if (spec.split[d] == Axis::tp && num_replicas(spec.shape[d], tp) > 1) return true;
  return false;
}

void join_replicas(Mesh& mesh, const std::vector<ParamSpec>& specs, Index kv_heads) {
  join_kv_replicas(mesh, kv_heads);
  if (std::ranges::any_of(specs, [](const ParamSpec& spec) { return spec.summed() == (Axis::edp | Axis::etp); }))
    join_expert_replicas(mesh);
}

std::vector<RootedBuffer> GroupLayout::by_owner(View buffer, Range flat) const {
  const Index shard_elements = elements / shards;
  std::vector<RootedBuffer> segments;
  while (flat.size() > 0) {
    const int owner = static_cast<int>(flat.begin / shard_elements);
    const Index end = std::min(flat.end, (owner + 1) * shard_elements);
    segments.push_back({buffer.rows(flat.begin, end - flat.begin), owner});
    flat.begin = end;
  }
  return segments;
}

Index FlatLayout::state_bytes() const {
  return sum([](const GroupLayout& g) {
    return g.trained_elements() * std::ssize(update_rule(g.optimizer).state) * size_of(g.state_dtype);
  });
}

std::vector<OwnedRange> owned_ranges(const GroupLayout& group) {
  std::vector<OwnedRange> ranges;
  const Range owned = group.owned();
  for (const ParamSlice& p : group.slices) {
    const Range flat{std::max(owned.begin, p.range().begin), std::min(owned.end, p.range().end)};
    if (flat.size() > 0) ranges.push_back({&p, {flat.begin - p.offset, flat.end - p.offset}, flat});
  }
  return ranges;
}

ParamStore::ParamStore(Device& device, std::vector<ParamSpec> specs, const Layout& layout, const Coord& coord,
                       bool training, DType dtype, WeightPacking packing)
    : device_(device),
      specs_(std::move(specs)),
      mesh_layout_(layout),
      dtype_(dtype),
      training_(training),
      layout_(flat_layout(specs_, layout, coord)),
      packed_weights_(device, std::move(packing), [this] { finish_all_gather(); }) {
  for (const GroupLayout& group : layout_.groups) {
    for (const ParamSlice& p : group.slices) by_name_[p.spec->name] = &p;
    Buffers& b = buffers_.emplace_back();
    b.weights = device.tensor({group.elements}, dtype);
    if (!training || group.frozen) continue;
    b.grads = device.tensor({group.elements});
    for (std::size_t i = 0; i < update_rule(group.optimizer).state.size(); ++i)
      b.state.push_back(device.tensor({group.owned().size()}, group.state_dtype));
    if (dtype != DType::f32) b.master = device.tensor({group.owned().size()});
  }
  if (training && layout_.discarded_elements > 0) discarded_ = device.tensor({layout_.discarded_elements});
}

void ParamStore::fill(ValueSource& source, const std::function<bool(const ParamSpec&)>& is_read) {
  for (const GroupLayout& group : layout_.groups)
    for (const ParamSlice& p : group.slices) {
      if (is_read && !is_read(*p.spec)) continue;
      read_values(source, p, {0, p.box.elements()},
                  [&](Index first, std::span<const float> values) { set_values(p, first, values); });
    }
}

void gather_weights(const Mesh& mesh, ParamStore& store) {
  store.finish_all_gather();
  store.packed_weights().invalidate();
  for (std::size_t g = 0; g < store.layout().groups.size(); ++g)
    store.layout().groups[g].all_gather(mesh, store.buffers(g).weights);
}

void ParamStore::initialize(std::uint64_t seed) {
  InitialValues values(seed);
  fill(values);
}

void ParamStore::set_values(const ParamSlice& slice, Index begin, std::span<const float> values) {
  finish_all_gather();
  packed_weights_.invalidate();
  const Buffers& b = buffers(slice.group);
  const Range flat{slice.offset + begin, slice.offset + begin + static_cast<Index>(values.size())};
  const View weights = b.weights.view().rows(flat.begin, flat.size());
  copy_rounded(device_, values, weights);
  if (!b.master.view()) return;
  const Range owned = layout_.groups[slice.group].owned();
  const Range overlap{std::max(flat.begin, owned.begin), std::min(flat.end, owned.end)};
  if (overlap.size() > 0)
    device_.to_device(values.data() + (overlap.begin - flat.begin),
                      b.master.view().rows(overlap.begin - owned.begin, overlap.size()));
}

void ParamStore::get_values(const ParamSlice& slice, Index begin, std::span<float> values) const {
  const Buffers& b = buffers(slice.group);
  const Index at = slice.offset + begin, n = static_cast<Index>(values.size());
  const Range owned = layout_.groups[slice.group].owned();
  SY_ASSERT((dtype_ == DType::f32 && !all_gather_in_flight()) || (at >= owned.begin && at + n <= owned.end),
            "{}: values that another rank owns", slice.spec->name);
  if (dtype_ == DType::f32) return device_.to_host(b.weights.view().rows(at, n), values.data());
  if (b.master.view()) return device_.to_host(b.master.view().rows(at - owned.begin, n), values.data());
  copy_widened(device_, b.weights.view().rows(at, n), values);
}

void ParamStore::set_state(std::size_t group, std::size_t state, Index begin, std::span<const float> values) {
  copy_rounded(device_, values, buffers(group).state[state].view().rows(begin, static_cast<Index>(values.size())));
}

void ParamStore::get_state(std::size_t group, std::size_t state, Index begin, std::span<float> values) const {
  const View from = buffers(group).state[state].view().rows(begin, static_cast<Index>(values.size()));
  copy_widened(device_, from, values);
}

Param ParamStore::param_of(const ParamSlice& first, const Shape& shape) const {
  const Buffers& b = buffers(first.group);
  const auto slice = [&](View flat, Index offset) {
    return flat ? flat.rows(offset, shape.elements()).reshape(shape) : View{};
  };
  const bool discarded = first.spec->frozen && !first.spec->is_weight;
  return {slice(b.weights.view(), first.offset),
          discarded ? slice(discarded_.view(), 0) : slice(b.grads.view(), first.offset)};
}

Param ParamStore::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? Param{} : param_of(*it->second, it->second->box.size);
}

Param ParamStore::get(const std::string& name) const {
  const ParamSlice& slice = slice_of(name);
  return param_of(slice, slice.box.size);
}

const ParamSlice& ParamStore::slice_of(const std::string& name) const {
  const auto it = by_name_.find(name);
  SY_ASSERT(it != by_name_.end(), "no parameter {}", name);
  return *it->second;
}

Param ParamStore::get_fused(const std::string& first, int count) const {
  const ParamSlice* p = &slice_of(first);
  const Index row = p->box.size[p->box.size.size() - 1];
  Index elements = 0;
  for (int i = 0; i < count; ++i) {
    SY_ASSERT(i == 0 || p[i].spec->fused_with_previous, "{} is not fused with {}", p[i].spec->name, first);
    elements += p[i].box.elements();
  }
  return param_of(*p, {elements / row, row});
}

std::optional<Adapter> ParamStore::adapter_of(const Param& param, const Shape& shape) const {
  const bool stack = shape.size() == 3;
  const Index E = stack ? shape[0] : 1, Q = shape[shape.size() - 1], N = shape.elements() / std::max<Index>(E * Q, 1);
  const auto found = std::ranges::find_if(buffers_, [&](const Buffers& b) {
    const View all = b.weights;
    return param.weight.bytes() >= all.bytes() && param.weight.bytes() < all.bytes() + all.size_bytes();
  });
  if (found == buffers_.end()) return {};
  const View weights = found->weights;
  const Index begin = (param.weight.bytes() - weights.bytes()) / size_of(dtype_), end = begin + shape.elements();
  Adapter adapter;
  const ParamSlice *first_a = nullptr, *first_b = nullptr;
  int count = 0;
  for (const ParamSlice& p : layout_.groups[static_cast<std::size_t>(found - buffers_.begin())].slices) {
    if (p.offset < begin || p.offset >= end || !p.spec->matrix) continue;
    const auto a = by_name_.find(lora_name(p.spec->name, LoraMatrix::a));
    if (a == by_name_.end()) continue;
    const ParamSlice* b = by_name_.at(lora_name(p.spec->name, LoraMatrix::b));
    if (count++ == 0) {
      first_a = a->second;
      first_b = b;
      adapter.rank = b->spec->shape[b->spec->shape.size() - 1];
      adapter.scale = static_cast<float>(b->spec->adapter->scale);
    }
    // The maps of a slice, without experts, have equally many of its rows.
    const Index rows = p.box.elements() / (E * Q), first_row = (p.offset - begin) / Q,
                maps = a->second->box.elements() / (E * Q * adapter.rank);
    for (Index map = 0; map < maps; ++map)
      adapter.blocks.push_back({first_row + rows / maps * map, first_row + rows / maps * (map + 1)});
  }
  if (count == 0) return {};
  Index rows = 0;
  for (const Range& block : adapter.blocks) rows += block.size();
  SY_ASSERT(rows <= N && (!stack || rows == N), "adapters of {} rows of {}", rows, N);
  const Index ranks = std::ssize(adapter.blocks) * adapter.rank;
  adapter.a = param_of(*first_a, stack ? Shape{E, ranks, Q} : Shape{ranks, Q});
  adapter.b = param_of(*first_b, stack ? Shape{E, rows, adapter.rank} : Shape{rows, adapter.rank});
  return adapter;
}

MatrixParam ParamStore::register_matrix(const Param& param, const Shape& shape) {
  std::optional<Adapter> adapter = adapter_of(param, shape);
  const auto [weight, grad] = param.reshape(shape);
  MatrixParam m{adapter ? Weight(weight) : packed_weights_.add(weight), grad};
  m.adapter = std::move(adapter);
  if (!m.grad || m.grad.elements() == 0) return m;
  // Layers that share a parameter share the gradient.
  Gradient& gradient = matrices_.try_emplace(m.grad.bytes(), Gradient{m.grad}).first->second;
  SY_ASSERT(gradient.values.elements() == m.grad.elements(), "two matrices whose gradients overlap");
  m.gradient_is_zero = &gradient.is_zero;
  return m;
}

void ParamStore::clear_gradients() {
  for (const Buffers& b : buffers_) {
    const View all = b.grads;
    if (!all) continue;  // frozen
    Index done = 0;      // elements
    for (auto next = matrices_.lower_bound(all.bytes()); next != matrices_.end(); ++next) {
      auto& [begin, gradient] = *next;
      if (begin >= all.bytes() + all.size_bytes()) break;
      const Index first = (begin - all.bytes()) / size_of(all.dtype());
      run(device_, ops::Fill{.x = all.rows(done, first - done), .value = 0});
      gradient.is_zero = true;
      done = first + gradient.values.elements();
    }
    run(device_, ops::Fill{.x = all.rows(done, all.elements() - done), .value = 0});
  }
}

void ParamStore::finish_gradients() {
  for (const Buffers& b : buffers_)
    if (const View all = b.grads) finish_gradients(all);
}

void ParamStore::finish_gradients(View range) {
  for (auto next = matrices_.lower_bound(range.bytes()); next != matrices_.end(); ++next) {
    if (next->first >= range.bytes() + range.size_bytes()) break;
    Gradient& gradient = next->second;
    if (std::exchange(gradient.is_zero, false)) run(device_, ops::Fill{.x = gradient.values, .value = 0});
  }
}

Index ParamStore::unwritten_gradients() const {
  return std::count_if(matrices_.begin(), matrices_.end(), [](const auto& entry) { return entry.second.is_zero; });
}

Index ParamStore::allocated_bytes() const {
  Index n = packed_weights_.bytes() + discarded_.size_bytes();
  for (const Buffers& b : buffers_) {
    for (const Tensor* t : {&b.weights, &b.grads, &b.master}) n += t->size_bytes();
    for (const Tensor& t : b.state) n += t.size_bytes();
  }
  return n;
}

}  // namespace sy
