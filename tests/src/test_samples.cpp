#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "src/data/dataset.h"
#include "src/data/permutation.h"
#include "tests/src/owned_sample.h"
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
  test::OwnedSample sample(10);
  for (Index i = 0; i < 500; ++i) {
    const auto [domain, window] = samples.locate(i);
    ASSERT_EQ(samples.read(i, sample), domain);
    for (std::size_t t = 0; t < 10; ++t) {
      const Index id = 1000 * domain + window * 10 + static_cast<Index>(t);
      ASSERT_EQ(sample.ids[t], id);
      ASSERT_EQ(sample.targets[t], id + 1);
    }
  }
}

// Documents of 3, 1, 0, 5 and 40 tokens, again and again, in windows of 7: only the first token of a document is
// ignored, also at the edge of a window.
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
  test::OwnedSample x(S), y(S);
  Index ignored = 0;
  for (Index i = 0; i < all.samples_per_epoch(); ++i) {
    all.read(i, x);
    some.read(i, y);
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
    valid.read(i, y.ids, y.targets);
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
  test::OwnedSample x(4), y(4);
  int same = 0;
  // Reads backwards and in strides, like ranks and resumed runs. Earlier reads have no influence.
  for (Index i = 999; i >= 0; --i) {
    const Index sample = i * 37 % 1000;
    again.read(sample, y);
    one.read(sample, x);
    ASSERT_EQ(x, y);
    other.read(sample, y);
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
    std::vector<std::int32_t> inputs(7), targets(7);
    std::int32_t next = 1001;
    for (Index i = 0; i < eval.windows(); ++i) {
      eval.read(i, inputs, targets);
      for (std::size_t t = 0; t < 7; ++t) {
        const bool padding = next == 1000 + size;
        EXPECT_EQ(inputs[t], padding ? 0 : next - 1);
        EXPECT_EQ(targets[t], padding ? -1 : next);
        next += !padding;
      }
      EXPECT_NE(targets[0], -1);
    }
    EXPECT_EQ(next, 1000 + std::max<Index>(size, 1));
    EXPECT_THROW(eval.read(eval.windows(), inputs, targets), std::logic_error);
  }
}

}  // namespace
}  // namespace sy
