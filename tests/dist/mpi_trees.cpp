// Collectives of small buffers on many ranks. On more than 16 ranks their messages follow trees.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "tests/mpi_world.h"

namespace {
int sent_messages = 0;  // of this rank, by MPI_Isend
}  // namespace

// Takes the place of MPI's function.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  ++sent_messages;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace sy {
namespace {

using test::world;

// Buffers of 2200 f64 and of 19 ranks have blocks of less than 1 KiB.
constexpr Index elements = 2200;

double value_of(int rank, Index i) {
  return std::sin(static_cast<double>(rank * elements + i)) * std::pow(10., rank % 5);
}

// The sum of ranks [begin, end) in the order of the tree, or in rank order.
double sum_of(int begin, int end, Index i, bool tree) {
  if (!tree) {
    double sum = value_of(begin, i);
    for (int r = begin + 1; r < end; ++r) sum += value_of(r, i);
    return sum;
  }
  double sum = value_of(begin, i);
  for (int bit = 1; begin + bit < end && (begin & bit) == 0; bit *= 2)
    sum += sum_of(begin + bit, std::min(end, begin + 2 * bit), i, true);
  return sum;
}

TEST(Trees, SumInTheOrderOfTheTree) {
  const int n = world().size(), r = world().rank();
  std::vector<double> x;
  for (Index i = 0; i < elements; ++i) x.push_back(value_of(r, i));
  sent_messages = 0;
  world().all_reduce(view_of(x.data(), {elements}));
  const int sent = sent_messages;
  const bool tree = all_reduce_algorithm(elements * 8, n) == AllReduceAlgorithm::tree;
  ASSERT_EQ(tree, n > small_group);
  for (Index i = 0; i < elements; ++i) ASSERT_EQ(x[i], sum_of(0, n, i, tree)) << i;
  if (!tree) return;
  EXPECT_EQ(sent, r == 0 ? 0 : 1);
}

TEST(Trees, TakeTheMaximum) {
  const int n = world().size();
  std::vector<std::int64_t> x(elements);
  for (Index i = 0; i < elements; ++i) x[i] = i % n == world().rank() ? i : std::numeric_limits<std::int64_t>::min();
  world().all_reduce(view_of(x.data(), {elements}), Reduce::max);
  for (Index i = 0; i < elements; ++i) ASSERT_EQ(x[i], i);
}

TEST(Trees, ScatterAndGatherSmallBlocks) {
  const int n = world().size(), r = world().rank();
  constexpr Index block = 7;
  std::vector<float> x(n * block), sums(block), all(n * block);
  for (Index i = 0; i < n * block; ++i) x[i] = static_cast<float>(i * (r + 1));
  sent_messages = 0;
  world().reduce_scatter(view_of(x.data(), {n * block}), view_of(sums.data(), {block}));
  if (n > small_group) {
    EXPECT_EQ(sent_messages, r == 0 ? 0 : 1);
  }
  for (Index i = 0; i < block; ++i) ASSERT_EQ(sums[i], static_cast<float>((r * block + i) * n * (n + 1) / 2));
  world().all_gather(view_of(sums.data(), {block}), view_of(all.data(), {n * block}));
  for (Index i = 0; i < n * block; ++i) ASSERT_EQ(all[i], static_cast<float>(i * n * (n + 1) / 2));
}

// Texts of any bytes and sizes, empty ones included.
std::string text_of(int rank, int size) {
  std::string text;
  for (int i = 0; i < rank * 37 % 11 * size; ++i) text += static_cast<char>(rank + i);
  return text;
}

TEST(Trees, GatherTexts) {
  const int n = world().size(), r = world().rank();
  for (const int size : {0, 1, 1000}) {
    sent_messages = 0;
    const std::vector<std::string> all = world().gather(text_of(r, size));
    EXPECT_LE(sent_messages, r == 0 ? 0 : 2);
    ASSERT_EQ(std::ssize(all), r == 0 ? n : 0);
    for (int other = 0; r == 0 && other < n; ++other) EXPECT_EQ(all[other], text_of(other, size)) << other;
  }
}

TEST(Trees, GatherTextsToAnyRank) {
  const int n = world().size(), r = world().rank();
  for (int root = 0; root < n; ++root) {
    sent_messages = 0;
    const std::vector<std::string> all = world().gather(text_of(r, 100 + root), root);
    EXPECT_LE(sent_messages, r == root ? 0 : 2);
    ASSERT_EQ(std::ssize(all), r == root ? n : 0);
    for (int other = 0; r == root && other < n; ++other) EXPECT_EQ(all[other], text_of(other, 100 + root)) << other;
  }
}

TEST(Trees, SizesChooseTheAlgorithm) {
  constexpr Index kib = 1 << 10;
  using enum AllReduceAlgorithm;
  EXPECT_EQ(all_reduce_algorithm(8, 16384), eager);  // 128 KiB of buffers
  EXPECT_EQ(all_reduce_algorithm(16 * kib, 64), eager);
  EXPECT_EQ(all_reduce_algorithm(16 * kib, 65), tree);
  EXPECT_EQ(all_reduce_algorithm(16 * kib + 8, 16), blocks);
  EXPECT_EQ(all_reduce_algorithm(16 * kib + 8, 17), tree);
  EXPECT_EQ(all_reduce_algorithm(17 * kib, 17), blocks);
  EXPECT_EQ(all_reduce_algorithm(360 * kib, 16384), tree);
  EXPECT_EQ(all_reduce_algorithm(16384 * kib, 16384), blocks);
  // A tree moves the whole buffer over each edge.
  EXPECT_EQ(all_reduce_bytes(360 * kib, 8, 16384, 0), 360 * kib * 16383);
  EXPECT_EQ(all_reduce_bytes(360 * kib, 8, 16384, 5), 360 * kib);
}

}  // namespace
}  // namespace sy
