// LoRA: adapters, frozen weights, checkpoints that include them, and PEFT's format.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "src/config/lora_targets.h"
#include "src/evaluate/evaluate.h"
#include "src/families/export.h"
#include "src/families/import.h"
#include "src/families/peft.h"
#include "src/io/checkpoint.h"
#include "src/io/manifest.h"
#include "src/params/costs.h"
#include "src/params/lora.h"
#include "src/train/memory.h"
#include "src/train/trainer.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/golden_gradient.h"
#include "tests/src/golden_model.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

constexpr const char* small_model = R"(
[model]
layers = 2
d_model = 24
heads = 4
kv_heads = 2
seq_len = 20
d_ff = 40
vocab = 37
bias = all
[moe]
experts = 6
top_k = 2
first_dense = 1
d_ff = 18
capacity_factor = 0
[train]
steps = 20
global_batch = 8
micro_batch = 4
lr = 1e-2
min_lr = 1e-3
warmup = 2
)";

Config lora_config(std::vector<std::string> settings = {}, const char* text = small_model) {
  settings.insert(settings.begin(), "--train.lora_rank=3");
  return parse_config(text, "test", settings);
}

std::unique_ptr<Engine> lora_engine(Comm& self, const Config& config, bool training) {
  return std::make_unique<Engine>(config, 37, make_cpu(), make_mesh(self, Layout{}), training);
}

std::vector<float> lora_values(Engine& engine, const std::string& name) {
  const View w = engine.store().get(name).weight;
  std::vector<float> values(static_cast<std::size_t>(w.elements()));
  engine.device().to_host(w, values.data());
  return values;
}

std::map<std::string, std::vector<float>> all_lora_values(Engine& engine) {
  std::map<std::string, std::vector<float>> all;
  for (const ParamSpec& spec : engine.store().specs()) all[spec.name] = lora_values(engine, spec.name);
  return all;
}

TEST(Lora, TargetsAreTheMatricesOfLayers) {
  // Every matrix of a layer is a target, and every target is a matrix of some model.
  std::set<std::string> found;
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"--moe.shared_experts=1"},
        {"--model.kv_heads=0", "--model.kv_lora_rank=8", "--model.q_lora_rank=6", "--model.qk_rope_head_dim=4",
         "--model.bias=none", "--model.mtp_depth=1"}}) {
    const Config config = lora_config(settings);
    std::set<std::string> adapted;
    for (const ParamSpec& spec : param_specs(config, 37))
      if (spec.adapter) adapted.insert(spec.adapter->weight);
    for (const ParamSpec& spec : param_specs(config, 37)) {
      EXPECT_EQ(spec.frozen, !spec.adapter) << spec.name;
      if (!spec.matrix || spec.name.find("_projection") != spec.name.npos) continue;
      EXPECT_TRUE(adapted.contains(spec.name)) << spec.name;
      for (const LoraTarget& target : lora_targets())
        if (spec.name.find(fmt::format(".{}.", target.name)) != spec.name.npos) {
          EXPECT_TRUE(target.present(config)) << target.name;
          found.insert(target.name);
        }
    }
  }
  EXPECT_EQ(found.size(), lora_targets().size());
  const Config some = lora_config({"--train.lora_targets=attention.v, experts.down"});
  std::set<std::string> names;
  for (const ParamSpec& spec : param_specs(some, 37))
    if (spec.adapter) names.insert(spec.name);
  EXPECT_EQ(names, (std::set<std::string>{"layers.0.attention.v.lora_a", "layers.0.attention.v.lora_b",
                                          "layers.1.attention.v.lora_a", "layers.1.attention.v.lora_b",
                                          "layers.1.moe.experts.down.lora_a", "layers.1.moe.experts.down.lora_b"}));
}

TEST(Lora, RefusesOtherSettings) {
  const Config config = lora_config();
  EXPECT_EQ(config.train.lora_alpha, 3);
  EXPECT_EQ(config.train.lora_targets, "all");
  EXPECT_EQ(to_ini(parse_config(to_ini(config), "again")), to_ini(config));
  const auto alone = [](const std::string& setting) { return parse_config(small_model, "test", {setting}); };
  EXPECT_BAD_INPUT(alone("--train.lora_alpha=8"), "train.lora_alpha = 8 with train.lora_rank = 0: set train.lora_rank");
  EXPECT_BAD_INPUT(alone("--train.lora_targets=mlp"), "train.lora_targets = mlp with train.lora_rank = 0");
  EXPECT_BAD_INPUT(lora_config({"--train.lora_targets=attention, router"}),
                   "train.lora_targets has 'router': expected all, attention, mlp, experts, shared");
  EXPECT_BAD_INPUT(lora_config({"--train.lora_targets=shared"}),
                   "train.lora_targets has 'shared', which the model does not have");
  EXPECT_BAD_INPUT(lora_config({"--train.lora_targets=attention.q_down"}), "which the model does not have");
  EXPECT_BAD_INPUT(lora_config({"--moe.experts=0", "--moe.first_dense=0", "--train.lora_targets=experts.up"}),
                   "has 'experts.up', which the model does not have");
  EXPECT_BAD_INPUT(lora_config({"--train.lora_targets=,"}), "train.lora_targets has ''");
  EXPECT_BAD_INPUT(lora_config({"--train.optimizer=muon"}),
                   "train.optimizer = muon with train.lora_rank = 3: it does not update adapters");
  EXPECT_BAD_INPUT(lora_config({"--model.mup=true", "--model.mup_base_width=8"}),
                   "model.mup = true with train.lora_rank = 3");
  EXPECT_BAD_INPUT(lora_config({"--model.bias=none", "--train.qk_clip=5"}), "train.qk_clip = 5 with train.lora_rank");
}

// Memory and FLOPs by hand: an adapter of [out, in] has rank (out + in) elements.
TEST(Lora, FrozenWeightsHaveNoGradientsAndNoState) {
  constexpr const char* dense = "[model]\nlayers = 3\nd_model = 32\nheads = 4\nd_ff = 48\nvocab = 64\n";
  const Config config = lora_config({"--train.lora_targets=attention.q, mlp.down", "--run.dtype=bf16"}, dense);
  const Index adapters = 3 * 3 * (32 + 32 + 32 + 48);
  const ParamCount count = count_params(config, 64), full = count_params(without_lora(config), 64);
  EXPECT_EQ(count.trained, adapters);
  EXPECT_EQ(count.total, full.total + adapters);
  EXPECT_EQ(full.trained, full.total);
  EXPECT_DOUBLE_EQ(model_costs(config, 64).flops_per_token - 4 * static_cast<double>(count.products),
                   model_costs(without_lora(config), 64).flops_per_token - 6 * static_cast<double>(full.products));
  const MemoryPlan plan = plan_parameters(param_specs(config, 64), DType::bf16, Layout{}, 0);
  // Each of the 12 matrices is padded to 64 elements. The norms share the memory of one vector.
  const Index padded = adapters + 3 * 4 * 64;
  EXPECT_GE(plan.optimizer, 12 * adapters);
  EXPECT_LE(plan.optimizer, 12 * padded);
  EXPECT_GE(plan.gradients, 4 * (adapters + 32));
  EXPECT_LE(plan.gradients, 4 * (padded + 32));
  EXPECT_GE(plan.weights, 2 * count.total);
}

TEST(Lora, InitialAdaptersChangeNothing) {
  const auto self = make_comm_self();
  const Config config = lora_config({"--train.lora_alpha=9"});
  const auto lora = lora_engine(*self, config, true), plain = lora_engine(*self, without_lora(config), true);
  lora->store().initialize(7);
  plain->store().initialize(7);
  double most = 0;
  for (const ParamSpec& spec : lora->store().specs()) {
    const std::vector<float> values = lora_values(*lora, spec.name);
    if (!spec.adapter) {
      EXPECT_EQ(values, lora_values(*plain, spec.name)) << spec.name;
      continue;
    }
    if (spec.name.ends_with(".lora_b")) {
      EXPECT_EQ(values, std::vector<float>(values.size())) << spec.name;
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(spec.shape.elements(spec.shape.size() - 1)));
    if (spec.name.find(".out.") == spec.name.npos)
      for (const float x : values) most = std::max(most, std::abs(x) / bound);
  }
  EXPECT_LE(most, 1 + 1e-6);
  EXPECT_GE(most, 0.99);
}

// Trains adapters, and returns the trainer's engine after some steps.
struct LoraRun {
  LoraRun(Comm& self, const Dataset& dataset, const Config& config)
      : engine(lora_engine(self, config, true)),
        samples(dataset, config.model.seq_len, config.train.seed, config.data),
        trainer(*engine, samples) {
    engine->store().initialize(5);
  }
  std::unique_ptr<Engine> engine;
  SampleStream samples;
  Trainer trainer;
};

TrainState lora_state(const Config& config, Trainer& trainer) {
  TrainState state;
  state.step = trainer.steps_done();
  state.samples = trainer.samples_done();
  state.tokens = trainer.tokens_done();
  state.config = to_ini(config);
  state.vocab = 37;
  return state;
}

// A rank that reads merged weights reads adapters from other shards than the weights.
TEST(Lora, NamesTheShardsOfMergedAdapters) {
  const Config config = lora_config();
  TrainState state = test::example_state(1);
  state.config = to_ini(config);
  const Layout layout{4};
  const std::unique_ptr<Device> device = make_cpu();
  std::size_t shards = 0, without_adapters = 0;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const TempFolder folder;
    const fs::path step = test::write_as(folder.path(), layout, state, param_specs(config, 37));
    ParamStore store(*device, param_specs(without_lora(config), 37), layout, coord_of(layout, rank), false);
    const std::set<std::string> needed = shards_to_load(store, Load::all, WeightRanges::owned)(step);
    for (int r = 0; r < layout.ranks; ++r)
      if (!needed.contains(test::shard_name(r))) fs::remove(step / test::shard_name(r));
    load_checkpoint(step, store, Load::all, WeightRanges::owned);
    shards += needed.size();
    std::set<std::string> of_weights;
    const OpenCheckpoint checkpoint = open_checkpoint(step);
    for (const GroupLayout& group : store.layout().groups)
      for (const OwnedRange& range : owned_ranges(group))
        for (const Box& box : global_boxes(*range.slice, range.local))
          checkpoint.reader->add_files(params_prefix + range.slice->spec->name, box, of_weights);
    without_adapters += of_weights.size();
  }
  EXPECT_GT(shards, without_adapters);
}

TEST(Lora, TrainsAdaptersAloneAndResumes) {
  const TempFolder data, folder;
  const Dataset dataset = test::make_dataset(data);
  const auto self = make_comm_self();
  const Config config = lora_config({"--train.lora_alpha=6", "--model.qk_norm=head"});
  LoraRun run(*self, dataset, config);
  const auto before = all_lora_values(*run.engine);
  const double first = run.trainer.step().metrics.loss;
  for (int i = 0; i < 3; ++i) run.trainer.step();
  const auto after = all_lora_values(*run.engine);
  for (const ParamSpec& spec : run.engine->store().specs())
    EXPECT_EQ(before.at(spec.name) == after.at(spec.name), !spec.adapter) << spec.name;
  save_checkpoint(*self, folder.path(), lora_state(config, run.trainer), run.engine->store(), {});
  const fs::path step = resolve_checkpoint(folder.path(), nullptr);

  // The weights that other commands read include the adapters.
  const auto merged = lora_engine(*self, config, false);
  load_checkpoint(step, merged->store());
  const EvaluateOptions options{.windows_per_pass = 4, .max_windows = 8};
  const double trained = total_of(evaluate(*run.engine, dataset, options, [](Index, Index) {})).loss(),
               loaded = total_of(evaluate(*merged, dataset, options, [](Index, Index) {})).loss();
  EXPECT_NEAR(trained, loaded, 1e-5 * trained);
  run.engine->take_statistics();

  // A new run starts from the same weights, with new adapters.
  LoraRun again(*self, dataset, config);
  again.engine->store().initialize(11);
  const auto fresh = all_lora_values(*again.engine);
  load_checkpoint(step, again.engine->store(), Load::weights);
  for (const ParamSpec& spec : again.engine->store().specs()) {
    const std::vector<float> values = lora_values(*again.engine, spec.name);
    EXPECT_EQ(values, spec.adapter ? fresh.at(spec.name) : lora_values(*merged, spec.name)) << spec.name;
  }

  // A resumed run takes the same steps.
  LoraRun resumed(*self, dataset, config);
  load_checkpoint(step, resumed.engine->store());
  resumed.trainer.set_progress(run.trainer.steps_done(), run.trainer.samples_done(), run.trainer.tokens_done());
  EXPECT_EQ(all_lora_values(*resumed.engine), after);
  double last = 0;
  for (int i = 0; i < 6; ++i) {
    last = run.trainer.step().metrics.loss;
    EXPECT_EQ(resumed.trainer.step().metrics.loss, last) << i;
  }
  EXPECT_EQ(all_lora_values(*resumed.engine), all_lora_values(*run.engine));
  EXPECT_LT(last, first);

  // A full training cannot resume it, and another rank is refused.
  const auto full = lora_engine(*self, without_lora(config), true);
  EXPECT_BAD_INPUT(load_checkpoint(step, full->store()), "this model has none");
  EXPECT_NO_THROW(load_checkpoint(step, full->store(), Load::weights));
  const auto other = lora_engine(*self, lora_config({"--train.lora_rank=2", "--model.qk_norm=head"}), true);
  EXPECT_BAD_INPUT(load_checkpoint(step, other->store()), "lora_a");
}

TEST(Lora, Bf16WeightsStayAndAdaptersLearn) {
  const TempFolder data, folder;
  const Dataset dataset = test::make_dataset(data);
  const auto self = make_comm_self();
  const Config config =
      lora_config({"--run.dtype=bf16", "--train.recompute=experts", "--train.lr=2e-2", "--train.lora_alpha=12"});
  LoraRun run(*self, dataset, config);
  const double first = run.trainer.step().metrics.loss;
  double last = 0;
  for (int i = 0; i < 15; ++i) last = run.trainer.step().metrics.loss;
  EXPECT_LT(last, first - 0.05);
  save_checkpoint(*self, folder.path(), lora_state(config, run.trainer), run.engine->store(), {});
  LoraRun resumed(*self, dataset, config);
  load_checkpoint(resolve_checkpoint(folder.path(), nullptr), resumed.engine->store());
  resumed.trainer.set_progress(run.trainer.steps_done(), run.trainer.samples_done(), run.trainer.tokens_done());
  EXPECT_EQ(resumed.trainer.step().metrics.loss, run.trainer.step().metrics.loss);
}

// ---- PEFT ----

// Sets or reads the adapters of the engine by the names of PEFT.
template <class F>
void for_golden_adapters(Engine& engine, const FamilyModel& model, const FamilyValues& values, F f) {
  FamilyTensors tensors;
  tensors.tensors = values.tensors();
  Config config = engine.config();
  config.model.vocab = model.vocab;
  for (const PeftModule& module : peft_modules(tensors, values.params(), config)) {
    const std::string& weight = values.params()[module.param].name;
    const Param params[] = {engine.store().get(lora_name(weight, LoraMatrix::a)),
                            engine.store().get(lora_name(weight, LoraMatrix::b))};
    const Index rank = config.train.lora_rank;
    std::vector<std::pair<Index, Index>> elements[2];
    for_peft_elements(module, rank, [&](bool is_b, Index i, Index j) { elements[is_b].emplace_back(i, j); });
    for (const int b : {0, 1}) f(module.name + (b ? ".lora_B.weight" : ".lora_A.weight"), params[b], elements[b]);
  }
}

struct GoldenLora {
  FamilyModel model;
  std::unique_ptr<FamilyValues> values;
  std::unique_ptr<Engine> engine;
};

GoldenLora golden_lora(Comm& self, const Json& golden, const fs::path& folder) {
  GoldenLora out;
  write_model(folder, golden);
  out.model = open_family_model(
      folder, {"--moe.aux_loss=0", "--moe.z_loss=0", fmt::format("--train.lora_rank={}", golden["rank"].get<Index>()),
               fmt::format("--train.lora_alpha={}", golden["alpha"].get<Index>()),
               "--train.lora_targets=" + golden["targets"].get<std::string>()});
  FamilyModel base = out.model;
  base.config = without_lora(base.config);
  out.values = std::make_unique<FamilyValues>(folder, base);
  out.engine = std::make_unique<Engine>(out.model.config, out.model.vocab, make_cpu(), make_mesh(self, Layout{}), true);
  out.engine->store().fill(*out.values, [](const ParamSpec& spec) { return !spec.adapter; });
  for_golden_adapters(*out.engine, out.model, *out.values,
                      [](const std::string& name, const Param& param, const auto& elements) {
                        for (const auto& [i, j] : elements)
                          param.weight.f32()[i] = golden_value(name, static_cast<std::uint32_t>(j));
                      });
  return out;
}

class LoraGolden : public testing::TestWithParam<int> {};

TEST_P(LoraGolden, GradientsAndLogitsEqualPeftAndPyTorch) {
  const Json golden = Json::parse(read_file(std::string(GOLDEN) + "/lora.json"))[static_cast<std::size_t>(GetParam())];
  const TempFolder temp;
  const auto self = make_comm_self();
  const GoldenLora lora = golden_lora(*self, golden, temp.path() / "model");
  Engine& engine = *lora.engine;
  std::vector<std::int32_t> ids, targets;
  for (const auto& [key, list] : {std::pair{"ids", &ids}, {"target_ids", &targets}})
    for (const Json& row : golden[key].elements())
      for (const Json& id : row.elements()) list->push_back(static_cast<std::int32_t>(id.get<std::int64_t>()));
  const Index T = std::ssize(ids), B = std::ssize(golden["ids"].elements());
  engine.forward_backward({B, T / B, ids, targets, T, B, 1});
  const double loss = golden["loss"].get<double>();
  EXPECT_NEAR(engine.take_statistics().loss_sum / static_cast<double>(T), loss, 1e-5 * loss);
  std::size_t compared = 0;
  for_golden_adapters(engine, lora.model, *lora.values,
                      [&](const std::string& name, const Param& param, const auto& elements) {
                        std::vector<float> gradient(elements.size());
                        for (const auto& [i, j] : elements) gradient[static_cast<std::size_t>(j)] = param.grad.f32()[i];
                        expect_golden_gradient(name, gradient, golden["gradients"][name].get<std::vector<double>>(),
                                               false, {.relative = 3e-5});
                        ++compared;
                      });
  EXPECT_EQ(compared, golden["gradients"].members().size());

  // A checkpoint of the run has the same logits, once its adapters are added to the weights.
  TrainState state;
  state.config = to_ini(lora.model.config);
  state.vocab = lora.model.vocab;
  save_checkpoint(*self, temp.path() / "run", state, engine.store(), {});
  const fs::path step = resolve_checkpoint(temp.path() / "run", nullptr);
  Engine merged(lora.model.config, lora.model.vocab, make_cpu(), make_mesh(*self, Layout{}), false);
  load_checkpoint(step, merged.store());
  for (Index b = 0; b < B; ++b) {
    Cache cache = merged.make_cache(1, T / B, T / B);
    const std::vector<float> logits =
        merged.decode(cache, 0, 1, std::span(ids).subspan(static_cast<std::size_t>(b * (T / B)), T / B), true);
    const auto want = golden["logits"][static_cast<std::size_t>(b)].get<std::vector<double>>();
    ASSERT_EQ(logits.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(logits[i], want[i], 2e-4) << i;
  }

  // PEFT's files have the adapters of attention and dense FFNs.
  ExportOptions options;
  options.adapter = true;
  const auto write = [&] {
    export_checkpoint(*self, step, read_state(step), lora.model.config, temp.path() / "peft", options,
                      [](Index, Index) {});
  };
  if (lora.model.config.moe.experts > 0) {
    try {
      write();
      ADD_FAILURE() << "did not throw";
    } catch (const CollectiveError& error) {
      EXPECT_NE(std::string_view(error.what()).find("PEFT has no format for those of experts"), std::string_view::npos);
    }
    return;
  }
  write();
  make_folders(temp.path() / "read");
  fs::copy_file(temp.path() / "peft" / "adapter_model.safetensors", temp.path() / "read" / "model.safetensors");
  const StoredTensors written(temp.path() / "read");
  EXPECT_EQ(written.size(), golden["gradients"].members().size());
  for (const Json::Member& m : golden["gradients"].members()) {
    const StoredTensor* tensor = written.find("base_model.model." + m.name);
    ASSERT_TRUE(tensor) << m.name;
    EXPECT_EQ(tensor->type, "F32");
    for (Index i = 0; i < tensor->bytes / 4; ++i) {
      float value = 0;
      std::memcpy(&value, tensor->data + 4 * i, 4);
      ASSERT_EQ(value, golden_value(m.name, static_cast<std::uint32_t>(i))) << m.name;
    }
  }
  const Json config = Json::parse(read_file(temp.path() / "peft" / "adapter_config.json"));
  EXPECT_EQ(config["r"], golden["rank"]);
  EXPECT_EQ(config["lora_alpha"].get<double>(), golden["alpha"].get<double>());
  EXPECT_EQ(config["target_modules"].get<std::vector<std::string>>(),
            (std::vector<std::string>{"down_proj", "gate_proj", "o_proj", "q_proj", "up_proj", "v_proj"}));
}

INSTANTIATE_TEST_SUITE_P(Cases, LoraGolden, testing::Values(0, 1));

}  // namespace
}  // namespace sy
