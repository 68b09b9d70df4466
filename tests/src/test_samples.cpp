#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "src/data/dataset.h"
#include "src/data/permutation.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

struct Spec {
  std::string name;
  Index train, valid = 0;
  double weight = -1;
};

// Token i of domain d is 1000 * d + i, so that a window shows its origin.
Dataset make_dataset(const TempFolder& folder, const std::vector<Spec>& specs) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = 1000000;
  for (const Spec& spec : specs) {
    const auto first = static_cast<std::int32_t>(1000 * description.domains.size());
    for (const auto& [split, size] : {std::pair{".train", spec.train}, std::pair{".valid", spec.valid}}) {
      IndexedWriter writer(folder.path() / (spec.name + split), description.vocab);
      for (Index i = 0; i < size; ++i) writer.add(std::vector<std::int32_t>{first + static_cast<std::int32_t>(i)});
      writer.finish();
    }
    description.domains.push_back({spec.name, spec.train, spec.train, spec.valid, spec.valid, 0, 0, spec.weight});
  }
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

TEST(Permutation, IsABijectionForEverySize) {
  for (Index n : {1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 1000, 4095, 4096, 4097, 100003}) {
    std::vector<bool> seen(static_cast<std::size_t>(n));
    const Permutation p(n, 42);
    for (Index i = 0; i < n; ++i) {
      const Index image = p(i);
      ASSERT_GE(image, 0);
      ASSERT_LT(image, n);
      ASSERT_FALSE(seen[static_cast<std::size_t>(image)]) << n << " " << i;
      seen[static_cast<std::size_t>(image)] = true;
    }
  }
  const Index huge = (Index{1} << 61) + 12345;
  const Permutation p(huge, 1);
  std::set<Index> images;
  for (Index i = 0; i < 1000; ++i) images.insert(p(huge - 1 - i));
  EXPECT_EQ(images.size(), 1000u);
  EXPECT_GE(*images.begin(), 0);
  EXPECT_LT(*images.rbegin(), huge);
}

// Over many keys, each element reaches each position equally often: chi-square with (n - 1)^2
// degrees of freedom.
TEST(Permutation, SpreadsElementsEvenlyOverKeys) {
  for (const Index n : {3, 10, 37}) {
    const int keys = 20000;
    std::vector<double> counts(static_cast<std::size_t>(n * n));
    for (int key = 0; key < keys; ++key) {
      const Permutation p(n, static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15ull);
      for (Index i = 0; i < n; ++i) ++counts[static_cast<std::size_t>(i * n + p(i))];
    }
    const double expected = static_cast<double>(keys) / static_cast<double>(n);
    double chi2 = 0;
    for (const double c : counts) chi2 += (c - expected) * (c - expected) / expected;
    const double freedom = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom)) << n;
  }
}

TEST(SampleStream, ReadsTheReportedWindows) {
  const TempFolder folder;
  const Dataset data = make_dataset(folder, {{"a", 101}, {"b", 64}, {"c", 11}});
  const SampleStream samples(data, 10, 7);
  EXPECT_EQ(samples.samples_per_epoch(), 10 + 6 + 1);
  SampleBatch sample(10, {}, 1);
  for (Index i = 0; i < 500; ++i) {
    const auto [domain, window] = samples.locate(i);
    ASSERT_EQ(samples.read(i, sample[0]), domain);
    for (std::size_t t = 0; t < 10; ++t) {
      const Index id = 1000 * domain + window * 10 + static_cast<Index>(t);
      ASSERT_EQ(sample.ids[t], id);
      ASSERT_EQ(sample.targets[t], id + 1);
    }
  }
}

// Documents of 3, 1, 0, 5 and 40 tokens, again and again, in windows of 7: only the first token of
// a document is ignored, also at the edge of a window.
TEST(SampleStream, IgnoresTargetsThatBeginADocument) {
  const TempFolder folder;
  constexpr Index documents = 400, S = 7;
  std::set<Index> begins;
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = 100000;
  Index tokens = 0;
  for (const char* split : {".train", ".valid"}) {
    IndexedWriter writer(folder.path() / (std::string("a") + split), description.vocab);
    tokens = 0;
    for (Index d = 0; d < documents; ++d) {
      std::vector<std::int32_t> ids;
      begins.insert(tokens);
      for (Index i = 0; i < std::array{3, 1, 0, 5, 40}[static_cast<std::size_t>(d % 5)]; ++i)
        ids.push_back(static_cast<std::int32_t>(tokens++));
      writer.add(ids);
    }
    writer.finish();
  }
  description.domains.push_back({"a", documents, tokens, documents, tokens});
  folder.write("dataset.ini", to_ini(description));
  const Dataset data(folder.path());
  Config::Data masked;
  masked.mask_eod_loss = true;
  const SampleStream all(data, S, 3), some(data, S, 3, masked);
  EXPECT_FALSE(all.ignores_targets());
  EXPECT_TRUE(some.ignores_targets());
  const EvalStream valid(data, 0, S, 5, masked);
  SampleBatch x(S, masked, 1), y(S, masked, 1);
  Index ignored = 0;
  for (Index i = 0; i < all.samples_per_epoch(); ++i) {
    all.read(i, x[0]);
    some.read(i, y[0]);
    ASSERT_EQ(x.ids, y.ids);
    for (std::size_t t = 0; t < S; ++t) {
      const bool begin = begins.contains(x.targets[t]);
      ASSERT_EQ(y.targets[t], begin ? -1 : x.targets[t]) << "sample " << i << " at " << t;
      ignored += begin;
    }
  }
  EXPECT_GT(ignored, 200);
  Index counted = 0;
  for (Index i = 0; i < valid.windows(); ++i) {
    valid.read(i, y[0]);
    for (const std::int32_t target : y.targets) {
      ASSERT_FALSE(begins.contains(target));
      counted += target >= 0;
    }
  }
  EXPECT_EQ(counted, tokens - std::ssize(begins));
}

TEST(SampleStream, VisitsEveryWindowOncePerEpoch) {
  const TempFolder folder;
  const Dataset data = make_dataset(folder, {{"a", 501}, {"b", 202}});
  const SampleStream samples(data, 5, 3);
  const Index windows[] = {100, 40};
  std::vector<Index> visits[2];
  // Visits of each domain, in order of k. The shuffle within a block changes the order of domains,
  // so that k follows from counts of epochs over whole blocks.
  std::map<std::pair<int, Index>, int> times;
  const Index blocks = 35;  // 35 * 256 samples are 64 epochs of 140
  for (Index i = 0; i < blocks * SampleStream::mixing_block; ++i) {
    const auto w = samples.locate(i);
    ++times[{w.domain, w.window}];
    visits[w.domain].push_back(w.window);
  }
  for (int d = 0; d < 2; ++d) {
    ASSERT_EQ(static_cast<Index>(visits[d].size()), 64 * windows[d]);
    for (Index w = 0; w < windows[d]; ++w) EXPECT_EQ((times[{d, w}]), 64) << d << " " << w;
  }
  const std::vector<Index> first(visits[0].begin(), visits[0].begin() + 100);
  const std::vector<Index> second(visits[0].begin() + 100, visits[0].begin() + 200);
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

TEST(SampleStream, EpochsOfOneDomainAreExact) {
  const TempFolder folder;
  // There are 256 windows: a block is an epoch.
  const SampleStream samples(make_dataset(folder, {{"a", 513}}), 2, 11);
  std::vector<Index> previous;
  for (Index epoch = 0; epoch < 4; ++epoch) {
    std::vector<Index> order;
    for (Index i = 0; i < 256; ++i) order.push_back(samples.locate(epoch * 256 + i).window);
    EXPECT_NE(order, previous);
    EXPECT_EQ(std::set<Index>(order.begin(), order.end()).size(), 256u);
    previous = order;
  }
}

// A domain is much longer than a block. If epochs had the same order, each block would have its
// windows of the previous epoch. Random windows share an eighth.
TEST(SampleStream, EpochsHaveDifferentOrders) {
  const TempFolder folder;
  constexpr Index block = SampleStream::mixing_block, blocks = 8, epochs = 5;
  const SampleStream samples(make_dataset(folder, {{"a", 2 * block * blocks + 1}}), 2, 11);
  std::set<Index> seen[epochs][blocks];
  for (Index i = 0; i < epochs * blocks * block; ++i)
    seen[i / block / blocks][i / block % blocks].insert(samples.locate(i).window);
  for (Index b = 0; b < blocks; ++b)
    for (Index e = 0; e < epochs; ++e)
      for (Index other = 0; other < e; ++other) {
        Index same = 0;
        for (const Index window : seen[e][b]) same += static_cast<Index>(seen[other][b].count(window));
        EXPECT_LT(same, block / 3) << "block " << b << " of epochs " << other << " and " << e;
      }
}

TEST(SampleStream, ProportionsAreExactPerBlock) {
  const std::vector<Spec> by_size = {{"a", 701}, {"b", 201}, {"c", 101}, {"d", 8}};
  std::vector<Spec> weighted = by_size;
  const double weights[] = {0.5, 3, 0, 0.001};
  for (std::size_t d = 0; d < 4; ++d) weighted[d].weight = weights[d];
  for (const auto& specs : {by_size, weighted}) {
    const TempFolder folder;
    const SampleStream samples(make_dataset(folder, specs), 7, 5);
    double share[4], total = 0;
    for (std::size_t d = 0; d < 4; ++d)
      total += share[d] = specs[d].weight >= 0 ? specs[d].weight : static_cast<double>((specs[d].train - 1) / 7);
    double counts[4] = {};
    for (Index i = 0; i < 200 * SampleStream::mixing_block; ++i) {
      ++counts[samples.locate(i).domain];
      if ((i + 1) % SampleStream::mixing_block == 0) {
        for (std::size_t d = 0; d < 4; ++d)
          ASSERT_LE(std::abs(counts[d] - static_cast<double>(i + 1) * share[d] / total), 3) << d << " " << i;
      }
    }
    EXPECT_EQ(counts[2] > 0, specs[2].weight != 0);
    EXPECT_GT(counts[3], 0);
  }
}

// Three blends, of which the second is shorter than a block. Each sample is counted here, and each
// window must be read once before any is read again, whatever the blends are.
TEST(SampleStream, FollowsChangesOfTheBlend) {
  const TempFolder folder;
  const Dataset data = make_dataset(folder, {{"a", 701}, {"b", 201}, {"c", 101}});
  const std::vector<SampleStream::BlendChange> changes = {
      {1000, {{"c", 9}, {"a", 1}}}, {1100, {{"b", 1}}}, {1777, {{"a", 0.25}, {"b", 0.5}, {"c", 0.25}}}};
  const SampleStream samples(data, 7, 5, {}, nullptr, changes);
  const double windows[] = {100, 28, 14};
  const std::vector<double> shares[] = {
      {100 / 142., 28 / 142., 14 / 142.}, {0.1, 0, 0.9}, {0, 1, 0}, {0.25, 0.5, 0.25}};
  const Index ends[] = {1000, 1100, 1777, 1777 + 9 * SampleStream::mixing_block};
  Index i = 0;
  double counts[3] = {};
  std::map<std::pair<int, Index>, int> times;
  for (std::size_t blend = 0; blend < 4; ++blend) {
    const Index first = i;
    double in_blend[3] = {};
    for (; i < ends[blend]; ++i) {
      const std::vector<double> epochs = samples.epochs(i);
      for (std::size_t d = 0; d < 3; ++d) ASSERT_EQ(epochs[d], counts[d] / windows[d]) << "sample " << i;
      const auto [domain, window] = samples.locate(i);
      ASSERT_GT(shares[blend][domain], 0) << "sample " << i;
      ++in_blend[domain];
      ++counts[domain];
      ++times[{domain, window}];
      const Index seen = i + 1 - first;
      if (seen % SampleStream::mixing_block != 0 && i + 1 != ends[blend]) continue;
      for (std::size_t d = 0; d < 3; ++d) {
        ASSERT_LE(std::abs(in_blend[d] - static_cast<double>(seen) * shares[blend][d]), 2) << d << " " << i;
        for (Index w = 0; w < static_cast<Index>(windows[d]); ++w) {
          const int n = times[{static_cast<int>(d), w}];
          ASSERT_EQ(std::floor(counts[d] / windows[d]), n - (n > counts[d] / windows[d] ? 1 : 0)) << d << " " << i;
        }
      }
    }
  }
}

// Weights of a change before the first sample are those of a data set with these weights. A change
// leaves the samples before it as they are, but for the block in which it is.
TEST(SampleStream, ChangesTheBlendFromASampleOn) {
  const TempFolder plain, weighted;
  const Dataset data = make_dataset(plain, {{"a", 701}, {"b", 201}});
  const Dataset with_weights = make_dataset(weighted, {{"a", 701, 0, 1}, {"b", 201, 0, 3}});
  const SampleStream want(with_weights, 7, 5), changed(data, 7, 5, {}, nullptr, {{0, {{"b", 3}, {"a", 1}}}});
  const SampleStream before(data, 7, 5), after(data, 7, 5, {}, nullptr, {{600, {{"a", 1}}}, {600, {{"b", 1}}}});
  for (Index i = 0; i < 2000; ++i) {
    const auto a = want.locate(i), b = changed.locate(i);
    ASSERT_EQ(a.domain, b.domain) << i;
    ASSERT_EQ(a.window, b.window) << i;
    const auto changed_later = after.locate(i);
    if (i < 512) {
      ASSERT_EQ(before.locate(i).window, changed_later.window) << i;
    } else if (i >= 600) {
      ASSERT_EQ(changed_later.domain, 1) << i;  // the last change of a sample counts
    }
  }
}

TEST(SampleStream, ChecksTheDomainsOfABlend) {
  const TempFolder folder;
  const Dataset data = make_dataset(folder, {{"a", 101, 0, 1}, {"short", 5, 0, 0}});
  EXPECT_NO_THROW(SampleStream(data, 10, 1));
  EXPECT_NO_THROW(SampleStream(data, 10, 1, {}, nullptr, {{5, {{"a", 2}, {"short", 0}}}}));
  EXPECT_BAD_INPUT(SampleStream(data, 10, 1, {}, nullptr, {{5, {{"short", 1}}}}), "domain short has 5 training tokens");
  EXPECT_BAD_INPUT(SampleStream(data, 10, 1, {}, nullptr, {{5, {{"b", 0}}}}), "names domain b, and");
  EXPECT_BAD_INPUT(SampleStream(data, 10, 1, {}, nullptr, {{5, {{"b", 0}}}}), "has the domains a, short");
}

// The changes of a training begin with their steps, also where batches change, and where a training
// goes on after steps with other batches.
TEST(SampleStream, ChangesTheBlendOfATrainingAtItsSteps) {
  const TempFolder folder;
  const Dataset data = make_dataset(folder, {{"a", 1001}, {"b", 1001}});
  Config config;
  config.model.seq_len = 10;
  config.train.global_batch = 6;
  config.train.batch_ramp.changes = {{3, 10}, {7, 4}};
  config.data.blend_schedule.changes = {{2, {{"a", 1}}}, {5, {{"b", 1}}}, {9, {{"a", 1}}}};
  for (const Index earlier : {0, 5, -20, 700}) {
    const Index done = 6 + 6 + 10 + earlier;  // samples of 3 steps
    const SampleStream samples = training_samples(data, config, 3, std::max<Index>(done, 0));
    Index i = std::max<Index>(done, 0);
    for (Index step = 4; step < 12; ++step)
      for (Index end = i + config.train.batch_of(step); i < end; ++i)
        ASSERT_EQ(samples.locate(i).domain, step >= 5 && step < 9 ? 1 : 0) << "step " << step << ", " << earlier;
  }
}

TEST(SampleStream, MixesDomainsWithinABlock) {
  const TempFolder folder;
  const SampleStream samples(make_dataset(folder, {{"a", 1001}, {"b", 1001}}), 10, 5);
  // If domains alternated strictly, each of two ranks would always get the same domain.
  int even_a = 0, changes = 0;
  for (Index i = 0; i < 256; ++i) {
    even_a += i % 2 == 0 && samples.locate(i).domain == 0;
    changes += samples.locate(i).domain != samples.locate(i + 1).domain;
  }
  EXPECT_GT(even_a, 40);
  EXPECT_LT(even_a, 88);
  EXPECT_GT(changes, 90);
  EXPECT_LT(changes, 166);
}

// Blocks do not repeat each other, either: an index has the same domain in half of the cases.
TEST(SampleStream, MixesEachBlockDifferently) {
  const TempFolder folder;
  const SampleStream samples(make_dataset(folder, {{"a", 1001}, {"b", 1001}}), 10, 5);
  for (Index block = 1; block < 6; ++block)
    for (Index other = 0; other < block; ++other) {
      int same = 0;
      for (Index i = 0; i < SampleStream::mixing_block; ++i)
        same += samples.locate(block * SampleStream::mixing_block + i).domain ==
                samples.locate(other * SampleStream::mixing_block + i).domain;
      EXPECT_LT(same, SampleStream::mixing_block * 3 / 4) << "blocks " << other << " and " << block;
    }
}

TEST(SampleStream, DependsOnSeedAndIndexOnly) {
  const TempFolder folder;
  const Dataset data = make_dataset(folder, {{"a", 801}, {"b", 401}});
  const SampleStream one(data, 4, 1), again(data, 4, 1), other(data, 4, 2);
  SampleBatch x(4, {}, 1), y(4, {}, 1);
  int same = 0;
  // Reads backwards and in strides, like ranks and resumed runs. Earlier reads have no influence.
  for (Index i = 999; i >= 0; --i) {
    const Index sample = i * 37 % 1000;
    again.read(sample, y[0]);
    one.read(sample, x[0]);
    ASSERT_EQ(x, y);
    other.read(sample, y[0]);
    same += x == y;
  }
  EXPECT_LT(same, 50);
}

// In each mix, the first block has the first 128 of the 256 windows of a. No other domain
// influences their choice.
TEST(SampleStream, OrderOfADomainIgnoresOtherDomains) {
  std::set<Index> seen[2];
  const std::vector<Spec> mixes[] = {{{"a", 1025}, {"b", 1025}}, {{"c", 1025}, {"a", 1025}}};
  for (int mix = 0; mix < 2; ++mix) {
    const TempFolder folder;
    const SampleStream samples(make_dataset(folder, mixes[mix]), 4, 9);
    for (Index i = 0; i < SampleStream::mixing_block; ++i)
      if (const auto w = samples.locate(i); w.domain == mix) seen[mix].insert(w.window);
  }
  EXPECT_EQ(seen[0].size(), 128u);
  EXPECT_EQ(seen[0], seen[1]);
}

// Domains of equal size, each half of a block, have different orders.
TEST(SampleStream, DomainsHaveDifferentOrders) {
  const TempFolder folder;
  const SampleStream samples(make_dataset(folder, {{"a", 1025}, {"b", 1025}}), 4, 9);
  std::set<Index> seen[2];
  for (Index i = 0; i < SampleStream::mixing_block; ++i) {
    const auto w = samples.locate(i);
    seen[w.domain].insert(w.window);
  }
  EXPECT_EQ(seen[0].size(), 128u);
  EXPECT_NE(seen[0], seen[1]);
}

TEST(SampleStream, AcceptsLargeIndices) {
  const TempFolder folder;
  const SampleStream samples(make_dataset(folder, {{"a", 701, 0, 0.3}, {"b", 201, 0, 0.7}}), 7, 5);
  const Index far = Index{1} << 60;
  int a = 0;
  for (Index i = 0; i < 256; ++i) {
    const auto w = samples.locate(far + i);
    ASSERT_GE(w.window, 0);
    ASSERT_LT(w.window, w.domain == 0 ? 100 : 28);
    a += w.domain == 0;
  }
  EXPECT_NEAR(a, 0.3 * 256, 2);
}

TEST(SampleStream, NamesADomainThatIsTooShort) {
  const TempFolder folder;
  const Dataset data = make_dataset(folder, {{"long", 100}, {"short", 12}});
  EXPECT_NO_THROW(SampleStream(data, 11, 1));
  EXPECT_BAD_INPUT(SampleStream(data, 12, 1), "domain short has 12 training tokens");
  EXPECT_BAD_INPUT(SampleStream(data, 12, 1), "at most 11");
  const TempFolder empty, zero;
  EXPECT_BAD_INPUT(SampleStream(make_dataset(empty, {{"a", 100}, {"none", 0}}), 12, 1), "domain none");
  // A domain without a share may be short.
  const SampleStream samples(make_dataset(zero, {{"a", 100, 0, 1}, {"none", 3, 0, 0}}), 12, 1);
  EXPECT_EQ(samples.samples_per_epoch(), 8);
}

TEST(EvalStream, EveryTokenButTheFirstIsATargetOnce) {
  for (const Index size : {0, 1, 2, 7, 8, 9, 15, 100}) {
    const TempFolder folder;
    const Dataset data = make_dataset(folder, {{"x", 50, 3}, {"a", 50, size}});
    const EvalStream eval(data, 1, 7);
    EXPECT_EQ(eval.targets(), std::max<Index>(size - 1, 0));
    EXPECT_EQ(eval.windows(), std::ceil(static_cast<double>(eval.targets()) / 7));
    SampleBatch window(7, {}, 1);
    std::int32_t next = 1001;
    for (Index i = 0; i < eval.windows(); ++i) {
      eval.read(i, window[0]);
      for (std::size_t t = 0; t < 7; ++t) {
        const bool padding = next == 1000 + size;
        EXPECT_EQ(window.ids[t], padding ? 0 : next - 1);
        EXPECT_EQ(window.targets[t], padding ? -1 : next);
        next += !padding;
      }
      EXPECT_NE(window.targets[0], -1);
    }
    EXPECT_EQ(next, 1000 + std::max<Index>(size, 1));
    EXPECT_THROW(eval.read(eval.windows(), window[0]), std::logic_error);
  }
}

}  // namespace
}  // namespace sy
