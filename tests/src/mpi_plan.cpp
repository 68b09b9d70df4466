// A plan is compared with ranks that train: memory, bytes and calls of every collective, with the
// measured routing.
#include <gtest/gtest.h>

#include "dist/runtime.h"
#include "src/data/megatron.h"
#include "src/plan/plan.h"
#include "src/train/memory.h"
#include "src/train/trainer.h"
#include "tests/mpi_world.h"
#include "tests/src/temp_folder.h"
#include "tests/traffic.h"

namespace sy {
namespace {

using test::world;

constexpr const char* measured_model = R"(
[model]
layers = 4
d_model = 32
heads = 4
kv_heads = 2
seq_len = 64
d_ff = 48
[moe]
experts = 8
top_k = 2
first_dense = 1
shared_experts = 1
d_ff = 32
capacity_factor = 1.5
[train]
global_batch = 16
micro_batch = 4
)";
constexpr Index measured_vocab = 61;

Dataset some_text(const TempFolder& folder) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = measured_vocab;
  for (const char* split : {".train", ".valid"}) {
    IndexedWriter writer(folder.path() / (std::string("all") + split), description.vocab);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 2000; ++i) ids.push_back(static_cast<std::int32_t>((i * i + 3 * (i % 7)) % measured_vocab));
    writer.add(ids);
    writer.finish();
  }
  description.domains.push_back({"all", 1, 2000, 1, 2000});
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

struct Sent {
  double calls = 0, bytes = 0;
};
using SentBy = std::map<std::pair<std::string, Collective>, Sent>;

std::string shown(const SentBy& sent) {
  std::string text;
  for (const auto& [key, s] : sent)
    text += fmt::format("{} {}: {} bytes in {} calls\n", key.first, name_of(key.second), s.bytes, s.calls);
  return text;
}

TEST(PlanLayouts, MemoryAndTrafficMatchThePlan) {
  const TempFolder folder;
  const Dataset dataset = some_text(folder);
  const int n = world().size();
  int steps = 0;
  for (int tp : {1, 2, 4})
    for (int ep : {1, 2, 4})
      for (const std::vector<std::string>& settings : {std::vector<std::string>{},
                                                       {"--train.recompute=block", "--moe.aux_scope=global_batch"},
                                                       {"--train.recompute=attention"},
                                                       {"--train.recompute=experts"}}) {
        const Layout layout{n, tp, ep, 1};
        if (!layout.divides()) continue;
        // A step has one micro-batch, so that an expert receives all its tokens of the step at
        // once.
        std::vector<std::string> all_settings = settings;
        all_settings.push_back(fmt::format("--train.global_batch={}", 4 * layout.dp()));
        const Config config = parse_config(measured_model, "test", all_settings);
        const SampleStream samples(dataset, config.model.seq_len, 1);
        // The counters of the world never restart.
        const auto own = world().split([](int) { return 0; });
        Engine engine(config, measured_vocab, make_cpu(), make_mesh(*own, layout), true);
        engine.store().initialize(3);
        Trainer trainer(engine, samples);
        const Mesh& mesh = engine.mesh();
        const auto snapshot = [&] {
          SentBy all;
          for (const auto& [name, comm] : mesh.groups())
            for (int kind = 0; comm && kind < num_collectives; ++kind) {
              const Traffic& t = comm->traffic(static_cast<Collective>(kind));
              if (t.calls > 0)
                all[{std::string(name), static_cast<Collective>(kind)}] = {static_cast<double>(t.calls),
                                                                           static_cast<double>(t.bytes)};
            }
          return all;
        };
        // For each expert, the share of assignments that the ranks of the expert group accepted, by
        // layer.
        std::vector<std::vector<double>> shares(3, std::vector<double>(8));
        Index seen = 0;
        test::RoutedRows routed(mesh);
        engine.set_routing_hook([&](const RoutingView& r) {
          routed.count(r, mesh, 8);
          std::vector<double>& of = shares[seen++ % 3];
          for (Index a = 0; a < r.experts.elements(); ++a) of[r.experts.i32()[a]] += r.dispatch_mask.i32()[a];
        });
        const SentBy before = snapshot();
        trainer.step();
        agree_on_errors(*own, [] {});  // as after each step of a run
        own->max(0);
        SentBy measured = snapshot();
        for (const auto& [key, s] : before) {
          Sent& m = measured[key];
          m = {m.calls - s.calls, m.bytes - s.bytes};
          if (m.calls == 0) measured.erase(key);
        }
        for (std::vector<double>& layer : shares) {
          mesh.expert_group->all_reduce(view_of(layer.data(), {8}));
          for (double& x : layer) x /= static_cast<double>(mesh.expert_group->size() * 4 * 64 * 2 / tp);
        }

        const std::string where = layout.str() + (settings.empty() ? "" : settings[0]);
        const auto cpu = make_cpu();
        const Profiler profiler(config, measured_vocab, cpu.get());
        const Profile planned = profiler.loaded(layout, world().rank(), shares);
        EXPECT_EQ(engine.store().allocated_bytes(), planned.memory.parameters()) << where;
        const double activations = static_cast<double>(engine.saved().peak() + engine.scratch().peak());
        EXPECT_NEAR(static_cast<double>(planned.memory.activations()) / activations, 1, 0.05) << where;

        // The bytes of dispatch depend on the current routing. All other bytes are known exactly.
        SentBy expected;
        Workload work = planned.pass;
        work.add(planned.update);
        for (const auto& [key, times] : work.transfers) {
          Sent& s = expected[{std::string(key.first), key.second.kind}];
          s.calls += times;
          s.bytes += times * static_cast<double>(key.second.sent);
        }
        const std::pair<std::string, Collective> rows{"experts", Collective::all_to_all};
        ASSERT_EQ(expected.count(rows), measured.count(rows)) << where;
        if (expected.count(rows)) {
          EXPECT_EQ(expected[rows].calls, measured[rows].calls) << where;
          // In the plan all ranks send alike, so that P - 1 of P rows leave their rank. Together
          // with the rows that stay on their rank, the measured rows match the planned ones.
          const int P = mesh.expert_group->size();
          const double again =
              // Number of forward passes: each moves rows with physical experts and weights, k = 2
              // of each.
              config.train.recompute == Recompute::block ? 2 : 1;
          const double stayed = static_cast<double>(routed.tokens[mesh.expert_group->rank()]) *
                                (again * (2 * 4 * 32 + 8 * 2) + 2 * 4 * 32 + 4 * 2);
          const double there = world().sum(measured[rows].bytes + stayed),
                       thought = world().sum(expected[rows].bytes) * P / (P - 1);
          // The number of a token's experts on one rank depends on the router. The plan cannot know
          // it.
          EXPECT_NEAR(thought / there, 1, 0.1) << where;
          expected.erase(rows);
          measured.erase(rows);
        }
        EXPECT_EQ(shown(measured), shown(expected)) << where;
        ++steps;
      }
  EXPECT_GT(steps, 0);
}

std::string sharers(Index ranks) {
  return ranks == 1 ? "one rank of a host" : fmt::format("{} ranks of a host together", ranks);
}

std::string memory_error(const Config& config, const MemoryPlan& needs, const HostMemory& host) {
  try {
    check_host_memory(world(), config, needs, host);
  } catch (const CollectiveError& e) {
    return fmt::format("{}: {}", e.exit_code(), e.what());
  }
  return "";
}

// All ranks of this machine share its memory, so that their needs count together.
TEST(HostMemory, SumsTheRanksOfAMachine) {
  const Index ranks = world().size(), gb = 1'000'000'000;
  const bool first = world().rank() == 0;
  Config config;
  // Unequal ranks: the first needs 4 GB for training, and each other 1 GB.
  const MemoryPlan needs{.weights = first ? 2 * gb : gb, .optimizer = first ? 2 * gb : 0, .checkpoint_copy = 2 * gb};
  const Index training = (3 + ranks) * gb, all = training + 2 * ranks * gb;
  const auto error = [&](const MemoryPlan& plan, Index bytes) { return memory_error(config, plan, {.bytes = bytes}); };
  EXPECT_EQ(error(needs, all), "");
  EXPECT_EQ(error(needs, all - 1),
            fmt::format("2: the copies of a checkpoint need {}.0 GB on the {}, besides {}.0 GB "
                        "for training, and {}.0 GB are there: set run.async_checkpoint = false, or use more hosts",
                        2 * ranks, sharers(ranks), 3 + ranks, 3 + 3 * ranks));
  EXPECT_EQ(error({.weights = needs.weights, .optimizer = needs.optimizer}, training), "");
  EXPECT_EQ(error(needs, training - 1),
            fmt::format("2: training needs {}.0 GB on the {}, and {}.0 GB are there: use more "
                        "hosts, or a smaller model",
                        3 + ranks, sharers(ranks), 3 + ranks));
  // On GPUs only the copies are in the memory of the host.
  EXPECT_EQ(error({.checkpoint_copy = 2 * gb}, 2 * ranks * gb), "");
  EXPECT_NE(error({.checkpoint_copy = 2 * gb}, 2 * ranks * gb - 1), "");
}

// The ranks of a control group share its limit. A job has a group with one group in it for its
// first rank, and another one for the others.
TEST(HostMemory, SumsTheRanksOfAControlGroup) {
  const Index gb = 1'000'000'000, ranks = world().size(), others = ranks - 1;
  const bool first = world().rank() == 0;
  const Config config;
  const MemoryPlan needs{.weights = gb, .checkpoint_copy = 2 * gb};
  // A limit of -1 is none.
  const auto error = [&](Index limit_of_first, Index limit_of_others, Index limit_of_job) {
    HostMemory host{.bytes = 3 * ranks * gb};
    const Index limit = first ? limit_of_first : limit_of_others;
    if (limit >= 0) host.groups.push_back({first ? "1:2" : "1:3", limit});
    if (limit_of_job >= 0) host.groups.push_back({"1:1", limit_of_job});
    return memory_error(config, needs, host);
  };
  const auto no_training = [&](Index in_group, Index gigabytes) {
    return fmt::format(
        "2: training needs {}.0 GB on the {}, and {}.0 GB are allowed by the limit of their control "
        "group: raise this limit (Slurm: --mem), or use more hosts, or a smaller model",
        in_group, sharers(in_group), gigabytes);
  };
  const auto no_copies = [&](Index in_group, Index gigabytes) {
    return fmt::format(
        "2: the copies of a checkpoint need {}.0 GB on the {}, besides {}.0 GB for training, and {}.0 GB "
        "are allowed by the limit of their control group: set run.async_checkpoint = false, or raise "
        "this limit (Slurm: --mem), or use more hosts",
        2 * in_group, sharers(in_group), in_group, gigabytes);
  };
  EXPECT_EQ(error(-1, -1, -1), "");
  EXPECT_EQ(error(3 * gb, 3 * others * gb, 3 * ranks * gb), "");
  EXPECT_EQ(error(-1, 3 * others * gb, -1), "");
  EXPECT_EQ(error(2 * gb, -1, -1), no_copies(1, 2));
  EXPECT_EQ(error(0, -1, -1), no_training(1, 0));
  EXPECT_EQ(error(3 * gb, 3 * others * gb, ranks * gb), no_copies(ranks, ranks));
  EXPECT_EQ(error(-1, 3 * others * gb, (ranks - 1) * gb), no_training(ranks, ranks - 1));
  if (others == 0) return;
  EXPECT_EQ(error(3 * gb, 2 * others * gb, -1), no_copies(others, 2 * others));
  EXPECT_EQ(error(3 * gb, 0, 3 * ranks * gb), no_training(others, 0));
}

}  // namespace
}  // namespace sy
