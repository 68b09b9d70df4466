// Sizes of [parallel] that are auto: the choice is compared with the plan of all layouts.
#include <gtest/gtest.h>

#include <set>

#include "src/config/layout.h"
#include "src/plan/automatic_layout.h"
#include "src/plan/plan.h"

namespace sy {
namespace {

constexpr const char* layout_model = R"(
[model]
layers = 2
d_model = 32
heads = 4
seq_len = 16
[moe]
experts = 12
top_k = 2
d_ff = 32
capacity_factor = 1
[train]
global_batch = 120
micro_batch = 2
[parallel]
tp = auto
ep = auto
etp = auto
)";
constexpr Index vocab = 64;
const Machine machine = typical_machine("cpu", 4);

Config with(const std::vector<std::string>& settings = {}) {
  return parse_config(layout_model, "test", settings);
}

Config choose(const Config& config, int ranks, const std::optional<EarlierLayout>& earlier = {}) {
  return choose_layout(config, vocab, ranks, machine, 2, earlier, [](const Config&) {});
}

std::string layout_error(const Config& config, int ranks, const std::optional<EarlierLayout>& earlier = {}) {
  try {
    choose(config, ranks, earlier);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

const EarlierLayout six_ranks{"RUN/step-1", 6, 2};  // dp * train.micro_batch = 12

TEST(AutomaticLayout, IsAValueOfTheKeys) {
  const Config c = with({"--parallel.ranks_per_node=auto"});
  EXPECT_TRUE(has_automatic_layout(c));
  EXPECT_EQ(value_of(c, "parallel.ranks_per_node"), "auto");
  EXPECT_EQ(parse_config(to_ini(c), "again").parallel.tp, 0);
  EXPECT_EQ(c.layout(4), (Layout{4, 1, 1, 1, 1}));
  EXPECT_FALSE(has_automatic_layout(with({"--parallel.tp=1", "--parallel.ep=2", "--parallel.etp=1"})));
  for (const char* wrong : {"0", "-1", "any", "32769"})
    EXPECT_THROW(with({fmt::format("--parallel.ep={}", wrong)}), InputError) << wrong;
}

TEST(AutomaticLayout, IsTheFastestOfThePlan) {
  for (const int ranks : {1, 2, 4, 6, 12}) {
    const Plan plan =
        make_plan(with(), vocab, ranks, {.machine = machine, .load = {}, .layouts = layouts_of(with(), ranks)});
    const Config chosen = choose(with(), ranks);
    EXPECT_EQ(chosen.layout(ranks), plan.fitting.front().layout) << ranks;
    EXPECT_FALSE(has_automatic_layout(chosen));
    EXPECT_EQ(chosen.train.micro_batch, 2);
  }
}

TEST(AutomaticLayout, KeepsOtherKeys) {
  const Config chosen = choose(with({"--parallel.tp=2", "--parallel.ep=3"}), 6);
  EXPECT_EQ(chosen.layout(6).tp, 2);
  EXPECT_EQ(chosen.layout(6).ep, 3);
  EXPECT_EQ(choose(with({"--parallel.ranks_per_node=2", "--parallel.ep=4"}), 4).layout(4), (Layout{4, 1, 4, 1, 2}));
  EXPECT_EQ(choose(with({"--parallel.ranks_per_node=2", "--parallel.ep=4", "--parallel.tp=2"}), 4).layout(4).tp, 2);
  EXPECT_NE(layout_error(with({"--parallel.tp=3"}), 6).find("model.heads = 4 is not divisible"), std::string::npos);
  EXPECT_NE(layout_error(with({"--parallel.ep=5"}), 6).find("6 ranks are not divisible by"), std::string::npos);
}

TEST(AutomaticLayout, KeepsTheProductOfACheckpoint) {
  for (const int ranks : {1, 2, 3, 4, 6, 12}) {
    const Config chosen = choose(with(), ranks, six_ranks);
    EXPECT_EQ(chosen.layout(ranks).dp() * chosen.train.micro_batch, 12) << ranks;
  }
  // 5 ranks have no such product: the largest micro-batch below it that divides the batch.
  const Config five = choose(with(), 5, six_ranks);
  EXPECT_EQ(five.layout(5).dp() * five.train.micro_batch, 10);
  // On 8 ranks the micro-batch of the checkpoint has a larger product than 12.
  const Config eight = choose(with({"--parallel.tp=1"}), 8, six_ranks);
  EXPECT_EQ(eight.train.micro_batch, 1);
  // Every batch of a ramp is divisible by the product.
  const Config ramp = choose(with({"--train.batch_ramp=4:180"}), 5, six_ranks);
  EXPECT_EQ(180 % (ramp.layout(5).dp() * ramp.train.micro_batch), 0);
  const Config odd = choose(with({"--train.batch_ramp=4:126", "--parallel.tp=1"}), 6, {{"RUN/step-1", 3, 4}});
  EXPECT_EQ(odd.train.micro_batch, 1);
}

TEST(AutomaticLayout, KeepsTheLayoutOfACheckpointOnAsManyRanks) {
  std::vector<Layout> layouts = layouts_of(with(), 6);
  ASSERT_GT(layouts.size(), 5);
  for (const Layout& layout : layouts) {
    EarlierLayout earlier{"RUN/step-1", layout.dp(), 2, {layout.tp, layout.ep, layout.etp, 1}};
    const Config chosen = choose(with(), 6, earlier);
    EXPECT_EQ(chosen.layout(6), layout) << layout.str();
    EXPECT_EQ(chosen.train.micro_batch, 2) << layout.str();
  }
  // Keys that are not auto, memory and machines have precedence.
  const EarlierLayout two{"RUN/step-1", 6, 2, {1, 2, 1, 1}}, by_node{"RUN/step-1", 6, 2, {1, 6, 1, 3}};
  EXPECT_EQ(choose(with({"--parallel.ep=3"}), 6, two).layout(6).ep, 3);
  const auto others_fit = [&](const Config& c) {
    if (c.parallel.ep == 2 && c.parallel.tp == 1) bad_input("it does not fit");
  };
  EXPECT_NE(choose_layout(with(), vocab, 6, machine, 2, two, others_fit).layout(6), (Layout{6, 1, 2, 1, 1}));
  const Config nodes = with({"--parallel.ranks_per_node=auto"});
  EXPECT_EQ(choose_layout(nodes, vocab, 6, machine, 3, by_node, [](const Config&) {}).layout(6).ranks_per_node, 3);
  EXPECT_NE(choose_layout(nodes, vocab, 6, machine, 2, by_node, [](const Config&) {}).layout(6).ranks_per_node, 3);
}

TEST(AutomaticLayout, RefusesToChangeResults) {
  const std::string by_product = "--moe.aux_scope=global_batch", by_rank = "--moe.capacity_scope=rank",
                    by_micro_batch = "--moe.aux_scope=micro_batch";
  EXPECT_EQ(choose(with({by_product}), 4, six_ranks).train.micro_batch *
                choose(with({by_product}), 4, six_ranks).layout(4).dp(),
            12);
  EXPECT_EQ(layout_error(with({by_product}), 5, six_ranks),
            "moe.aux_scope = global_batch makes results depend on dp * train.micro_batch = 6 * 2 of RUN/step-1, and no "
            "layout of 5 ranks keeps them: resume on another number of ranks");
  for (const std::string& setting : {by_rank, by_micro_batch}) {
    const Config chosen = choose(with({setting}), 4, six_ranks);
    EXPECT_EQ(chosen.train.micro_batch, 2);
    EXPECT_EQ(chosen.parallel.tp, 1);
    EXPECT_EQ(
        layout_error(with({setting, "--parallel.tp=2"}), 4, six_ranks),
        setting.substr(2, setting.find('=') - 2) + " = " + setting.substr(setting.find('=') + 1) +
            " makes results depend on train.micro_batch = 2 and parallel.tp = 1 of RUN/step-1, and no layout of 4 "
            "ranks keeps them: resume on another number of ranks");
  }
  EXPECT_NE(layout_error(with({by_product, by_rank}), 4, six_ranks).find("no layout of 4 ranks keeps them"),
            std::string::npos);
  EXPECT_EQ(choose(with({by_product, by_rank}), 6, six_ranks).train.micro_batch, 2);
  const std::string by_norm = "--model.norm=batchnorm";
  for (const char* experts : {"--moe.experts=12", "--moe.experts=0"}) {
    const Config chosen = choose(with({by_norm, experts}), 4, six_ranks);
    EXPECT_EQ(chosen.layout(4).dp() * chosen.train.micro_batch, 12) << experts;
    EXPECT_EQ(layout_error(with({by_norm, experts}), 5, six_ranks),
              "model.norm = batchnorm makes results depend on dp * train.micro_batch = 6 * 2 of RUN/step-1, and no "
              "layout of 5 ranks keeps them: resume on another number of ranks")
        << experts;
  }
  // A setting without effect is no reason.
  EXPECT_EQ(layout_error(with({by_product, "--moe.aux_loss=0"}), 5, six_ranks), "no error");
  EXPECT_EQ(layout_error(with({by_rank, by_product, "--moe.capacity_factor=0"}), 4, six_ranks), "no error");
}

TEST(AutomaticLayout, FitsTheMemory) {
  std::set<std::string> tried;
  const auto none_fits = [&](const Config& c) {
    tried.insert(c.layout(4).short_name());
    bad_input("{} needs 9 GB", c.layout(4).short_name());
  };
  EXPECT_THROW(choose_layout(with(), vocab, 4, machine, 2, {}, none_fits), InputError);
  EXPECT_EQ(tried.size(), layouts_of(with(), 4).size());
  const std::string fastest = choose(with(), 4).layout(4).short_name();
  const auto others_fit = [&](const Config& c) {
    if (c.layout(4).short_name() == fastest) bad_input("it does not fit");
  };
  EXPECT_NE(choose_layout(with(), vocab, 4, machine, 2, {}, others_fit).layout(4).short_name(), fastest);
  Machine small = machine;
  small.memory = 1;
  EXPECT_THROW(choose_layout(with(), vocab, 4, small, 2, {}, [](const Config&) {}), InputError);
}

}  // namespace
}  // namespace sy
