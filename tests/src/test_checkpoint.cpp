#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "dist/runtime.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/raw_hdf5.h"

namespace sy {
namespace {

using namespace test;

const Layout layouts[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {2, 1, 2, 1}, {2, 2, 1, 1},
                          {4, 2, 2, 1}, {4, 1, 2, 2}, {4, 4, 1, 1},  // more tp ranks than rows
                          {6, 2, 3, 1}, {6, 1, 3, 2}, {3, 1, 3, 1}, {6, 2, 1, 1}};

TEST(OwnedRanges, CoverEveryElementExactlyOnce) {
  const std::vector<ParamSpec> specs = odd_specs();
  for (const Layout& layout : layouts) {
    std::map<std::string, std::vector<int>> written;
    for (const ParamSpec& spec : specs) written[spec.name].assign(static_cast<std::size_t>(spec.shape.elements()), 0);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, rank));
      for (const OwnedRange& range : shard_ranges(flat, layout, coord_of(layout, rank))) {
        const ParamSlice& p = *range.slice;
        for (Index i = range.local.begin; i < range.local.end; ++i)
          ++written[p.spec->name]
                   [static_cast<std::size_t>(whole_index(p.spec->shape, p.box, i, p.spec->physical_to_logical))];
        // The boxes have the same elements in the same order.
        Index i = range.local.begin;
        for (const Box& box : global_boxes(p, range.local))
          for (Index k = 0; k < box.elements(); ++k, ++i)
            ASSERT_EQ(whole_index(p.spec->shape, box, k),
                      whole_index(p.spec->shape, p.box, i, p.spec->physical_to_logical))
                << p.spec->name;
        ASSERT_EQ(i, range.local.end);
      }
    }
    for (const auto& [name, counts] : written)
      for (int count : counts) ASSERT_EQ(count, 1) << name << " on " << layout.str();
  }
}

TEST(Checkpoint, ReadsEveryLayoutOnEveryOther) {
  const std::unique_ptr<Device> device = make_cpu();
  for (const Layout& writer : layouts) {
    const Folder run;
    const fs::path dir = write_as(run.path(), writer, 200);
    ASSERT_EQ(verify_checkpoint(dir), std::vector<std::string>{});
    for (const Layout& reader : layouts)
      for (int rank = 0; rank < reader.ranks; ++rank)
        for (bool training : {true, false}) {
          ParamStore store(*device, odd_specs(), reader, coord_of(reader, rank), training);
          load_checkpoint(dir, store);
          ASSERT_EQ(wrong_elements(store), 0) << writer.str() << " read by rank " << rank << " of " << reader.str();
        }
  }
}

// A rank opens the index and the shards that hold the ranges it owns, out of 1,024.
TEST(Checkpoint, IsReadByARankFromFewOfManyShards) {
  const auto spec = [](std::string name, Shape shape, Split split) {
    return ParamSpec{std::move(name), shape, split, {}, {}, false, {}, {}};
  };
  const std::vector<ParamSpec> specs = {
      spec("embedding.weight", {1031, 127}, {Axis::none, Axis::none}),
      spec("layers.0.attention.out.weight", {127, 254}, {Axis::none, Axis::tp}),
      spec("layers.0.moe.experts.down.weight", {6, 127, 67}, {Axis::ep, Axis::none, Axis::etp})};
  const Layout writers{1024, 2, 2, 1};
  const Folder run;
  const fs::path dir = write_as(run.path(), writers, example_state(1), specs);
  const std::unique_ptr<Device> device = make_cpu();
  struct Readers {
    Layout layout;
    std::uint64_t most_opened;  // by one rank: the index, and shards; some of them twice
  };
  for (const auto& [readers, most_opened] :
       {Readers{writers, 4}, Readers{{768, 1, 3, 1}, 32}, Readers{{32, 2, 2, 1}, 250}})
    for (const int rank : {0, 1, readers.ranks / 2, readers.ranks - 1}) {
      ParamStore store(*device, specs, readers, coord_of(readers, rank), true);
      const std::uint64_t before = file_activity().opened;
      load_checkpoint(dir, store, Load::all, WeightRanges::owned);
      EXPECT_LE(file_activity().opened - before, most_opened) << "rank " << rank << " of " << readers.str();
      for (std::size_t g = 0; g < store.layout().groups.size(); ++g)
        for (const OwnedRange& range : owned_ranges(store.layout().groups[g])) {
          const ParamSlice& p = *range.slice;
          for (Index i = range.local.begin; i < range.local.end; ++i) {
            const std::string name = params_prefix + p.spec->name;
            const Index whole = whole_index(p.spec->shape, p.box, i, p.spec->physical_to_logical);
            ASSERT_EQ(store.buffers(g).weights.view().f32()[p.offset + i], expected_value(name, whole)) << name;
          }
        }
    }
}

// A rank can load a checkpoint that lacks all other shards, and none that lacks one of these.
TEST(Checkpoint, NamesTheShardsThatItLoads) {
  const std::unique_ptr<Device> device = make_cpu();
  for (const Layout& writer : {Layout{4, 1, 1, 1}, Layout{4, 2, 2, 1}, Layout{4, 4, 1, 2}})
    for (const Layout& reader : {Layout{}, Layout{4, 1, 1, 1}, Layout{4, 2, 2, 1}, Layout{6, 1, 3, 1}})
      for (const bool training : {true, false}) {
        const WeightRanges ranges = training ? WeightRanges::owned : WeightRanges::local;
        const int rank = reader.ranks / 2;
        SCOPED_TRACE(fmt::format("{} read by rank {} of {}", writer.str(), rank, reader.str()));
        const Folder run;
        const fs::path dir = write_as(run.path(), writer, 1);
        ParamStore store(*device, odd_specs(), reader, coord_of(reader, rank), training);
        const std::set<std::string> needed = shards_to_load(store, Load::all, ranges)(dir);
        for (int r = 0; r < writer.ranks; ++r)
          if (!needed.contains(shard_name(r))) fs::remove(dir / shard_name(r));
        load_checkpoint(dir, store, Load::all, ranges);
        for (const std::string& name : needed) {
          fs::rename(dir / name, run.path() / "aside");
          EXPECT_TRUE(has(error_of([&] { load_checkpoint(dir, store, Load::all, ranges); }), name + " is missing"));
          fs::rename(run.path() / "aside", dir / name);
        }
      }
}

// A rank that has the metadata of a checkpoint opens neither its manifest nor its index.
TEST(Checkpoint, IsReadByItsMetadata) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {4, 2, 2, 1}, 200);
  const std::unique_ptr<Comm> world = make_comm_self();
  const CheckpointFolder folder(*world, dir);
  fs::remove(dir / manifest_name);
  fs::remove(dir / checkpoint_formats().front()->index_name());
  EXPECT_THROW(read_state(dir), InputError);
  const std::uint64_t before = file_activity().opened;
  EXPECT_EQ(read_state(folder).step, 200);
  check_parameters(folder, odd_specs());
  EXPECT_EQ(file_activity().opened, before);
  const std::unique_ptr<Device> device = make_cpu();
  for (const bool training : {true, false}) {  // without training, the index is open twice
    ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), training);
    load_checkpoint(folder, store);
    EXPECT_EQ(wrong_elements(store), 0);
  }
}

// An index of another size than in the manifest, and one that the manifest does not list.
TEST(Checkpoint, RefusesAHeadThatDoesNotFit) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {}, 200), index = dir / checkpoint_formats().front()->index_name();
  const std::unique_ptr<Comm> world = make_comm_self();
  fs::resize_file(index, fs::file_size(index) - 1);
  EXPECT_THROW(CheckpointFolder(*world, dir), CollectiveError);
  Manifest manifest = read_manifest(dir);
  std::erase_if(manifest.files, [&](const Manifest::File& file) { return file.name == index.filename(); });
  write_file(dir / manifest_name, to_text(manifest));
  EXPECT_THROW(CheckpointFolder(*world, dir), CollectiveError);
}

// Reads boxes at random positions and of random sizes. Shards split the tensor elsewhere.
TEST(Checkpoint, ReadsAnyBox) {
  std::uint64_t random = 1;
  const auto below = [&](Index n) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<Index>((random >> 33) % static_cast<std::uint64_t>(n));
  };
  for (const Layout& writer : layouts) {
    const Folder run;
    const OpenCheckpoint checkpoint = open_checkpoint(write_as(run.path(), writer, 200));
    for (const ParamSpec& spec : odd_specs()) {
      const std::string name = "/params/" + spec.name;
      for (int n = 0; n < 20; ++n) {
        Box box;
        for (Index size : spec.shape) {
          box.begin.push_back(below(size));
          box.size.push_back(1 + below(size - box.begin[box.size.size()]));
        }
        std::vector<float> values(static_cast<std::size_t>(box.elements()));
        checkpoint.reader->read(name, box, values.data());
        for (Index i = 0; i < box.elements(); ++i)
          ASSERT_EQ(values[static_cast<std::size_t>(i)], expected_value(name, whole_index(spec.shape, box, i)))
              << name << " from " << box.begin.str() << " of " << box.size.str() << " by " << writer.str();
      }
    }
  }
}

TEST(Checkpoint, DescribesTheLayoutOfParameters) {
  const Folder run;
  const Hdf5File index = Hdf5File::open(write_as(run.path(), {2, 1, 2, 1}, 200) / index_name);
  EXPECT_EQ(index.get("/params/layers.0.attention.q.weight", "dimensions", ""), Attribute("head, out, in"));
  EXPECT_TRUE(has(std::get<std::string>(index.get("/params/layers.0.attention.k.weight", "meaning", "")),
                  "row i of the rotated ones with row i + half"));
  EXPECT_FALSE(index.has("/params/layers.0.attention.v.weight", "meaning"));
  EXPECT_EQ(index.get("/params/layers.0.moe.experts.down.weight", "dimensions", ""), Attribute("expert, out, in"));
  const Config config =
      parse_config("[model]\nlayers = 2\nd_model = 8\nheads = 2\n[moe]\nexperts = 2\nfirst_dense = 1\n", "");
  const fs::path path = run.path() / index_name;
  write_index(written_format(), run.path(), example_state(1), param_specs(config, 67), Layout{});
  const Hdf5File whole_model = Hdf5File::open(path);
  for (const std::string& name : whole_model.datasets("/params"))
    EXPECT_EQ(whole_model.has(name, "dimensions"), name.ends_with(".weight") && !has(name, "norm")) << name;
  EXPECT_TRUE(
      has(std::get<std::string>(whole_model.get("/params/layers.0.mlp.up.weight", "meaning", "")), "[gate, linear]"));
  EXPECT_EQ(whole_model.get("/params/layers.1.moe.experts.up.weight", "dimensions", ""),
            Attribute("expert, half, out, in"));
}

TEST(Checkpoint, RestoresState) {
  const Folder run;
  const TrainState written = example_state(200), read = read_state(write_as(run.path(), {6, 2, 3, 1}, 200));
  EXPECT_EQ(read.step, 200);
  EXPECT_EQ(read.tokens, written.tokens);
  EXPECT_EQ(read.samples, written.samples);
  EXPECT_EQ(read.seed, written.seed);
  EXPECT_EQ(read.config, written.config);
  EXPECT_EQ(read.vocab, written.vocab);
  EXPECT_EQ(read.dataset, written.dataset);
  EXPECT_EQ(read.dataset_digest, written.dataset_digest);
  EXPECT_EQ(read.tokenizer, written.tokenizer);
  EXPECT_EQ(read.layout, (Layout{6, 2, 3, 1}).str());
  EXPECT_EQ(read.experts.layers, 2);
  EXPECT_EQ(read.experts.experts, 3);
  EXPECT_EQ(read.experts.layer_ids, written.experts.layer_ids);
  EXPECT_EQ(read.experts.steps, written.experts.steps);
  EXPECT_EQ(read.experts.routed, written.experts.routed);
  EXPECT_EQ(read.experts.dropped, written.experts.dropped);
  EXPECT_EQ(read.experts.probability, written.experts.probability);
  EXPECT_EQ(read.router_bias, written.router_bias);
}

TEST(Checkpoint, RestoresRunningAveragesOfBatchNorms) {
  const Folder run;
  TrainState state = example_state(200);
  EXPECT_TRUE(read_state(write_as(run.path(), {2}, state)).batch_norm_averages.empty());
  state.step = 201;
  state.batch_norms = 3;
  for (int i = 0; i < 3 * 2 * 5; ++i) state.batch_norm_averages.push_back(1e-3f * static_cast<float>(i * i));
  const fs::path dir = write_as(run.path(), {2}, state);
  const TrainState read = read_state(dir);
  EXPECT_EQ(read.batch_norms, 3);
  EXPECT_EQ(read.batch_norm_averages, state.batch_norm_averages);
  const CheckpointTensors tensors(dir);
  ASSERT_TRUE(tensors.find("/norm/averages"));
  EXPECT_EQ(tensors.find("/norm/averages")->shape, (Shape{3, 2, 5}));
}

// A mean may be negative, a variance not.
TEST(Checkpoint, RefusesImpossibleRunningAverages) {
  const Folder run;
  TrainState state = example_state(200);
  state.batch_norms = 2;
  state.batch_norm_averages = {-1, -2, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(read_state(write_as(run.path(), {1}, state)).batch_norm_averages, state.batch_norm_averages);
  for (const float wrong : {-0.5f, std::numeric_limits<float>::infinity()}) {
    state.step += 1;
    state.batch_norm_averages[3] = wrong;
    EXPECT_BAD_INPUT(read_state(write_as(run.path(), {1}, state)), "/norm/averages");
  }
}

TEST(Checkpoint, RestoresADenseModelAtStepZero) {
  const Folder run;
  SingleRank trainer;
  save_checkpoint(*trainer.world, run.path(), TrainState{}, trainer.store, {});
  const TrainState read = read_state(resolve_checkpoint(run.path(), nullptr));
  EXPECT_EQ(read.step, 0);
  EXPECT_EQ(read.config, "");
  EXPECT_EQ(read.experts.windows(), 0);
  EXPECT_EQ(read.experts.layers, 0);
  EXPECT_TRUE(read.experts.routed.empty());
  EXPECT_TRUE(read.router_bias.empty());
}

// The weights of a checkpoint of another optimizer load, but training cannot resume from it.
TEST(Checkpoint, RefusesTheStateOfAnotherOptimizer) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2}, 5);
  const std::unique_ptr<Device> device = make_cpu();
  std::vector<ParamSpec> specs = odd_specs();
  for (ParamSpec& spec : specs) spec.optimizer = parse_config("", "test", {"--train.optimizer=sgd"}).train.optimizer;
  ParamStore store(*device, specs, Layout{}, coord_of(Layout{}, 0), true);
  const std::string error = error_of([&] { load_checkpoint(dir, store); });
  EXPECT_TRUE(has(error, "2: " + dir.string() +
                             " is of another optimizer, as it lacks "
                             "/optimizer/momentum/embedding.weight: set train.optimizer"))
      << error;
  load_checkpoint(dir, store, Load::weights);
  EXPECT_EQ(store.get("layers.0.tiny").weight.f32()[0], expected_value("/params/layers.0.tiny", 0));
}

TEST(Checkpoint, ListsTensorsCompletelyAndInOrder) {
  const Folder run;
  const CheckpointTensors tensors(write_as(run.path(), {4, 2, 2, 1}, 200));
  std::vector<std::string> parameters;
  for (const TensorInfo& t : tensors.list())
    if (t.name.starts_with("/params/")) parameters.push_back(t.name.substr(8));
  const std::vector<ParamSpec> specs = odd_specs();
  ASSERT_EQ(parameters.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(parameters[i], specs[i].name);
    for (const TensorKind& kind : tensor_kinds(specs)) {
      const std::string name = kind.prefix + specs[i].name;
      ASSERT_TRUE(tensors.find(name));
      EXPECT_EQ(tensors.find(name)->shape, specs[i].shape);
      const Index n = specs[i].shape.elements(), begin = n / 3, end = n - n / 5;
      const std::vector<double> values = tensors.values(name, {begin, end});
      for (Index k = begin; k < end; ++k)
        ASSERT_EQ(values[static_cast<std::size_t>(k - begin)], expected_value(name, k)) << name << " " << k;
    }
  }
  ASSERT_TRUE(tensors.find("/experts/routed"));
  EXPECT_EQ(tensors.find("/experts/routed")->dtype, DType::i64);
  EXPECT_EQ(tensors.find("/experts/routed")->shape, (Shape{4, 2, 3}));
  EXPECT_EQ(tensors.values("/experts/steps", {0, 4}), (std::vector<double>{4, 9, 14, 19}));
  EXPECT_FALSE(tensors.find("/params/none"));

  const TensorStatistics s = statistics(tensors, "/experts/steps");
  EXPECT_EQ(s.min, 4);
  EXPECT_EQ(s.max, 19);
  EXPECT_DOUBLE_EQ(s.mean, 11.5);
  EXPECT_DOUBLE_EQ(s.rms, std::sqrt((16 + 81 + 196 + 361) / 4.0));
  EXPECT_EQ(s.nans, 0);
}

// Reads with the HDF5 library alone, like any other tool. If a shard is lost, exactly its elements
// are NaN.
TEST(Checkpoint, ReadsALostShardAsNaN) {
  const Layout layout{4, 2, 2, 1};
  const Folder run;
  const fs::path dir = write_as(run.path(), layout, 200);
  fs::remove(dir / shard_name(2));
  const std::vector<ParamSpec> specs = odd_specs();
  const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, 2));
  std::map<std::string, std::vector<bool>> lost;
  for (const ParamSpec& spec : specs) lost[spec.name].assign(static_cast<std::size_t>(spec.shape.elements()), false);
  Index number = 0;
  for (const OwnedRange& run_of_2 : shard_ranges(flat, layout, coord_of(layout, 2)))
    for (Index i = run_of_2.local.begin; i < run_of_2.local.end; ++i, ++number)
      lost[run_of_2.slice->spec->name][static_cast<std::size_t>(whole_index(
          run_of_2.slice->spec->shape, run_of_2.slice->box, i, run_of_2.slice->spec->physical_to_logical))] = true;
  ASSERT_GT(number, 100);
  for (const ParamSpec& spec : specs) {
    const std::string name = "/params/" + spec.name;
    const std::vector<float> values = raw_values(dir / index_name, name);
    ASSERT_EQ(values.size(), lost[spec.name].size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (lost[spec.name][i])
        ASSERT_TRUE(std::isnan(values[i])) << name << " " << i;
      else
        ASSERT_EQ(values[i], expected_value(name, static_cast<Index>(i))) << name << " " << i;
    }
  }

  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  EXPECT_TRUE(
      has(error_of([&] { load_checkpoint(dir, store); }), "2: " + (dir / shard_name(2)).string() + " is missing"));
  seal(dir, 200);  // this manifest does not name the shard
  for (const std::string& error : {error_of([&] { load_checkpoint(dir, store); }),
                                   error_of([&] { statistics(CheckpointTensors(dir), "/params/embedding.weight"); }),
                                   error_of([&] { diff_checkpoints(dir, dir); })})
    EXPECT_TRUE(has(error, "needs shard-00002.h5, which is not in its manifest")) << error;
}

TEST(Checkpoint, RejectsNonFiniteValues) {
  const Folder run;
  for (float value : {nan, infinity, -infinity}) {
    SingleRank trainer;
    trainer.store.get("layers.0.moe.router.weight").weight.f32()[77] = value;
    const fs::path dir = write_unchecked(trainer, run.path(), 5);
    const std::string error = error_of([&] { load_checkpoint(dir, trainer.store); });
    EXPECT_TRUE(has(error, "2: /params/layers.0.moe.router.weight of ")) << error;
    EXPECT_TRUE(has(error, "diverged")) << error;
    EXPECT_EQ(statistics(CheckpointTensors(dir), "/params/layers.0.moe.router.weight").nans, std::isnan(value));
    fs::remove_all(dir);
  }
}

TEST(Checkpoint, LoadsWeightsOnly) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {4, 2, 2, 1}, 200);
  const std::unique_ptr<Device> device = make_cpu();
  for (int rank = 0; rank < 2; ++rank) {
    ParamStore store(*device, odd_specs(), {2, 1, 2, 1}, coord_of({2, 1, 2, 1}, rank), true);
    load_checkpoint(dir, store, Load::weights);
    for_each_element(store, [&](const std::string& name, Index i, float* x) {
      ASSERT_EQ(*x, name.starts_with("/params/") ? expected_value(name, i) : 0.0f) << name;
    });
  }
}

TEST(Checkpoint, RejectsAnotherModel) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  const std::unique_ptr<Device> device = make_cpu();
  std::vector<ParamSpec> specs = odd_specs();
  specs[2].shape = {4, 3, 29};
  specs[6].name = "layers.0.moe.gate.weight";
  ParamStore store(*device, specs, Layout{}, coord_of(Layout{}, 0), false);
  const std::string error = error_of([&] { load_checkpoint(dir, store); });
  for (const char* text :
       {"2: ", "it has layers.0.attention.q.weight [6, 3, 29], this model has [4, 3, 29]",
        "it lacks layers.0.moe.gate.weight [6, 29]", "it has layers.0.moe.router.weight [6, 29], this model has none"})
    EXPECT_TRUE(has(error, text)) << error;
}

// ---- comparison ----

TEST(CheckpointDiff, FindsNoDifferenceBetweenLayouts) {
  const Folder a, b;
  const auto differences =
      diff_checkpoints(write_as(a.path(), {4, 2, 2, 1}, 200), write_as(b.path(), {6, 1, 3, 2}, 200));
  EXPECT_EQ(differences.size(), odd_specs().size() * 3 + 6);
  for (const TensorDifference& d : differences) {
    EXPECT_TRUE(d.bitwise_equal) << d.name;
    EXPECT_EQ(d.max_abs, 0) << d.name;
    EXPECT_EQ(d.note, "");
  }
}

TEST(CheckpointDiff, MeasuresDifferences) {
  const Folder a, b;
  SingleRank first, second;
  const auto weight = [](SingleRank& r, const char* name) { return r.store.get(name).weight.f32(); };
  weight(second, "embedding.weight")[1942] += 0.5f;
  weight(second, "embedding.weight")[3] -= 0.25f;
  weight(first, "layers.0.norm.weight")[4] = 0.0f;
  weight(second, "layers.0.norm.weight")[4] = -0.0f;
  weight(second, "layers.0.tiny")[0] = std::numeric_limits<float>::quiet_NaN();
  weight(second, "layers.10.norm.weight")[2] = std::numeric_limits<float>::infinity();
  first.save(a.path(), 5);
  TrainState state = example_state(5);
  state.experts.dropped[7] += 3;
  state.router_bias.clear();
  write_unchecked(second, b.path(), 5, state);
  std::map<std::string, TensorDifference> different;
  for (const TensorDifference& d :
       diff_checkpoints(resolve_checkpoint(a.path(), nullptr), resolve_checkpoint(b.path(), nullptr)))
    if (!d.bitwise_equal) different[d.name] = d;
  ASSERT_EQ(different.size(), 6u);
  EXPECT_NEAR(different["/params/embedding.weight"].max_abs, 0.5, 1e-4);
  EXPECT_EQ(different.at("/params/layers.0.norm.weight").max_abs, 0);
  EXPECT_TRUE(std::isnan(different.at("/params/layers.0.tiny").max_abs));
  EXPECT_TRUE(std::isinf(different.at("/params/layers.10.norm.weight").max_abs));
  EXPECT_EQ(different.at("/experts/dropped").max_abs, 3);
  EXPECT_EQ(different.at("/router/bias").note, "only in the first");
}

TEST(CheckpointDiff, ReportsDifferentShapes) {
  const Folder a, b;
  const fs::path first = write_as(a.path(), {1, 1, 1, 1}, 200);
  const std::unique_ptr<Device> device = make_cpu();
  std::vector<ParamSpec> specs = odd_specs();
  specs[1].shape = {4};
  specs[9].name = "layers.0.other";
  ParamStore store(*device, specs, Layout{}, coord_of(Layout{}, 0), true);
  fill(store);
  const auto world = make_comm_self();
  save_checkpoint(*world, b.path(), example_state(200), store, {});
  std::map<std::string, std::string> notes;
  for (const TensorDifference& d : diff_checkpoints(first, resolve_checkpoint(b.path(), nullptr)))
    if (!d.bitwise_equal) notes[d.name] = d.note;
  EXPECT_EQ(notes.size(), 9u);
  EXPECT_EQ(notes.at("/optimizer/v/layers.0.norm.weight"), "[5] against [4]");
  EXPECT_EQ(notes.at("/params/layers.0.tiny"), "only in the first");
  EXPECT_EQ(notes.at("/params/layers.0.other"), "only in the second");
}

}  // namespace
}  // namespace sy
