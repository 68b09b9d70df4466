// On every layout, greedy texts are those of one rank, with more prompts than ranks and with fewer.
// In a prefix language model, the logits are, too.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/generate/beam_search.h"
#include "src/generate/generate.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

using test::tested_device;
using test::world;

// Heads and experts that two and four ranks can share; a second model is for three ranks.
constexpr const char* on_eight = R"(
[model]
layers = 3
d_model = 24
heads = 4
kv_heads = 2
seq_len = 20
d_ff = 40
pattern = local*2, global
[moe]
experts = 8
first_dense = 1
d_ff = 20
shared_experts = 1
aux_scope = global_batch
[attention.local]
window = 6
)";
constexpr const char* on_six = R"(
[model]
layers = 2
d_model = 24
heads = 6
seq_len = 21
d_ff = 42
qk_norm = true
[moe]
experts = 6
d_ff = 18
)";
constexpr const char* dense = R"(
[model]
layers = 2
d_model = 24
heads = 12
seq_len = 8
d_ff = 48
window = 5
)";
constexpr const char* scores = R"(
[model]
layers = 3
d_model = 24
heads = 8
kv_heads = 4
head_dim = 6
seq_len = 8
d_ff = 48
pattern = a, b, c
t5_buckets = 6
t5_max_distance = 12
attention_sinks = true
[attention.a]
position = t5
window = 5
[attention.b]
position = alibi
attention = strided
attention_stride = 3
[attention.c]
attention = longformer
window = 4
)";

constexpr const char* latent = R"(
[model]
layers = 3
d_model = 24
heads = 4
head_dim = 6
kv_lora_rank = 12
q_lora_rank = 8
qk_rope_head_dim = 4
v_head_dim = 5
rope_pairs = interleaved
seq_len = 12
d_ff = 48
pattern = local*2, global
[moe]
experts = 8
first_dense = 1
d_ff = 20
shared_experts = 1
score = sigmoid
[attention.local]
window = 6
)";

// Some texts exceed the original length while others stay short. Their keys are computed again
// while other ranks have nothing to compute.
constexpr const char* by_length = R"(
[model]
layers = 3
d_model = 24
heads = 4
kv_heads = 2
seq_len = 64
d_ff = 48
pattern = a, b, c
rope_factor = 4
rope_original_length = 8
rope_short_factors = 1, 1, 2
rope_long_factors = 3, 5, 4
[moe]
experts = 4
d_ff = 24
[attention.a]
rope_scaling = longrope
window = 6
[attention.b]
rope_scaling = dynamic
[attention.c]
rope_scaling = longrope
rope_original_length = 12
)";

struct RanksAndLayouts {
  const char* model;
  int ranks, tp, ep, etp;
  std::string str() const { return fmt::format("{} ranks, tp {} ep {} etp {}", ranks, tp, ep, etp); }
};
const RanksAndLayouts generating_layouts[] = {
    {on_eight, 1, 1, 1, 1}, {on_eight, 2, 1, 1, 1},  {on_eight, 2, 1, 2, 1},  {on_eight, 2, 2, 1, 1},
    {on_eight, 2, 2, 2, 1}, {on_eight, 2, 1, 1, 2},  {on_six, 3, 1, 3, 1},    {on_six, 3, 3, 1, 1},
    {on_six, 3, 3, 3, 1},   {on_six, 3, 1, 1, 3},    {on_eight, 4, 1, 4, 1},  {on_eight, 4, 2, 2, 1},
    {on_eight, 4, 4, 4, 1}, {on_eight, 4, 4, 2, 2},  {on_six, 6, 2, 3, 1},    {on_six, 6, 6, 3, 2},
    {on_eight, 8, 2, 8, 1}, {on_eight, 8, 1, 8, 1},  {dense, 1, 1, 1, 1},     {dense, 2, 2, 1, 1},
    {dense, 3, 3, 1, 1},    {dense, 4, 4, 1, 1},     {dense, 4, 2, 1, 1},     {dense, 4, 1, 1, 1},
    {scores, 1, 1, 1, 1},   {scores, 2, 2, 1, 1},    {scores, 4, 4, 1, 1},    {scores, 4, 2, 1, 1},
    {latent, 1, 1, 1, 1},   {latent, 2, 2, 1, 1},    {latent, 2, 1, 2, 1},    {latent, 4, 4, 2, 2},
    {latent, 4, 2, 4, 1},   {by_length, 2, 2, 1, 1}, {by_length, 2, 1, 2, 1}, {by_length, 4, 2, 4, 1},
};

constexpr Index V = 37;

std::vector<std::vector<std::int32_t>> some_prompts(Index count) {
  const RandomStream random(3, "prompts");
  std::vector<std::vector<std::int32_t>> prompts;
  for (Index p = 0; p < count; ++p) {
    auto& ids = prompts.emplace_back();
    for (Index i = 0; i < 1 + (p * 7 + 3) % 11; ++i)
      ids.push_back(static_cast<std::int32_t>(random.bits(100 * p + i) % static_cast<std::uint64_t>(V)));
  }
  return prompts;
}

using Settings = std::vector<std::string>;

std::unique_ptr<Engine> make_engine(Comm& comm, const RanksAndLayouts& l, Settings settings, Index positions) {
  const bool alone = &comm != &world();
  if (!alone) settings.push_back("--run.dtype=" + tested_device.dtype);
  auto made = std::make_unique<Engine>(
      parse_config(l.model, "test", settings), V, make_device(alone ? "cpu" : tested_device.backend),
      make_mesh(comm, alone ? Layout{} : Layout{l.ranks, l.tp, l.ep, l.etp}), false, ArenaSizes{}, 1, positions);
  Engine& engine = *made;
  engine.store().initialize(5);
  // Weights are larger than initial ones, so that texts do not repeat themselves.
  for (const ParamSpec& spec : engine.store().specs()) {
    const View w = engine.store().get(spec.name).weight;
    if (spec.init.kind != InitKind::normal || w.dtype() != DType::f32) continue;
    std::vector<float> host(static_cast<std::size_t>(w.elements()));
    engine.device().to_host(w, host.data());
    for (float& x : host) x *= 12;
    engine.device().to_device(host.data(), w);
  }
  engine.store().packed_weights().invalidate();
  return made;
}

std::vector<Continuation> texts(Comm& comm, const RanksAndLayouts& l,
                                const std::vector<std::vector<std::int32_t>>& prompts, const GenerateOptions& options,
                                const Settings& settings = {}) {
  return generate(*make_engine(comm, l, settings, required_positions(prompts, options.tokens)), prompts, options);
}

// Compares the texts of all ranks with those of one rank.
void expect_texts_of_one_rank(const RanksAndLayouts& l, const Settings& settings) {
  const auto self = make_comm_self();
  for (const Index count : {1, 3, 7}) {
    const auto prompts = some_prompts(count);
    GenerateOptions options{.sampling = {.temperature = 0}, .tokens = 14, .end_of_text = 2, .prefill = 4};
    // The slot of a text that ends early is used by another text. A rank without texts takes part
    // for the others.
    options.stops = [](std::size_t prompt, std::span<const std::int32_t> added) {
      return prompt % 3 == 1 && added.size() == 3 + prompt;
    };
    const auto many = texts(world(), l, prompts, options, settings);
    ASSERT_EQ(std::ssize(many), count);
    const auto one = texts(*self, l, prompts, options, settings);
    std::size_t longest = 0;  // some texts continue after others have ended
    for (const Continuation& c : one) longest = std::max(longest, c.added.size());
    EXPECT_GE(longest, 7u);
    for (std::size_t i = 0; i < one.size(); ++i) {
      // bf16 decides otherwise if two logits are close.
      if (tested_device.dtype == "bf16") continue;
      EXPECT_EQ(many[i].added, one[i].added) << l.str() << ", " << count << " prompts, prompt " << i;
      EXPECT_EQ(many[i].finish, one[i].finish) << l.str() << ", " << count << " prompts, prompt " << i;
    }
  }
}

TEST(GenerateLayouts, GiveTheTextOfOneRank) {
  for (const RanksAndLayouts& l : generating_layouts)
    if (l.ranks == world().size()) expect_texts_of_one_rank(l, {});
}

// ---- prefix language models, whose prompt is the prefix ----

const Settings as_prefix_model = {"--train.objective=prefix"};
Settings with_prefix(Settings more) {
  more.insert(more.end(), as_prefix_model.begin(), as_prefix_model.end());
  return more;
}
struct PrefixLayouts {
  Settings settings;
  std::vector<RanksAndLayouts> layouts;
};
// Visible prefixes exclude windows.
const PrefixLayouts prefix_layouts[] = {
    {with_prefix({"--attention.local.window=0"}),
     {{on_eight, 2, 1, 1, 1},
      {on_eight, 2, 2, 1, 1},
      {on_eight, 2, 1, 2, 1},
      {on_eight, 2, 2, 2, 1},
      {on_eight, 2, 1, 1, 2},
      {on_eight, 4, 1, 1, 1},
      {on_eight, 4, 4, 1, 1},
      {on_eight, 4, 1, 4, 1},
      {on_eight, 4, 2, 2, 1},
      {on_eight, 4, 2, 1, 4},
      {on_eight, 4, 4, 2, 2},
      {on_eight, 8, 2, 4, 2},
      {latent, 2, 2, 1, 1},
      {latent, 4, 2, 4, 1}}},
    {with_prefix(
         {"--attention.local.window=0", "--model.position=t5", "--model.t5_buckets=6", "--model.t5_max_distance=8"}),
     {{on_eight, 2, 2, 2, 1}, {on_eight, 4, 4, 1, 1}, {on_eight, 4, 1, 2, 2}}},
    {with_prefix({"--attention.local.window=0", "--model.position=alibi"}),
     {{on_eight, 2, 2, 1, 1}, {on_eight, 4, 2, 4, 1}}},
    {with_prefix({"--model.position=learned", "--model.seq_len=40"}),
     {{on_six, 2, 2, 1, 1}, {on_six, 3, 3, 3, 1}, {on_six, 6, 2, 3, 1}}},
    {with_prefix({"--attention.a.window=0"}), {{by_length, 2, 2, 1, 1}, {by_length, 4, 2, 4, 1}}},
};

TEST(GenerateLayouts, GiveTheTextOfOneRankAfterAVisiblePrefix) {
  for (const PrefixLayouts& some : prefix_layouts)
    for (const RanksAndLayouts& l : some.layouts)
      if (l.ranks == world().size()) expect_texts_of_one_rank(l, some.settings);
}

// Logits after the prompt, and after each of the next tokens. Each data-parallel rank has a prompt
// of its own.
std::vector<std::vector<float>> logits_after(Engine& engine, std::span<const std::int32_t> ids, Index prompt) {
  Cache cache = engine.make_cache(1, std::ssize(ids), prompt);
  std::vector<std::vector<float>> all;
  all.push_back(engine.decode(cache, 0, 1, ids.first(static_cast<std::size_t>(prompt)), true));
  for (const std::int32_t id : ids.subspan(static_cast<std::size_t>(prompt)))
    all.push_back(engine.decode(cache, 0, 1, std::vector{id}, true));
  return all;
}

TEST(GenerateLayouts, GiveTheLogitsOfOneRankAfterAVisiblePrefix) {
  const auto self = make_comm_self();
  for (const PrefixLayouts& some : prefix_layouts)
    for (const RanksAndLayouts& l : some.layouts) {
      // The rotations of by_length depend on the length of the text.
      if (l.ranks != world().size() || l.model == by_length) continue;
      constexpr Index longest = 11, more = 6;
      const auto many = make_engine(world(), l, some.settings, longest + more),
                 one = make_engine(*self, l, some.settings, longest + more);
      const Index number = many->mesh().coord.dp, prompt = longest - 3 * number;
      const RandomStream random(7, "prefix");
      std::vector<std::int32_t> ids;
      // All ranks make the same number of passes.
      for (Index i = 0; i < prompt + more; ++i)
        ids.push_back(static_cast<std::int32_t>(random.bits(100 * number + i) % static_cast<std::uint64_t>(V)));
      const auto got = logits_after(*many, ids, prompt);
      const auto want = logits_after(*one, ids, prompt);
      // bf16 chooses other experts if two scores are close.
      if (tested_device.dtype == "bf16") continue;
      for (std::size_t row = 0; row < want.size(); ++row) {
        float largest = 0;
        for (const float z : want[row]) largest = std::max(largest, std::abs(z));
        const float tolerance = 2e-5f * largest;
        ASSERT_EQ(got[row].size(), want[row].size());
        for (std::size_t i = 0; i < want[row].size(); ++i)
          ASSERT_NEAR(got[row][i], want[row][i], tolerance) << l.str() << ", row " << row << ", token " << i;
      }
    }
}

constexpr const char* pairs = R"(
[model]
kind = encoder_decoder
layers = 2
d_model = 24
heads = 4
kv_heads = 2
seq_len = 16
d_ff = 40
position = t5
[moe]
experts = 8
d_ff = 20
[train]
objective = seq2seq
)";

std::vector<Continuation> targets_of(Comm& comm, const Layout& layout,
                                     const std::vector<std::vector<std::int32_t>>& sources, Index beams) {
  const bool alone = &comm != &world();
  std::vector<std::string> settings{"--model.init_std=0.4"};
  if (!alone) settings.push_back("--run.dtype=" + tested_device.dtype);
  Engine engine(parse_config(pairs, "test", settings), V, make_device(alone ? "cpu" : tested_device.backend),
                make_mesh(comm, layout), false, {}, 1, 16);
  engine.store().initialize(5);
  return search_targets(engine, sources, {.beams = beams, .tokens = 9, .start = 0, .end = 2});
}

// A rank without a source, or with a target that ends early, takes part for the others.
TEST(BeamSearchLayouts, GiveTheTargetsOfOneRank) {
  const auto self = make_comm_self();
  const int ranks = world().size();
  std::vector<Layout> layouts{{ranks, 1, 1, 1}, {ranks, 1, ranks, 1}, {ranks, 2, ranks, 1}, {ranks, 2, ranks / 2, 2}};
  std::erase_if(layouts, [&](const Layout& l) { return ranks % 2 != 0 || ranks == 6 || l.ep == 0; });
  for (const Layout& layout : layouts)
    for (const Index beams : {1, 3}) {
      const auto sources = some_prompts(5);
      const auto many = targets_of(world(), layout, sources, beams), one = targets_of(*self, {}, sources, beams);
      if (tested_device.dtype == "bf16") continue;
      for (std::size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(many[i].added, one[i].added) << layout.str() << ", " << beams << " beams, source " << i;
        EXPECT_EQ(many[i].finish, one[i].finish) << layout.str();
      }
    }
}

// Tokens that pad a pass of tensor-parallel ranks reach no expert.
TEST(GenerateLayouts, RoutePaddingToNoExpert) {
  const int ranks = world().size();
  if (ranks != 2 && ranks != 4) return;
  Engine engine(parse_config(on_eight, "test", {"--run.dtype=" + tested_device.dtype}), V,
                make_device(tested_device.backend), make_mesh(world(), {ranks, ranks, ranks, 1}), false);
  engine.store().initialize(5);
  Index dispatched = 0, layers = 0;
  engine.set_routing_hook([&](const RoutingView& r) {
    std::vector<std::int32_t> experts(static_cast<std::size_t>(r.experts.elements()));
    engine.device().to_host(r.experts, experts.data());
    dispatched += std::ranges::count_if(experts, [](std::int32_t expert) { return expert >= 0; });
    ++layers;
  });
  Cache cache = engine.make_cache(3, 12, 8);
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5};
  const auto routed = [&] {
    Index all = dispatched;
    world().all_reduce(view_of(&all, {1}));
    EXPECT_EQ(layers, 2);
    dispatched = layers = 0;
    return all;
  };
  const Index of_token = 2 * 2;  // two MoE layers, two experts each
  engine.decode(cache, 0, 1, ids, false);
  EXPECT_EQ(routed(), 5 * of_token);
  engine.decode(cache, 1, 1, std::span(ids).first(1), false);
  EXPECT_EQ(routed(), of_token);
  engine.decode(cache, 2, 1, std::span(ids).first(3), false);
  EXPECT_EQ(routed(), 3 * of_token);
  engine.decode(cache, 0, 3, std::span(ids).first(3), true);
  EXPECT_EQ(routed(), 3 * of_token);
  engine.decode(cache, 0, 0, {}, false);
  EXPECT_EQ(routed(), 0);
}

// A pass pads one token to the number of tensor-parallel ranks, also at the last position of the
// model. ALiBi has a bias for each position of the cache.
TEST(GenerateLayouts, CachesHaveAllPositionsOfTheModel) {
  const int ranks = world().size();
  if (ranks != 2 && ranks != 4) return;
  Engine engine(parse_config(on_eight, "test", {"--run.dtype=" + tested_device.dtype, "--model.position=alibi"}), V,
                make_device(tested_device.backend), make_mesh(world(), {ranks, ranks, ranks, 1}), false);
  engine.store().initialize(5);
  const Index positions = engine.config().model.seq_len;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(positions), 3);
  ids[2] = 7;
  Cache at_once = engine.make_cache(1, positions, positions), one_by_one = engine.make_cache(1, positions, 1);
  const std::vector<float> want = engine.decode(at_once, 0, 1, ids, true);
  std::vector<float> got;
  for (std::size_t i = 0; i < ids.size(); ++i)
    got = engine.decode(one_by_one, 0, 1, std::span(ids).subspan(i, 1), true);
  const float tolerance = tested_device.dtype == "f32" ? 1e-5f : 2e-2f;
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
  EXPECT_THROW(engine.make_cache(1, positions + 1, 1), std::logic_error);
}

}  // namespace
}  // namespace sy
