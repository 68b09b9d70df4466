#include "src/params/store.h"

#include <algorithm>

#include "kernels/ops/elementwise.h"
#include "src/params/values.h"

namespace sy {
namespace {

// Alignment of a parameter in elements: at least a cache line, for vector loads.
constexpr Index alignment = 64;

// Copies f32 values of the host to a tensor of f32 or bf16.
void copy_rounded(Device& device, std::span<const float> values, View to) {
  if (to.dtype() == DType::f32) return device.to_device(values.data(), to);
  std::vector<std::uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), bf16_of_float);
  device.to_device(rounded.data(), to);
}

}  // namespace

FlatLayout flat_layout(const std::vector<ParamSpec>& specs, const Layout& layout, const Coord& c) {
  FlatLayout out;
  using Key = std::pair<Axes, Optimizer>;
  const auto key_of = [](const ParamSpec& spec) { return Key(spec.summed(), spec.optimizer); };
  std::map<Key, std::size_t> group_of;
  for (const ParamSpec& spec : specs) group_of[key_of(spec)] = 0;
  const DType state_dtype = specs.empty() ? DType::f32 : specs.front().state_dtype;
  for (auto& [key, group] : group_of) {
    group = out.groups.size();
    const auto& [axes, optimizer] = key;
    const GroupRank own = group_rank(layout, c, axes);
    out.groups.push_back({axes, optimizer, state_dtype, {}, 0, own.size, own.index});
  }
  for (const ParamSpec& spec : specs) {
    const std::size_t group = group_of[key_of(spec)];
    GroupLayout& g = out.groups[group];
    if (!spec.fused_with_previous) g.elements = round_up(g.elements, alignment);
    SY_ASSERT(!spec.fused_with_previous || key_of(spec) == key_of(*(&spec - 1)),
              "{} is in another group than the previous", spec.name);
    SY_ASSERT(spec.state_dtype == state_dtype, "{}: another type of state", spec.name);
    g.slices.push_back({&spec, owned_box(spec.shape, spec.split, layout, c), g.elements, group});
    g.elements += g.slices.back().box.elements();
  }
  SY_ASSERT(std::ranges::is_sorted(specs, {}, &ParamSpec::bucket),
            "the parameters are not in the order of their buckets");
  const Index buckets = specs.empty() ? 0 : specs.back().bucket + 1;
  for (GroupLayout& g : out.groups) {
    g.elements = round_up(g.elements, g.shards * alignment);
    g.buckets.assign(static_cast<std::size_t>(buckets), {g.elements, g.elements});
    for (auto p = g.slices.rbegin(); p != g.slices.rend(); ++p)
      g.buckets[static_cast<std::size_t>(p->spec->bucket)].begin = p->offset;
    Index end = g.elements;
    for (std::size_t bucket = g.buckets.size(); bucket-- > 0;) {
      g.buckets[bucket] = {std::min(g.buckets[bucket].begin, end), end};
      end = g.buckets[bucket].begin;
    }
    SY_ASSERT(end == 0, "the first parameter lies at {}", end);
  }
  return out;
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

Index FlatLayout::elements() const {
  Index n = 0;
  for (const GroupLayout& g : groups) n += g.elements;
  return n;
}

Index FlatLayout::owned_elements() const {
  Index n = 0;
  for (const GroupLayout& g : groups) n += g.owned().size();
  return n;
}

Index FlatLayout::state_bytes() const {
  Index n = 0;
  for (const GroupLayout& g : groups)
    n += g.owned().size() * std::ssize(update_rule(g.optimizer).state) * size_of(g.state_dtype);
  return n;
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
    if (!training) continue;
    b.grads = device.tensor({group.elements});
    for (std::size_t i = 0; i < update_rule(group.optimizer).state.size(); ++i)
      b.state.push_back(device.tensor({group.owned().size()}, group.state_dtype));
    if (dtype != DType::f32) b.master = device.tensor({group.owned().size()});
  }
}

void ParamStore::fill(ValueSource& source) {
  for (const GroupLayout& group : layout_.groups)
    for (const ParamSlice& p : group.slices)
      read_values(source, p, {0, p.box.elements()},
                  [&](Index first, std::span<const float> values) { set_values(p, first, values); });
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
  device_.to_host(b.master.view().rows(at - owned.begin, n), values.data());
}

void ParamStore::set_state(std::size_t group, std::size_t state, Index begin, std::span<const float> values) {
  copy_rounded(device_, values, buffers(group).state[state].view().rows(begin, static_cast<Index>(values.size())));
}

void ParamStore::get_state(std::size_t group, std::size_t state, Index begin, std::span<float> values) const {
  const View from = buffers(group).state[state].view().rows(begin, static_cast<Index>(values.size()));
  if (from.dtype() == DType::f32) return device_.to_host(from, values.data());
  std::vector<std::uint16_t> rounded(values.size());
  device_.to_host(from, rounded.data());
  std::transform(rounded.begin(), rounded.end(), values.begin(), float_of_bf16);
}

Param ParamStore::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return {};
  const ParamSlice& p = *it->second;
  const Buffers& b = buffers(p.group);
  const auto slice = [&](View flat) {
    return flat ? flat.rows(p.offset, p.box.elements()).reshape(p.box.size) : View{};
  };
  return {slice(b.weights.view()), slice(b.grads.view())};
}

Param ParamStore::get(const std::string& name) const {
  const Param p = find(name);
  SY_ASSERT(p, "no parameter {}", name);
  return p;
}

const Box& ParamStore::box(const std::string& name) const {
  const auto it = by_name_.find(name);
  SY_ASSERT(it != by_name_.end(), "no parameter {}", name);
  return it->second->box;
}

const ParamSpec& ParamStore::spec(const std::string& name) const {
  const auto it = by_name_.find(name);
  SY_ASSERT(it != by_name_.end(), "no parameter {}", name);
  return *it->second->spec;
}

Param ParamStore::get_fused(const std::string& first, int count) const {
  const auto it = by_name_.find(first);
  SY_ASSERT(it != by_name_.end(), "no parameter {}", first);
  const ParamSlice* p = it->second;
  const Index row = p->box.size[p->box.size.size() - 1];
  Index elements = 0;
  for (int i = 0; i < count; ++i) {
    SY_ASSERT(i == 0 || p[i].spec->fused_with_previous, "{} is not fused with {}", p[i].spec->name, first);
    elements += p[i].box.elements();
  }
  const Buffers& b = buffers(p->group);
  const auto fused = [&](View flat) {
    return flat ? flat.rows(p->offset, elements).reshape({elements / row, row}) : View{};
  };
  return {fused(b.weights.view()), fused(b.grads.view())};
}

MatrixParam ParamStore::register_matrix(const Param& param, const Shape& shape) {
  MatrixParam m{packed_weights_.add(param.weight.reshape(shape)), param.grad ? param.grad.reshape(shape) : View{}};
  if (!m.grad || m.grad.elements() == 0 || !device_.on_host()) return m;
  // Layers that share a parameter share the gradient.
  Gradient& gradient = matrices_.try_emplace(m.grad.bytes(), Gradient{m.grad}).first->second;
  SY_ASSERT(gradient.values.elements() == m.grad.elements(), "two matrices whose gradients overlap");
  m.gradient_is_zero = &gradient.is_zero;
  return m;
}

void ParamStore::clear_gradients() {
  for (const Buffers& b : buffers_) {
    const View all = b.grads;
    Index done = 0;  // elements
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
  for (auto& [begin, gradient] : matrices_)
    if (std::exchange(gradient.is_zero, false)) run(device_, ops::Fill{.x = gradient.values, .value = 0});
}

Index ParamStore::allocated_bytes() const {
  Index n = packed_weights_.bytes();
  for (const Buffers& b : buffers_) {
    for (const Tensor* t : {&b.weights, &b.grads, &b.master}) n += t->size_bytes();
    for (const Tensor& t : b.state) n += t.size_bytes();
  }
  return n;
}

}  // namespace sy
