// The indexes of a checkpoint: the mappings of all shards to whole tensors. Uses no communicator.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/io/checkpoint_internal.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Attributes of the parameters whose names end with `suffix`: facts that shapes do not show.
struct TensorNote {
  std::string_view suffix;
  const char *dimensions, *meaning;
};
constexpr const char* rotation =
    "in layers whose position is rope, the first rope_fraction of each head is rotated, by halves: row i of the rotated "
    "ones with row i + half of them; where rope_pairs is interleaved, by neighbours: row 2i with row 2i + 1. Where there is "
    "a kv_lora_rank, the first qk_rope_head_dim of a query and the shared part of keys, k_rope, take the place of heads, and "
    "k.weight makes what is not rotated";
constexpr const char* gating = "where there are two halves, the FFN is gated: [gate, linear], act(gate x) * (linear x)";
constexpr TensorNote tensor_notes[] = {
    {".q.weight", "head, out, in", rotation},
    {".k.weight", "kv head, out, in", rotation},
    {".v.weight", "kv head, out, in", ""},
    {".k_rope.weight", "out, in", rotation},
    {"_down.weight", "out, in", "makes a latent, which q_latent_norm or kv_latent_norm normalises"},
    {".q.bias", "head, out", rotation},
    {".k.bias", "kv head, out", rotation},
    {".v.bias", "kv head, out", ""},
    {".attention.out.weight", "out, head, in", ""},
    {".router.weight", "expert, in", ""},
    {".router.noise.weight", "expert, in", ""},
    {".experts.up.weight", "expert, half, out, in", gating},
    {".experts.down.weight", "expert, out, in", ""},
    {".mlp.up.weight", "half, out, in", gating},
    {".mlp.up.bias", "half, out", gating},
    {".mlp.down.weight", "out, in", ""},
    {".shared.up.weight", "half, out, in", gating},
    {".shared.down.weight", "out, in", ""},
    {"embedding.weight", "token, out", ""},
    {"position.weight", "position, out", ""},
    {"segment.weight", "segment, out", ""},
    {"output_transform.weight", "out, in", ""},
    {"output.weight", "token, in", ""},
    {"output.bias", "token", ""},
    {".lora_a", "", "adapter A of LoRA: the weight of this name is its own values + lora_alpha / lora_rank * B A"},
    {".lora_b", "", "adapter B of LoRA"},
};

// Calls f(parameter, elements of the slice, range of the slice, box) for each mapping of a rank.
template <class F>
void for_mappings(const ShardContents& contents, int rank, F f) {
  for (const OwnedRange& range : shard_ranges(contents.flat, contents.layout, coord_of(contents.layout, rank))) {
    Index at = 0;  // offset in the slice
    for (const Box& box : global_boxes(*range.slice, range.local)) {
      f(static_cast<std::size_t>(range.slice->spec - contents.specs.data()), range.local.size(),
        Range{at, at + box.elements()}, box);
      at += box.elements();
    }
  }
}

// Adds the encoded mappings of a rank to those of each parameter.
void add_mappings(std::string_view encoded, const std::string& file, const std::vector<ParamSpec>& specs,
                  std::vector<std::vector<SliceMapping>>& mappings) {
  if (encoded.empty()) return;  // std::memcpy takes no nullptr
  std::vector<Index> values(encoded.size() / sizeof(Index));
  std::memcpy(values.data(), encoded.data(), encoded.size());
  for (auto at = values.begin(); at != values.end();) {
    const auto param = static_cast<std::size_t>(*at++);
    SliceMapping mapping{file, *at++, {}, {}};
    mapping.range.begin = *at++;
    mapping.range.end = *at++;
    for (int d = 0; d < specs[param].shape.size(); ++d) {
      mapping.box.begin.push_back(*at++);
      mapping.box.size.push_back(*at++);
    }
    mappings[param].push_back(std::move(mapping));
  }
}

// Writes the sharded tensors of the parameters `params`, of one kind.
void write_tensors(CheckpointWriter& file, const TensorKind& kind, const std::vector<ParamSpec>& specs, Range params,
                   const std::vector<std::vector<SliceMapping>>& mappings) {
  for (auto i = static_cast<std::size_t>(params.begin); i < static_cast<std::size_t>(params.end); ++i)
    if (kind.covers(specs[i])) file.write_sharded(kind.prefix + specs[i].name, specs[i].shape, mappings[i]);
}

// Returns the parameters `params`.
std::span<const ParamSpec> specs_of(const std::vector<ParamSpec>& specs, Range params) {
  return std::span(specs).subspan(static_cast<std::size_t>(params.begin), static_cast<std::size_t>(params.size()));
}

void write_notes(CheckpointWriter& file, std::span<const ParamSpec> specs) {
  for (const ParamSpec& spec : specs)
    for (const TensorNote& note : tensor_notes)
      if (spec.name.ends_with(note.suffix))
        for (const auto& [key, text] : {std::pair{"dimensions", note.dimensions}, {"meaning", note.meaning}})
          if (*text) file.set(params_prefix + spec.name, key, text);
}

// Returns the mappings of each parameter, in the order of the ranks.
std::vector<std::vector<SliceMapping>> decode_mappings(const CheckpointFormat& format,
                                                       const std::vector<ParamSpec>& specs,
                                                       std::span<const std::string> encoded) {
  std::vector<std::vector<SliceMapping>> mappings(specs.size());
  for (std::size_t rank = 0; rank < encoded.size(); ++rank)
    add_mappings(encoded[rank], format.shard_name(static_cast<int>(rank)), specs, mappings);
  return mappings;
}

}  // namespace

std::vector<Index> count_mappings(const ShardContents& contents, int rank) {
  std::vector<Index> counts(contents.specs.size());
  for_mappings(contents, rank, [&](std::size_t param, Index, Range, const Box&) { ++counts[param]; });
  for (std::size_t i = 0; i < counts.size(); ++i)
    counts[i] *=
        std::ranges::count_if(contents.kinds, [&](const auto& kind) { return kind.covers(contents.specs[i]); });
  return counts;
}

IndexPlan plan_indexes(std::span<const Index> counts, int ranks, Index per_index) {
  const Index total = std::accumulate(counts.begin(), counts.end(), Index{0});
  // Each file but the last has at least so many mappings, so there are at most ranks - 1 files.
  const Index least = std::max({Index{1}, per_index, ceil_div(total, std::max(1, ranks - 1))});
  IndexPlan plan{ranks, {}};
  Index first = 0, mappings = 0;
  for (Index i = 0; total > least && i < std::ssize(counts); ++i) {
    mappings += counts[static_cast<std::size_t>(i)];
    if (mappings < least) continue;
    plan.params.push_back({first, i + 1});
    first = i + 1;
    mappings = 0;
  }
  if (plan.params.empty() || mappings > 0) plan.params.push_back({first, first});
  plan.params.back().end = std::ssize(counts);
  return plan;
}

// A mapping is the parameter's index, the elements of its slice, the range of the slice, and the
// box: begin and size along each dimension of the parameter.
std::vector<std::string> encode_mappings(const ShardContents& contents, int rank, const IndexPlan& plan) {
  std::vector<std::vector<Index>> values(plan.params.size());
  for_mappings(contents, rank, [&](std::size_t param, Index elements, Range range, const Box& box) {
    const auto after = std::ranges::upper_bound(plan.params, static_cast<Index>(param), {}, &Range::begin);
    std::vector<Index>& to = values[static_cast<std::size_t>(after - plan.params.begin() - 1)];
    to.insert(to.end(), {static_cast<Index>(param), elements, range.begin, range.end});
    for (int d = 0; d < box.size.size(); ++d) to.insert(to.end(), {box.begin[d], box.size[d]});
  });
  std::vector<std::string> encoded;
  for (const std::vector<Index>& of_file : values)
    encoded.emplace_back(reinterpret_cast<const char*>(of_file.data()), of_file.size() * sizeof(Index));
  return encoded;
}

WrittenFile write_index(const CheckpointFormat& format, const fs::path& dir, const TrainState& state,
                        const std::vector<ParamSpec>& specs, const std::vector<TensorKind>& kinds,
                        const IndexPlan& plan, std::span<const std::string> encoded) {
  const fs::path path = dir / format.index_name();
  const std::unique_ptr<CheckpointWriter> file = format.create(path);
  const std::vector<std::vector<SliceMapping>> mappings = decode_mappings(format, specs, encoded);
  const Range all{0, std::ssize(specs)};
  write_state(*file, state);
  for (const TensorKind& kind : kinds) {
    if (!plan.linked()) write_tensors(*file, kind, specs, all, mappings);
    for (int number = 1; number <= plan.linked(); ++number)
      for (const ParamSpec& spec : specs_of(specs, plan.params_of(number)))
        if (kind.covers(spec)) file->link_sharded(kind.prefix + spec.name, format.linked_index_name(number));
    const std::string group = kind.prefix.substr(0, kind.prefix.size() - 1);
    file->make_group(group);
    file->set(group, "meaning", std::string(kind.meaning));
  }
  if (!plan.linked()) write_notes(*file, specs);
  return finish_file(*file, path);
}

WrittenFile write_linked_index(const CheckpointFormat& format, const fs::path& dir, const std::vector<ParamSpec>& specs,
                               const std::vector<TensorKind>& kinds, const IndexPlan& plan, int number,
                               std::span<const std::string> encoded) {
  const fs::path path = dir / format.linked_index_name(number);
  const std::unique_ptr<CheckpointWriter> file = format.create(path);
  const std::vector<std::vector<SliceMapping>> mappings = decode_mappings(format, specs, encoded);
  for (const TensorKind& kind : kinds) write_tensors(*file, kind, specs, plan.params_of(number), mappings);
  write_notes(*file, specs_of(specs, plan.params_of(number)));
  return finish_file(*file, path);
}

}  // namespace sy
