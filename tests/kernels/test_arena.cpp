// Contract of the arena: alignment, no overlap, last in first out, reuse of memory.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/arena.h"
#include "kernels/device.h"
#include "kernels/philox.h"

namespace sy {
namespace {

struct Counted {
  std::unique_ptr<Device> device = make_cpu();
  Index calls = 0, bytes = 0;
  Arena::Allocate allocate() {
    return [this](Index n) {
      ++calls;
      bytes += n;
      return device->allocate(n);
    };
  }
};

TEST(Arena, AlignsViewsAndKeepsTheirContents) {
  Counted memory;
  Arena arena(memory.allocate());
  const RandomStream random(1, "arena");
  std::vector<std::pair<View, int>> allocated;
  for (int i = 0; i < 300; ++i) {
    const View v = arena.take({static_cast<Index>(random.bits(i) % 5000)}, i % 2 ? DType::f32 : DType::i64);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(v.bytes()) % Arena::alignment, 0u);
    if (v.elements() > 0) std::memset(v.bytes(), i % 251, static_cast<std::size_t>(v.size_bytes()));
    allocated.push_back({v, i % 251});
  }
  for (const auto& [v, byte] : allocated)
    for (Index i = 0; i < v.size_bytes(); ++i) ASSERT_EQ(static_cast<int>(v.bytes()[i]), byte);
  EXPECT_GE(arena.reserved(), arena.peak());
  EXPECT_EQ(arena.reserved(), memory.bytes);
}

TEST(Arena, ReusesAddressesAfterARewind) {
  Counted memory;
  Arena arena(memory.allocate());
  arena.f32({100});
  std::vector<std::byte*> first;
  const Arena::Mark mark = arena.mark();
  const auto step = [&](std::vector<std::byte*>& addresses) {
    // The last two are larger than a block, so that the arena grows in the middle.
    for (Index n : {10, 1000, 70000, 400000, 300000}) addresses.push_back(arena.f32({n}).bytes());
  };
  step(first);
  const Index calls = memory.calls, in_use = arena.in_use(), peak = arena.peak();
  EXPECT_GT(calls, 1);
  for (int i = 0; i < 3; ++i) {
    arena.rewind(mark);
    EXPECT_EQ(arena.in_use(), 512);  // 100 floats, rounded up to the alignment
    std::vector<std::byte*> again;
    step(again);
    EXPECT_EQ(again, first);
  }
  EXPECT_EQ(memory.calls, calls) << "a later step asked the device for memory";
  EXPECT_EQ(arena.in_use(), in_use);
  EXPECT_EQ(arena.peak(), peak);
}

TEST(Arena, StaysBoundedIfSizesVary) {
  Counted memory;
  Arena arena(memory.allocate());
  const RandomStream random(3, "rows");
  Index late_calls = 0;
  for (int step = 0; step < 300; ++step) {
    if (step == 200) late_calls = memory.calls;
    const Arena::Scope scope(arena);
    for (int layer = 0; layer < 4; ++layer) {
      arena.f32({300000});
      const Index rows = 200000 + static_cast<Index>(random.bits(4 * step + layer) % 100000);
      arena.f32({rows});
      arena.f32({2 * rows});
    }
  }
  EXPECT_LE(arena.reserved(), arena.peak() * 5 / 4);
  EXPECT_EQ(memory.calls, late_calls) << "it does not settle";
}

TEST(Arena, AllocatesAnExpectedSizeOnce) {
  const auto step = [](Arena& arena) {
    const Arena::Scope all(arena);
    arena.f32({64});
    for (Index n : {300000, 400000, 500000, 700000}) {  // each is larger than the ones before
      const Arena::Scope scope(arena);
      arena.f32({n});
    }
  };
  Counted unknown, known;
  Arena grown(unknown.allocate());
  step(grown);
  Arena arena(known.allocate(), grown.peak());
  step(arena);
  EXPECT_EQ(known.calls, 1);
  EXPECT_EQ(arena.reserved(), arena.peak());
  EXPECT_GT(grown.reserved(), 2 * grown.peak()) << "nothing was to be gained";
  arena.f32({800000});  // more than the reserved peak
  EXPECT_EQ(known.calls, 2);
}

TEST(Arena, PeakCountsBytesInUseAtOnce) {
  Counted memory;
  Arena arena(memory.allocate());
  for (int i = 0; i < 3; ++i) {
    const Arena::Scope scope(arena);
    arena.f32({64});  // 256 bytes
    const Arena::Scope inner(arena);
    arena.take({1}, DType::f32);  // rounded up to 256
  }
  EXPECT_EQ(arena.in_use(), 0);
  EXPECT_EQ(arena.peak(), 512);
}

TEST(Arena, TwoArenasShareAFixedBlock) {
  Counted memory;
  FixedBlock block(memory.allocate()(2048), 2048);
  Arena low(block, End::low), high(block, End::high);
  const View first = low.f32({64}), last = high.f32({64});
  EXPECT_EQ(last.bytes() - first.bytes(), 2048 - 256);
  {
    const Arena::Scope scope(low);
    low.f32({64 * 6});  // the whole rest of the block
    for (Arena* arena : {&low, &high}) try {
        arena->f32({1});
        FAIL() << "took more than there is";
      } catch (const NoMemory& e) {
        EXPECT_NE(std::string(e.what()).find("no memory for 256 bytes more, 0 of "), std::string::npos);
      }
    EXPECT_EQ(low.in_use() + high.in_use(), 2048);
  }
  EXPECT_NO_THROW(high.f32({64 * 6}));  // memory that `low` has released
  EXPECT_EQ(low.peak(), 256 * 7);
  EXPECT_EQ(memory.calls, 1);
}

TEST(Arena, EmptyViewsCostNothing) {
  Counted memory;
  Arena arena(memory.allocate());
  const View a = arena.f32({0, 7});
  EXPECT_TRUE(a.present());
  EXPECT_EQ(arena.in_use(), 0);
}

// ---- random numbers of tests and initial weights ----

TEST(Philox, MatchesKnownAnswers) {  // kat_vectors of Random123: philox4x32, 10 rounds
  EXPECT_EQ(philox(0, 0, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(philox(ones, ones, ones), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi: key a4093822 299f31d0, counter 243f6a88 85a308d3 13198a2e 03707344.
  EXPECT_EQ(philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, HasTheMomentsOfItsDistribution) {
  const RandomStream stream(7, "moments");
  constexpr int n = 200000;
  double mean_u = 0, mean = 0, square = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double u = stream.uniform(i), x = stream.normal(i);
    ASSERT_TRUE(u >= 0 && u < 1);
    mean_u += u / n;
    mean += x / n;
    square += x * x / n;
    fourth += x * x * x * x / n;
  }
  // Five standard errors.
  EXPECT_NEAR(mean_u, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(mean, 0, 5 * std::sqrt(1.0 / n));
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth, 3, 5 * std::sqrt(96.0 / n));
}

TEST(RandomStream, DependsOnSeedPurposeAndIndex) {
  const RandomStream a(1, "a"), b(1, "b"), c(2, "a");
  EXPECT_EQ(a.bits(3), RandomStream(1, "a").bits(3));
  EXPECT_NE(a.bits(3), a.bits(4));
  EXPECT_NE(a.bits(3), b.bits(3));
  EXPECT_NE(a.bits(3), c.bits(3));
}

}  // namespace
}  // namespace sy
