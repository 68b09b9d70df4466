// The checkpoint in tests/fixtures/first-run stays readable forever. The first version that could
// write one wrote it. values.txt has the values that h5dump reads from it.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "src/cli/options.h"
#include "src/config.h"
#include "src/params/specs.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

const fs::path fixture = FIRST_RUN;  // the folder, from CMake
const fs::path step_dir = fixture / "run/checkpoints/step-00000020";

struct Expected {
  std::string name, shape;
  double first, last, sum, weighted_sum;
};

std::vector<Expected> recorded_values() {
  std::ifstream file(fixture / "values.txt");
  std::vector<Expected> rows;
  for (std::string line; std::getline(file, line);) {
    Expected e;
    std::istringstream fields(line);
    if (line[0] != '#' && fields >> e.name >> e.shape >> e.first >> e.last >> e.sum >> e.weighted_sum)
      rows.push_back(e);
  }
  return rows;
}

std::string commas(const Shape& shape) {
  std::string text;
  for (int d = 0; d < shape.size(); ++d) text += (d ? "," : "") + std::to_string(shape[d]);
  return text;
}

// values.txt has nine digits of each element, and twelve of the sums.
void expect_values(const Expected& e, const std::vector<double>& x) {
  ASSERT_FALSE(x.empty());
  double sum = 0, weighted = 0, size = 0, weighted_size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double weight = static_cast<double>(i + 1);
    sum += x[i], weighted += weight * x[i];
    size += std::abs(x[i]), weighted_size += weight * std::abs(x[i]);
  }
  EXPECT_NEAR(x.front(), e.first, 1e-8 * std::abs(e.first));
  EXPECT_NEAR(x.back(), e.last, 1e-8 * std::abs(e.last));
  EXPECT_NEAR(sum, e.sum, 1e-8 * size);
  EXPECT_NEAR(weighted, e.weighted_sum, 1e-8 * weighted_size);
}

TEST(FirstRun, HasTheRecordedTensors) {
  EXPECT_TRUE(verify_checkpoint(step_dir).empty());
  const CheckpointTensors tensors(step_dir);
  const std::vector<Expected> expected = recorded_values();
  ASSERT_EQ(expected.size(), 129);
  EXPECT_EQ(tensors.list().size(), expected.size());
  for (const Expected& e : expected) {
    SCOPED_TRACE(e.name);
    const TensorInfo* info = tensors.find(e.name);
    ASSERT_TRUE(info);
    EXPECT_EQ(commas(info->shape), e.shape);
    expect_values(e, tensors.values(e.name, {0, info->shape.elements()}));
  }
}

TEST(FirstRun, HasTheRecordedState) {
  const TrainState state = read_state(step_dir);
  EXPECT_EQ(state.step, 20);
  EXPECT_EQ(state.tokens, 1280);
  EXPECT_EQ(state.samples, 80);
  EXPECT_EQ(state.seed, 1);
  EXPECT_EQ(state.vocab, 257);
  EXPECT_EQ(state.dataset_digest, "");
  EXPECT_EQ(state.experts.steps, (std::vector<std::int64_t>{5, 10, 15, 20}));
  EXPECT_EQ(state.experts.layer_ids, (std::vector<std::int64_t>{1}));
  ASSERT_EQ(state.router_bias.size(), 6);
  EXPECT_FLOAT_EQ(state.router_bias.front(), 0.04f);
}

// Under any layout, the checkpoint holds exactly the parameters of its configuration.
TEST(FirstRun, FillsTheParametersOfEveryLayout) {
  const TrainState state = read_state(step_dir);
  const Config config = parse_config(state.config, "the fixture");
  const std::vector<ParamSpec> specs = param_specs(config, state.vocab);
  const std::unique_ptr<Device> device = make_cpu();
  for (const Layout& layout : {Layout{1, 1, 1, 1}, Layout{2, 2, 2, 1}, Layout{4, 2, 1, 2}, Layout{3, 1, 3, 1}}) {
    SCOPED_TRACE(layout.str());
    std::map<std::string, std::vector<double>> whole;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      ParamStore store(*device, specs, layout, coord_of(layout, rank), true);
      load_checkpoint(step_dir, store);
      test::for_each_element(store, [&](const std::string& name, Index i, float* x) {
        whole[name].resize(static_cast<std::size_t>(std::max(i + 1, static_cast<Index>(whole[name].size()))));
        whole[name][static_cast<std::size_t>(i)] = *x;
      });
    }
    for (const Expected& e : recorded_values()) {
      if (e.name[1] == 'e' || e.name[1] == 'r') continue;  // experts, router
      SCOPED_TRACE(e.name);
      ASSERT_TRUE(whole.count(e.name));
      expect_values(e, whole[e.name]);
    }
    EXPECT_EQ(whole.size() + 6, recorded_values().size());
  }
}

// A forged seq_len allocates no memory, because tables are as long as the computed texts.
TEST(FirstRun, AllocatesNothingForAForgedSequenceLength) {
  const test::Folder copy;
  fs::copy(step_dir, copy.path(), fs::copy_options::recursive);
  TrainState state = read_state(step_dir);
  const auto set = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(state.config.find(from), std::string::npos) << from;
    state.config.replace(state.config.find(from), from.size(), to);
  };
  set("seq_len = 16\n", "seq_len = 268435456\n");
  set("global_batch = 4\n", "global_batch = 1\n");
  set("micro_batch = 2\n", "micro_batch = 1\n");
  fs::remove(copy.path() / test::index_name);
  write_index(test::written_format(), copy.path(), state, param_specs(parse_config(state.config, "test"), state.vocab),
              {2, 2, 2, 1});
  test::seal(copy.path(), state.step);
  const auto peak = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss >> 10;  // MiB
  };
  const auto world = make_comm_self();
  const auto before = peak();
  const std::string folder = copy.path().string(), data = (fixture / "data").string();
  testing::internal::CaptureStdout();
  CommandLine evaluate{*world, {folder, "--data", data, "--backend", "cpu"}, nullptr};
  EXPECT_EQ(evaluate_command(evaluate), 0);
  CommandLine generate{
      *world, {folder, "--data", data, "--backend", "cpu", "--prompt", "wagon", "--tokens", "3"}, nullptr};
  EXPECT_EQ(generate_command(generate), 0);
  testing::internal::GetCapturedStdout();
  EXPECT_LT(peak() - before, 500);
}

}  // namespace
}  // namespace sy
