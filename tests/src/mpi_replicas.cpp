// Numbers that go wrong, on several ranks: skipped steps are those of one rank, and a copy that
// differs is found (run.check_every).
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "dist/errors.h"
#include "src/train/replica_check.h"
#include "tests/mpi_world.h"
#include "tests/src/two_domain_training.h"

namespace sy {
namespace {

using test::world;

constexpr const char* model_text = R"(
[model]
layers = 2
d_model = 16
heads = 4
kv_heads = 2
seq_len = 12
d_ff = 24
[moe]
experts = 4
top_k = 2
first_dense = 1
d_ff = 8
bias_update_rate = 0.01
[train]
steps = 40
global_batch = 8
micro_batch = 1
lr = 1e-2
warmup = 3
)";

struct ReplicaTraining : test::TwoDomainTraining {
  ReplicaTraining(Comm& comm, const std::vector<std::string>& overrides)
      : TwoDomainTraining(comm, model_text, overrides) {}
};

std::vector<std::vector<std::string>> layouts() {
  std::vector<std::vector<std::string>> all;
  for (const int tp : {1, 2, 4})
    for (const int ep : {1, 2, 4})
      if (world().size() % tp == 0 && world().size() % ep == 0)
        all.push_back({fmt::format("--parallel.tp={}", tp), fmt::format("--parallel.ep={}", ep)});
  return all;
}

TEST(SkippedSteps, AreThoseOfOneRank) {
  const std::vector<std::string> settings = {"--train.spike_sigma=1", "--train.max_skipped=40", "--train.steps=40"};
  std::vector<StepResult> expected;
  const auto self = make_comm_self();
  ReplicaTraining alone(*self, settings);
  Index skipped = 0;
  for (Index step = 0; step < 40; ++step) {
    expected.push_back(alone.trainer.step());
    skipped += expected.back().skipped;
    const double limit = expected.back().norm_limit, norm = expected.back().metrics.grad_norm;
    ASSERT_TRUE(std::isinf(limit) || std::abs(norm - limit) > 1e-4 * limit)
        << "too close to tell, at step " << step + 1;
  }
  ASSERT_GT(skipped, 1);
  // Few steps with a comparison: each has many collectives, which are slow on busy cores.
  for (std::vector<std::string> layout : {layouts().front(), layouts().back()}) {
    const std::string name = layout[0] + " " + layout[1];
    layout.insert(layout.end(), settings.begin(), settings.end());
    layout.emplace_back("--run.check_every=10");
    ReplicaTraining training(world(), layout);
    for (Index step = 0; step < 40; ++step) {
      const StepResult result = training.trainer.step();
      ASSERT_EQ(result.skipped, expected[step].skipped) << name << ", step " << step + 1;
      EXPECT_EQ(result.metrics.skipped_steps, expected[step].metrics.skipped_steps);
      EXPECT_NEAR(result.metrics.loss, expected[step].metrics.loss, 1e-4) << name << ", step " << step + 1;
    }
  }
}

// Returns the error of the next step; empty if there is none. Equal on all ranks.
std::string error_of_step(ReplicaTraining& training) {
  const Index before = training.trainer.steps_done();
  try {
    training.trainer.step();
    return "";
  } catch (const CollectiveError& e) {
    EXPECT_EQ(training.trainer.steps_done(), before);
    return e.what();
  }
}

TEST(Replicas, ChangedCopyOfAWeightEndsTheStepWithItsNameAndRank) {
  for (std::vector<std::string> layout : {layouts().front(), layouts().back()}) {
    const std::string name = layout[0] + " " + layout[1];
    layout.emplace_back("--run.check_every=2");
    for (const char* param :
         {"layers.0.attention_norm.weight", "layers.1.moe.router.weight", "layers.0.attention.k.weight"}) {
      const int rank = world().size() - 1;
      ReplicaTraining training(world(), layout);
      ParamStore& store = training.engine.store();
      if (!store.find(param)) continue;
      EXPECT_EQ(error_of_step(training), "") << name;
      const float old = store.get(param).weight.f32()[0];
      float& value = store.get(param).weight.f32()[0];
      if (world().rank() == rank) value = std::nextafter(old, 10.0f);
      const std::string error = error_of_step(training);
      // Only the ranks of other tp coordinates may hold other boxes of the keys.
      const Layout l = training.config.layout(world().size());
      const bool is_split = std::string(param).find(".k.") != std::string::npos;
      const int copies = is_split ? world().size() / std::min(l.tp, 2) : world().size();
      if (copies == 1) {
        EXPECT_EQ(error, "") << name << " " << param;
        continue;
      }
      EXPECT_NE(error.find(fmt::format("step 2: {} ", param)), std::string::npos) << name << ": " << error;
      EXPECT_NE(error.find(fmt::format("{}", rank)), std::string::npos) << name << ": " << error;
      if (copies > 2) {
        EXPECT_NE(error.find(fmt::format("{} of rank {} differs from that of rank", param, rank)), std::string::npos)
            << name << ": " << error;
      }
    }
  }
}

TEST(Replicas, ChangedSelectionBiasOrProgressIsFoundBeforeASave) {
  ReplicaTraining training(world(), {"--run.check_every=1"});
  EXPECT_EQ(error_of_step(training), "");
  EXPECT_NO_THROW(training.trainer.check_replicas());
  std::vector<float> bias = training.engine.router_bias();
  const std::vector<float> good = bias;
  bias[1] += 0.5f;
  if (world().rank() == 0) training.engine.set_router_bias(bias);
  const auto error = [&] {
    try {
      training.trainer.check_replicas();
    } catch (const CollectiveError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  if (world().size() == 1) return;
  EXPECT_NE(error().find("step 1: /router/bias "), std::string::npos) << error();
  training.engine.set_router_bias(good);
  EXPECT_EQ(error(), "");
  if (world().rank() == 0) training.trainer.set_progress(1, 9, training.trainer.tokens_done());
  EXPECT_NE(error().find("step 1: the number of steps, samples and tokens "), std::string::npos) << error();
}

// A state tensor of kv heads that two ranks hold. The weights are still equal.
TEST(Replicas, ChangedOptimizerStateOfSharedKvHeadsIsFound) {
  if (world().size() != 4) return;
  ReplicaTraining training(world(), {"--run.check_every=1", "--parallel.tp=4"});
  EXPECT_EQ(error_of_step(training), "");
  ParamStore& store = training.engine.store();
  bool changed = false;
  for (std::size_t g = 0; g < store.layout().groups.size(); ++g)
    for (const OwnedRange& range : owned_ranges(store.layout().groups[g]))
      if (world().rank() == 2 && !changed && range.slice->spec->name == "layers.0.attention.v.weight") {
        const float value = 7;
        store.set_state(g, 1, range.flat.begin - store.layout().groups[g].owned().begin, {&value, 1});
        changed = true;
      }
  const std::string error = error_of_step(training);
  EXPECT_NE(error.find("step 2: optimizer state v of layers.0.attention.v.weight differs between ranks 2, 3"),
            std::string::npos)
      << error;
}

// Changes owned tensors in turn, by one bit. No other rank holds the value.
TEST(MemoryDigests, FindEveryFlippedBitOfOwnedWeightsAndState) {
  for (std::vector<std::string> layout : {layouts().front(), layouts().back()})
    for (const char* optimizer : {"adamw", "sgd", "muon"})
      for (const char* dtype : {"f32", "bf16"}) {
        const std::string name = fmt::format("{} {} {} {}", layout[0], layout[1], optimizer, dtype);
        std::vector<std::string> settings = layout;
        settings.insert(settings.end(), {"--run.memory_check=digest", fmt::format("--train.optimizer={}", optimizer),
                                         fmt::format("--run.dtype={}", dtype), "--train.qk_clip=1"});
        ReplicaTraining training(world(), settings);
        ASSERT_EQ(error_of_step(training), "") << name;
        ParamStore& store = training.engine.store();
        const int rank = world().size() - 1;
        unsigned trial = 0;
        for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
          const GroupLayout& group = store.layout().groups[g];
          ParamStore::Buffers& buffers = store.buffers(g);
          // The ranks own different ranges, and each trial is collective.
          const std::vector<OwnedRange> ranges = owned_ranges(group);
          double trials = ranges.empty() ? 0 : 3;
          world().all_reduce(view_of(&trials, {1}), Reduce::max);
          for (Index t = 0; t < static_cast<Index>(trials); ++t) {
            std::string changed;
            std::byte* byte = nullptr;
            const std::byte bit{static_cast<unsigned char>(1u << trial % 8)};
            if (world().rank() == rank && !ranges.empty()) {
              const OwnedRange& range = ranges[static_cast<std::size_t>(t) * 5 % ranges.size()];
              std::vector<View> owned = {buffers.weights.view().rows(range.flat.begin, range.flat.size())};
              const Index at = range.flat.begin - group.owned().begin;
              for (const Tensor& state : buffers.state) owned.push_back(state.view().rows(at, range.flat.size()));
              if (buffers.master.view().present()) owned.push_back(buffers.master.view().rows(at, range.flat.size()));
              const View x = owned[trial % owned.size()];
              byte = x.bytes() + trial * 7919 % static_cast<unsigned>(x.size_bytes());
              *byte ^= bit;
              changed = range.slice->spec->name;
            }
            ++trial;
            std::string error;
            try {
              training.trainer.check_memory();
            } catch (const CollectiveError& e) {
              error = e.what();
            }
            double found = changed.empty() ? 0 : 1;
            if (!changed.empty()) {
              EXPECT_NE(
                  error.find(fmt::format("optimizer state of {} have changed in the memory of rank {}", changed, rank)),
                  std::string::npos)
                  << name << ": " << error;
            }
            world().all_reduce(view_of(&found, {1}), Reduce::max);
            EXPECT_EQ(error.empty(), found == 0) << name << ": " << error;
            if (byte) *byte ^= bit;
            EXPECT_NO_THROW(training.trainer.check_memory()) << name;
          }
        }
        EXPECT_EQ(error_of_step(training), "") << name << ": nothing has changed";
        bool flipped = false;
        for (std::size_t g = 0; g < store.layout().groups.size() && world().rank() == rank; ++g)
          for (const OwnedRange& range : owned_ranges(store.layout().groups[g])) {
            if (!std::exchange(flipped, true))
              *store.buffers(g).weights.view().rows(range.flat.begin, 1).bytes() ^= std::byte{1};
          }
        EXPECT_NE(error_of_step(training).find("step 3: weights or optimizer state of "), std::string::npos) << name;
      }
}

TEST(MemoryDigests, KeepTheResultOfTraining) {
  std::vector<double> losses[2];
  for (const int checks : {0, 1}) {
    ReplicaTraining training(world(), {checks ? "--run.memory_check=digest" : "--run.memory_check=off",
                                       "--train.spike_sigma=1", "--train.max_skipped=40"});
    Index skipped = 0;
    for (int step = 0; step < 20; ++step) {
      const StepResult result = training.trainer.step();
      losses[checks].push_back(result.metrics.loss);
      skipped += result.skipped;
      EXPECT_NO_THROW(training.trainer.check_memory());
    }
    EXPECT_GT(skipped, 0) << "digests of skipped steps are not tested";
  }
  EXPECT_EQ(losses[0], losses[1]);
}

// Counts the integers that a rank gets from the ranks of `group`. Has no other collectives.
class CountingComm : public Comm {
 public:
  explicit CountingComm(Comm& group) : Comm(group.shared_context()), group_(group) {}
  int size() const override { return group_.size(); }
  int rank() const override { return group_.rank(); }
  bool host_all_gather(std::span<const Index> mine, std::span<Index> all) override {
    gathered += std::ssize(all);
    return group_.host_all_gather(mine, all);
  }
  Index gathered = 0;

 private:
  std::unique_ptr<Comm> do_split(const std::function<int(int rank)>&) override { return {}; }
  void do_barrier() override {}
  Work do_broadcast(std::span<const RootedBuffer>, ComputePoint) override { return {}; }
  void do_all_reduce(View, Reduce) override {}
  Work do_reduce(std::span<const RootedBuffer>, ComputePoint) override { return {}; }
  void do_reduce_scatter(ConstView, View, View) override {}
  void do_all_gather(ConstView, View) override {}
  std::vector<std::string> do_gather(std::string_view, int) override { return {}; }
  Work do_all_to_all_v(std::span<const SendReceive>, std::span<const Index>, std::span<const Index>) override {
    return {};
  }

  Comm& group_;
};

TEST(Replicas, RanksThatAgreeExchangeOneChecksum) {
  CountingComm comm(world());
  std::vector<ReplicaDigest> own;
  for (int i = 0; i < 1000; ++i) own.push_back(replica_digest("a", &i, sizeof i));
  const auto gathered = [&] {
    comm.gathered = 0;
    const std::string difference = replica_difference(comm, world().rank(), own);
    EXPECT_EQ(difference.empty(), comm.gathered <= 2 * world().size()) << difference;
    return comm.gathered;
  };
  EXPECT_EQ(gathered(), 2 * world().size());
  if (world().rank() == 0) own[999] = replica_digest("a", "x", 1);
  EXPECT_EQ(gathered(), world().size() > 1 ? (2 + 2001) * world().size() : 2);
}

TEST(Replicas, MajorityNamesTheRanksThatDiffer) {
  const int rank = world().rank(), size = world().size();
  if (size < 4) return;
  const auto difference = [&](int value) {
    return replica_difference(world(), rank,
                              {replica_digest("a", &size, sizeof size), replica_digest("b", &value, sizeof value)});
  };
  EXPECT_EQ(difference(5), "");
  EXPECT_EQ(difference(rank == 1 ? 4 : 5), "b of rank 1 differs from that of ranks 0, 2, 3");
  EXPECT_EQ(difference(rank < 2 ? 4 : 5), "b differs between ranks 0-3");
}

}  // namespace
}  // namespace sy
