#include "src/params/matrix_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "src/config/layout.h"
#include "src/text/strings.h"
#include "tests/src/box_index.h"

namespace sy {
namespace {

// The permutation of rows that ops::Permute computes.
std::vector<Index> permuted(const std::vector<Index>& x, const std::vector<std::int32_t>& index, Index width,
                            std::vector<Index> y) {
  EXPECT_EQ(std::ssize(y), std::ssize(index) * width);
  for (Index row = 0; row < std::ssize(index); ++row)
    if (index[row] >= 0) std::copy_n(x.begin() + index[row] * width, width, y.begin() + row * width);
  return y;
}

std::vector<Index> permuted(const std::vector<Index>& x, const std::vector<std::int32_t>& index, Index width) {
  return permuted(x, index, width, std::vector<Index>(index.size() * width, -1));
}

// The all-to-all of the buffers of all ranks. sizes[from][to]: elements.
std::vector<std::vector<Index>> exchanged(const std::vector<std::vector<Index>>& buffers,
                                          const std::vector<std::vector<Index>>& sizes) {
  std::vector<std::vector<Index>> out(buffers.size());
  for (std::size_t from = 0; from < buffers.size(); ++from) {
    auto next = buffers[from].begin();
    for (std::size_t to = 0; to < buffers.size(); ++to) {
      out[to].insert(out[to].end(), next, next + sizes[from][to]);
      next += sizes[from][to];
    }
    EXPECT_EQ(next, buffers[from].end());
  }
  return out;
}

// Values of the owned range of a rank: the number of each element among those of all parameters.
// Padding is -1.
std::vector<Index> owned_numbers(const GroupLayout& group, const std::map<std::string, Index>& first) {
  std::vector<Index> numbers(static_cast<std::size_t>(group.owned().size()), -1);
  for (const OwnedRange& range : owned_ranges(group))
    for (Index i = 0; i < range.flat.size(); ++i)
      numbers[range.flat.begin - group.owned().begin + i] =
          first.at(range.slice->spec->name) +
          test::whole_index(range.slice->spec->shape, range.slice->box, range.local.begin + i);
  return numbers;
}

// Odd sizes, kv heads that several ranks hold, experts and shared experts.
Config muon_config(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"--train.optimizer=muon"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return parse_config(
      "[model]\nlayers=2\nd_model=24\nheads=24\nkv_heads=2\nhead_dim=2\nd_ff=48\nseq_len=24\n"
      "[moe]\nexperts=24\nfirst_dense=1\nd_ff=24\nshared_experts=1\n[train]\nglobal_batch=24\nmicro_batch=1\n",
      "test", overrides);
}

void expect_whole_matrices(const Config& config, const Layout& layout) {
  SCOPED_TRACE(layout.str());
  const std::vector<ParamSpec> specs = param_specs(config, 37);
  std::map<std::string, Index> first;
  Index end = 0;
  for (const ParamSpec& spec : specs) first[spec.name] = end, end += spec.shape.elements();
  std::vector<FlatLayout> flat;
  for (int rank = 0; rank < layout.ranks; ++rank) flat.push_back(flat_layout(specs, layout, coord_of(layout, rank)));

  std::vector<int> owners(static_cast<std::size_t>(end));  // of each element
  for (std::size_t group = 0; group < flat[0].groups.size(); ++group) {
    if (!update_rule(flat[0].groups[group].optimizer).matrix_rule) continue;
    std::vector<MatrixExchangePlan> plans;
    std::vector<std::vector<Index>> owned, shards, by_owner, by_rank;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const MatrixExchangePlan& plan = plans.emplace_back(matrix_exchange(specs, layout, rank, group));
      owned.push_back(owned_numbers(flat[rank].groups[group], first));
      shards.push_back(permuted(owned[rank], plan.pack, plan.width));
      by_owner.push_back(plan.by_owner);
      by_rank.push_back(plan.by_rank);
    }
    const auto received = exchanged(shards, by_owner);
    std::vector<std::vector<Index>> returned;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const MatrixExchangePlan& plan = plans[rank];
      const std::vector<Index> matrices = permuted(received[rank], plan.assemble, plan.width);
      auto element = matrices.begin();
      for (const auto& matrix : plan.matrices) {
        for (Index i = 0; i < matrix.elements(); ++i) {
          ASSERT_EQ(element[i], *element + i);
          ++owners[element[i]];
        }
        element += matrix.elements();
      }
      EXPECT_EQ(element, matrices.end());
      returned.push_back(permuted(matrices, plan.disassemble, plan.width));
    }
    const auto back = exchanged(returned, by_rank);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const MatrixExchangePlan& plan = plans[rank];
      const std::vector<Index> padding(owned[rank].size(), -1);
      EXPECT_EQ(permuted(back[rank], plan.unpack, plan.width, padding), owned[rank]) << rank;
    }
  }
  for (const ParamSpec& spec : specs)
    for (Index i = 0; i < spec.shape.elements(); ++i)
      ASSERT_EQ(owners[first.at(spec.name) + i], spec.optimizer == Optimizer::adamw ? 0 : 1) << spec.name;
}

TEST(MatrixExchange, AssemblesEachMatrixOnOneRankOfAnyLayout) {
  const std::vector<std::string> latent = {"--model.kv_heads=0", "--model.kv_lora_rank=10", "--model.q_lora_rank=7",
                                           "--model.qk_rope_head_dim=2", "--model.v_head_dim=3"};
  for (const auto& settings : {std::vector<std::string>(), latent}) {
    const Config config = muon_config(settings);
    for (const int ranks : {1, 2, 3, 8, 12})
      for (const Layout& layout : layouts_of(config, ranks)) expect_whole_matrices(config, layout);
  }
}

// One parameter that a rule over whole matrices updates.
std::vector<ParamSpec> one_parameter(const Shape& shape, MatrixDims dims) {
  const Optimizer muon = muon_config({}).train.optimizer;
  return {ParamSpec{.name = "huge", .shape = shape, .init = {}, .optimizer = muon, .matrix = dims}};
}

// Positions of elements need 64 bits. Rows of them are numbered by 32.
TEST(MatrixExchange, NumbersRowsOfMoreThanTwoBillionElements) {
  const Shape experts{128, 4096, 14336};
  const MatrixExchangePlan plan = matrix_exchange(one_parameter(experts, {.stack_dims = 1}), {1, 1, 1, 1}, 0, 0);
  EXPECT_EQ(plan.matrix_elements(), experts.elements());
  EXPECT_EQ(plan.by_owner, std::vector<Index>{experts.elements()});
  EXPECT_EQ(plan.width, 4096);
  EXPECT_EQ(plan.pack.back(), experts.elements() / 4096 - 1);
  EXPECT_EQ(plan.assemble, plan.disassemble);
  EXPECT_EQ(plan.matrices.size(), 128u);
  EXPECT_EQ(plan.scratch_elements(update_rule(muon_config({}).train.optimizer)), (2 * 4096 + 14336) * Index{4096});
}

TEST(MatrixExchange, RefusesMoreRowsThanCanBeNumbered) {
  const std::vector<ParamSpec> specs = one_parameter({3, (1 << 30) + 1}, {});
  try {
    matrix_exchange(specs, {1, 1, 1, 1}, 0, 0);
    FAIL() << "no error";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(),
                 "muon would move the matrices of rank 0 in 3221225536 rows of 1 elements, more than 2147483647: use "
                 "more ranks, or sizes of the model with a larger common divisor");
  }
}

}  // namespace
}  // namespace sy
