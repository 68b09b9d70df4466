// Documents in samples and in the model: masks, positions, packing.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "src/model/engine.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/train/trainer.h"
#include "tests/src/golden_gradient.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

// Token i of the domain has id i, so that ids show their origin.
Dataset make_documents(const TempFolder& folder, const std::vector<Index>& lengths, Index vocab = 100000) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = vocab;
  Index tokens = 0;
  for (const char* split : {".train", ".valid"}) {
    IndexedWriter writer(folder.path() / (std::string("a") + split), description.vocab);
    tokens = 0;
    for (const Index length : lengths) {
      std::vector<std::int32_t> ids;
      for (Index i = 0; i < length; ++i) ids.push_back(static_cast<std::int32_t>(tokens++ % vocab));
      writer.add(ids);
    }
    writer.finish();
  }
  description.domains.push_back({"a", std::ssize(lengths), tokens, std::ssize(lengths), tokens});
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

std::vector<Index> random_lengths(Index documents, Index longest) {
  const RandomStream random(5, "lengths");
  std::vector<Index> lengths;
  for (Index d = 0; d < documents; ++d) lengths.push_back(static_cast<Index>(random.bits(d) % longest));
  return lengths;
}

Config::Data data_of(Documents documents) {
  Config::Data data;
  data.documents = documents;
  return data;
}

TEST(Packing, CutsOnlyDocumentsThatDoNotFit) {
  const TempFolder folder;
  constexpr Index S = 64;
  std::vector<Index> lengths = random_lengths(2 * Packing::documents_per_group + 77, 40);
  for (std::size_t d = 0; d < lengths.size(); d += 50) lengths[d] = 60 + static_cast<Index>(d) % 200;
  lengths[3] = 3 * S;
  const Dataset data = make_documents(folder, lengths, 1000000);
  const IndexedTokens tokens = data.open(0, SplitName::train);
  const Packing packing(tokens, S, RandomStream(1, "packing"));
  std::vector<Index> segments(lengths.size());
  std::vector<bool> seen(static_cast<std::size_t>(tokens.tokens()));
  std::vector<Index> begins(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), Index{0});
  for (Index w = 0; w < packing.windows(); ++w) {
    Index used = 0;
    for (const Packing::Segment& segment : packing.window(w)) {
      used += segment.tokens.size();
      const auto d =
          static_cast<std::size_t>(std::ranges::upper_bound(begins, segment.tokens.begin) - begins.begin() - 1);
      ++segments[d];
      EXPECT_EQ(segment.ends_document, segment.tokens.end == begins[d] + lengths[d]);
      ASSERT_LE(segment.tokens.end, begins[d] + lengths[d]);
      for (Index i = segment.tokens.begin; i < segment.tokens.end; ++i) {
        ASSERT_FALSE(seen[static_cast<std::size_t>(i)]);
        seen[static_cast<std::size_t>(i)] = true;
      }
    }
    ASSERT_GT(used, 0);
    ASSERT_LE(used, S);
  }
  EXPECT_EQ(std::ranges::count(seen, false), 0);
  for (std::size_t d = 0; d < lengths.size(); ++d) EXPECT_EQ(segments[d], ceil_div(lengths[d], S)) << d;
  // Three groups of documents: one window of each may be almost empty.
  EXPECT_LE(packing.windows(), ceil_div(tokens.tokens(), S) * 101 / 100 + 3);
}

// A document of each length from 1 to 20 and windows of 12: each sample is checked token by token.
TEST(SampleStream, MarksDocuments) {
  const TempFolder folder;
  std::vector<Index> lengths(60);
  for (std::size_t d = 0; d < lengths.size(); ++d) lengths[d] = static_cast<Index>(1 + d * 7 % 20);
  const Dataset data = make_documents(folder, lengths);
  std::set<Index> begins;
  Index tokens = 0;
  for (const Index length : lengths) {
    begins.insert(tokens);
    tokens += length;
  }
  begins.insert(tokens);
  constexpr Index S = 12;
  for (const Documents documents : {Documents::mask, Documents::pack}) {
    const SampleStream samples(data, S, 3, data_of(documents)), again(data, S, 3, data_of(documents));
    EXPECT_TRUE(samples.ignores_targets());
    EXPECT_TRUE(samples.has_documents());
    std::set<std::int32_t> ids;
    Index padding = 0;
    for (Index i = 4 * SampleStream::mixing_block - 1; i >= 0; --i) {
      SampleBatch x(S, data_of(documents), 1), y(S, data_of(documents), 1);
      samples.read(i, x[0]);
      again.read(i, y[0]);
      ASSERT_EQ(x, y);
      for (std::size_t t = 0; t < S; ++t) {
        const std::int32_t id = x.ids[t], start = x.document_start[t];
        if (id < 0) {
          ++padding;
          EXPECT_EQ(x.targets[t], -1);
          EXPECT_EQ(start, t);
          continue;
        }
        ids.insert(id);
        EXPECT_EQ(x.targets[t], begins.contains(id + 1) ? -1 : id + 1);
        const bool begins_here = t == 0 || begins.contains(id) || x.ids[t - 1] != id - 1;
        EXPECT_EQ(start, begins_here ? static_cast<std::int32_t>(t) : x.document_start[t - 1]);
        // A segment of a packed document begins with the document, or at a multiple of S in it.
        if (documents == Documents::pack && begins_here) {
          EXPECT_EQ((id - *std::prev(begins.upper_bound(id))) % S, 0);
        }
      }
    }
    if (documents == Documents::mask) {
      EXPECT_EQ(padding, 0);
    } else {
      EXPECT_GT(padding, 0);
      EXPECT_EQ(std::ssize(ids), tokens);
    }
  }
}

struct Kind {
  const char* name;
  std::vector<std::string> settings;
};
const Kind kinds[] = {
    {"rope", {"--model.kv_heads=2"}},
    {"learned", {"--model.position=learned"}},
    {"sinusoidal", {"--model.position=sinusoidal", "--model.norm=layernorm"}},
    {"alibi", {"--model.position=alibi"}},
    {"t5", {"--model.position=t5", "--model.t5_buckets=8", "--model.t5_max_distance=16"}},
    {"window_sinks", {"--model.window=4", "--model.attention_sinks=true", "--model.qk_norm=true"}},
    {"strided", {"--model.attention=strided", "--model.attention_stride=3"}},
    {"fixed", {"--model.attention=fixed", "--model.attention_stride=4", "--model.attention_summary=1"}},
    {"longformer", {"--model.attention=longformer", "--model.window=3", "--model.global_tokens=2"}},
    {"latent", {"--model.kv_lora_rank=10", "--model.qk_rope_head_dim=4", "--model.kv_heads=0"}},
    {"shared_sigmoid", {"--moe.shared_experts=1", "--moe.score=sigmoid", "--model.attention_softcap=4"}},
};

class Packed : public testing::TestWithParam<Kind> {};

// The losses of all tokens, the routed counts and the gradient are those of the documents one by
// one.
TEST_P(Packed, EqualsItsDocumentsOneByOne) {
  const Config config = parse_config(
      "[model]\nlayers = 2\nd_model = 16\nheads = 4\nseq_len = 40\nd_ff = 24\n[moe]\nexperts = 6\ntop_k = 2\n"
      "d_ff = 12\ncapacity_factor = 0\naux_loss = 0\nz_loss = 0\n",
      "test", GetParam().settings);
  const Index V = 23, S = config.model.seq_len, B = 2;
  const auto self = make_comm_self();
  const auto make = [&] {
    auto engine = std::make_unique<Engine>(config, V, make_cpu(), make_mesh(*self, {}), true);
    engine->store().initialize(7);
    return engine;
  };
  const auto packed = make(), alone = make();
  const RandomStream draw(3, "tokens");
  // Two windows; padding follows the documents of the second.
  const std::vector<Index> lengths[B] = {{9, 1, 17, 13}, {2, 26, 5}};
  std::vector<std::int32_t> ids, targets, starts;
  Index counted = 0;
  for (const auto& of_window : lengths) {
    Index at = 0;
    for (const Index n : of_window) {
      for (Index i = 0; i < n; ++i) {
        ids.push_back(static_cast<std::int32_t>(draw.bits(ids.size()) % V));
        targets.push_back(i + 1 < n ? static_cast<std::int32_t>(draw.bits(ids.size()) % V) : -1);
        starts.push_back(static_cast<std::int32_t>(at));
        counted += i + 1 < n;
      }
      at += n;
    }
    for (; at < S; ++at) {
      ids.push_back(-1);
      targets.push_back(-1);
      starts.push_back(static_cast<std::int32_t>(at));
    }
  }
  const auto for_documents = [&](const auto& visit) {
    for (Index b = 0; b < B; ++b) {
      Index at = b * S;
      for (const Index n : lengths[b]) {
        visit(at, n);
        at += n;
      }
    }
  };
  // The loss of token t alone.
  for_documents([&](Index first, Index n) {
    for (Index t = first; t + 1 < first + n; ++t) {
      std::vector<std::int32_t> one(targets.size(), -1);
      one[t] = targets[t];
      packed->evaluate({.sequences = B, .seq_len = S, .ids = ids, .targets = one, .document_start = starts}, true);
      alone->evaluate({1, n, std::span(ids).subspan(first, n), std::span(one).subspan(first, n)}, true);
      const double want = alone->take_statistics().loss_sum;
      ASSERT_NEAR(packed->take_statistics().loss_sum, want, 1e-6 * std::max(1.0, want)) << "token " << t;
    }
  });
  packed->forward_backward({B, S, ids, targets, counted, B, 1, 0, starts});
  for_documents([&](Index first, Index n) {
    alone->forward_backward({1, n, std::span(ids).subspan(first, n), std::span(targets).subspan(first, n), counted, 1});
  });
  const Statistics a = packed->take_statistics(), b = alone->take_statistics();
  EXPECT_NEAR(a.loss_sum, b.loss_sum, 1e-6 * b.loss_sum);
  for (std::size_t l = 0; l < b.layers.size(); ++l) {
    EXPECT_EQ(a.layers[l].routed, b.layers[l].routed);
    EXPECT_EQ(a.layers[l].dropped, b.layers[l].dropped);
    EXPECT_EQ(std::accumulate(a.layers[l].routed.begin(), a.layers[l].routed.end(), Index{0}),
              2 * (9 + 1 + 17 + 13 + 33));
    for (std::size_t e = 0; e < b.layers[l].probability.size(); ++e)
      EXPECT_NEAR(a.layers[l].probability[e], b.layers[l].probability[e], 1e-4);
  }
  for (const ParamSpec& spec : packed->store().specs()) {
    const View x = packed->store().get(spec.name).grad, y = alone->store().get(spec.name).grad;
    float largest = 0;
    for (Index i = 0; i < x.elements(); ++i) largest = std::max(largest, std::abs(y.f32()[i]));
    for (Index i = 0; i < x.elements(); ++i)
      ASSERT_NEAR(x.f32()[i], y.f32()[i], 2e-6 * largest + 1e-9) << spec.name << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Packed, testing::ValuesIn(kinds), [](const auto& test) { return test.param.name; });

// Without the boundaries, the same window gives other losses.
TEST(Documents, ChangeTheLoss) {
  const Config config = parse_config("[model]\nlayers = 1\nd_model = 8\nheads = 2\nseq_len = 6\nd_ff = 8\n", "test");
  const auto self = make_comm_self();
  Engine engine(config, 11, make_cpu(), make_mesh(*self, {}), false);
  engine.store().initialize(7);
  const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9}, targets{-1, -1, -1, -1, -1, 2}, starts{0, 0, 0, 3, 3, 3};
  double losses[2];
  for (const bool masked : {false, true}) {
    Engine::MicroBatch batch{.sequences = 1, .seq_len = 6, .ids = ids, .targets = targets};
    if (masked) batch.document_start = starts;
    engine.evaluate(batch, true);
    losses[masked] = engine.take_statistics().loss_sum;
  }
  EXPECT_GT(std::abs(losses[0] - losses[1]), 1e-5);
}

// A run that stops and continues takes the same steps.
TEST(Documents, StepsDependOnProgressAlone) {
  const TempFolder folder;
  const Dataset dataset = make_documents(folder, random_lengths(300, 30), 23);
  const auto self = make_comm_self();
  for (const char* documents : {"mask", "pack"}) {
    const Config config = parse_config(
        "[model]\nlayers = 2\nd_model = 8\nheads = 2\nseq_len = 16\n[moe]\nexperts = 4\nd_ff = 8\n[train]\nsteps = 6\n"
        "global_batch = 6\nmicro_batch = 2\n",
        "test", {std::string("--data.documents=") + documents});
    const SampleStream samples(dataset, 16, config.train.seed, config.data);
    Engine whole(config, 23, make_cpu(), make_mesh(*self, {}), true),
        split(config, 23, make_cpu(), make_mesh(*self, {}), true);
    whole.store().initialize(1);
    split.store().initialize(1);
    Trainer trainer(whole, samples);
    auto sharded = std::make_unique<Trainer>(split, samples);
    for (Index step = 0; step < 6; ++step) {
      const StepResult a = trainer.step(), b = sharded->step();
      EXPECT_EQ(a.metrics.loss, b.metrics.loss);
      EXPECT_EQ(a.metrics.tokens, b.metrics.tokens);
      double sum = 0;
      for (const double p : a.probability[0]) sum += p;
      EXPECT_NEAR(sum, 1, 1e-6);
      if (step == 2) {
        const Index tokens = sharded->tokens_done();
        sharded = std::make_unique<Trainer>(split, samples);
        sharded->set_progress(3, 18, tokens);
      }
    }
  }
}

// Token losses and gradients of transformers with a mask of documents (tests/golden/documents.py).
TEST(Documents, EqualTransformers) {
  const Json cases = Json::parse(read_file(std::string(GOLDEN) + "/documents.json"));
  ASSERT_EQ(cases.size(), 2u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Config config = parse_config(
        "[model]\nlayers = 2\nd_model = 16\nheads = 4\nd_ff = 20\nseq_len = 32\n[moe]\nexperts = 0\ntop_k = 2\n"
        "capacity_factor = 0\naux_loss = 0\nz_loss = 0\n",
        "test", c["settings"].get<std::vector<std::string>>());
    const auto self = make_comm_self();
    Engine engine(config, c["vocab"].get<std::int64_t>(), make_cpu(), make_mesh(*self, Layout{}), true);
    set_golden_values(engine.store());
    const auto numbers = [&](const char* key) {
      const auto values = c[key].get<std::vector<Index>>();
      return std::vector<std::int32_t>(values.begin(), values.end());
    };
    const std::vector<std::int32_t> ids = numbers("ids"), targets = numbers("targets"),
                                    starts = numbers("document_start");
    const auto losses = c["losses"].get<std::vector<double>>();
    const Index T = std::ssize(ids), counted = T - std::ranges::count(targets, -1);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      std::vector<std::int32_t> one(ids.size(), -1);
      one[t] = targets[t];
      engine.evaluate({.sequences = 1, .seq_len = T, .ids = ids, .targets = one, .document_start = starts}, true);
      EXPECT_NEAR(engine.take_statistics().loss_sum, losses[t], 1e-5 * std::max(1.0, losses[t])) << "token " << t;
    }
    engine.forward_backward({1, T, ids, targets, counted, 1, 1, 0, starts});
    for (const ParamSpec& spec : engine.store().specs()) {
      const auto want = c["gradients"][spec.name].get<std::vector<double>>();
      const View grad = engine.store().get(spec.name).grad;
      expect_golden_gradient(spec.name, {grad.f32(), static_cast<std::size_t>(grad.elements())}, want,
                             is_around_one(spec), {.relative = 5e-5, .product = 1e-6, .norm = 1e-7});
    }
  }
}

}  // namespace
}  // namespace sy
