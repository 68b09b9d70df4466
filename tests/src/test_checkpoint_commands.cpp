#include <gtest/gtest.h>

#include "src/cli/options.h"
#include "src/text/json.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

using namespace test;

struct Result {
  int code;
  std::string out;
};
Result call(int (*command)(CommandLine&), std::vector<std::string> args) {
  const std::unique_ptr<Comm> world = make_comm_self();
  CommandLine line{*world, std::move(args)};
  testing::internal::CaptureStdout();
  int code = -1;
  const std::string error = error_of([&] { code = command(line); });
  std::string out = testing::internal::GetCapturedStdout();
  return error.empty() ? Result{code, out} : Result{error[0] - '0', error.substr(3)};
}
bool says(const Result& r, const std::string& text) {
  return r.out.find(text) != std::string::npos;
}

TEST(InspectCommand, ShowsTheContentsOfACheckpoint) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {4, 2, 2, 1}, 200);
  Result r = call(inspect_command, {run.path().string()});
  EXPECT_EQ(r.code, 0) << r.out;
  Index parameters = 0;
  for (const ParamSpec& spec : odd_specs()) parameters += spec.shape.elements();
  for (const std::string& text :
       {dir.string(), std::string("200 (200000 tokens, 2000 samples"), std::string("11 layers"),
        "parameters  " + std::to_string(parameters), Layout{4, 2, 2, 1}.str(), std::string("[6, 3, 29]"),
        std::string("/experts/routed"), std::string("4 windows of 2 MoE layers of 3 experts")})
    EXPECT_TRUE(says(r, text)) << text << " in\n" << r.out;
  EXPECT_FALSE(says(r, "/optimizer/"));
  EXPECT_FALSE(says(r, "rms"));
  EXPECT_TRUE(says(call(inspect_command, {dir.string(), "--all"}), "/optimizer/v/layers.0.tiny"));
  EXPECT_EQ(call(inspect_command, {dir.string(), "--config"}).out, example_state(200).config);

  r = call(inspect_command, {dir.string(), "--json", "--stats", "--all"});
  const Json json = Json::parse(r.out);
  EXPECT_EQ(json.at("step"), 200);
  EXPECT_EQ(json.at("seed"), 0xfedcba9876543210u);
  EXPECT_EQ(json.at("parameters"), parameters);
  EXPECT_EQ(json.at("tensors").size(), odd_specs().size() * 3 + 6);
  const Json& tensor = json.at("tensors").at(0);
  EXPECT_EQ(tensor.at("name"), "/experts/routed");
  for (const Json& t : json.at("tensors"))
    if (t.at("name") == "/params/layers.0.tiny") {
      const double value = expected_value("/params/layers.0.tiny", 0);
      EXPECT_EQ(t.at("shape"), Json::array({1}));
      EXPECT_EQ(t.at("bytes"), 4);
      EXPECT_EQ(t.at("min"), value);
      EXPECT_EQ(t.at("max"), value);
      EXPECT_EQ(t.at("mean"), value);
      EXPECT_DOUBLE_EQ(t.at("rms").get<double>(), std::abs(value));
      EXPECT_EQ(t.at("nan"), 0);
    }
}

TEST(InspectCommand, VerifiesDigests) {
  const Folder run;
  const fs::path older = write_as(run.path(), {2, 1, 1, 1}, 100), dir = write_as(run.path(), {2, 1, 1, 1}, 200);
  Result r = call(inspect_command, {dir.string(), "--verify"});
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, dir.string() + ": OK\n");
  fs::resize_file(dir / shard_name(1), 77);
  r = call(inspect_command, {dir.string(), "--verify"});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(says(r, (dir / shard_name(1)).string() + " has 77 bytes"));
  r = call(inspect_command, {run.path().string(), "--verify"});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(says(r, older.string() + ": OK\n"));
  r = call(inspect_command, {run.path().string(), "--verify", "--json"});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(Json::parse(r.out).at(0).at("whole"), false);
  EXPECT_EQ(Json::parse(r.out).at(1).at("whole"), true);
  r = call(inspect_command, {dir.string()});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(says(r, "shard-00001.h5 has 77 bytes")) << r.out;
}

// A configuration of a terabyte is compared with the files before memory is allocated.
TEST(GenerateCommand, RejectsAModelLargerThanItsFiles) {
  const std::string ini =
      "[model]\nlayers = 1\nd_model = 8192\nheads = 64\nd_ff = 8\n[moe]\nexperts = 1048576\nd_ff = 16\n";
  for (bool index_too : {false, true}) {
    const Folder run;
    const fs::path dir = write_as(run.path(), {1, 1, 1, 1}, 200);
    TrainState state = example_state(200);
    state.config = ini;
    const std::vector<ParamSpec> specs = index_too ? param_specs(parse_config(ini, "test"), state.vocab) : odd_specs();
    fs::remove(dir / index_name);
    write_index(written_format(), dir, state, specs, Layout{});
    seal(dir, 200);
    const Result r = call(generate_command, {dir.string(), "--prompt", "x", "--backend", "cpu"});
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(says(r, index_too ? "is smaller than its parameters" : "is of another model")) << r.out;
  }
}

TEST(DiffCommand, ReportsDifferencesAndExitCode) {
  const Folder a, b;
  const fs::path first = write_as(a.path(), {4, 2, 2, 1}, 200), second = write_as(b.path(), {2, 1, 1, 1}, 200);
  Result r = call(diff_command, {first.string(), b.path().string()});
  EXPECT_EQ(r.code, 0) << r.out;
  EXPECT_EQ(r.out, fmt::format("all {} tensors are bitwise equal\n", odd_specs().size() * 3 + 6));
  r = call(diff_command, {first.string(), second.string(), "--all"});
  EXPECT_EQ(r.code, 0);
  EXPECT_TRUE(says(r, "/params/embedding.weight")) << r.out;

  const std::unique_ptr<Device> device = make_cpu();
  const std::unique_ptr<Comm> world = make_comm_self();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  fill(store);
  store.get("layers.0.tiny").weight.f32()[0] += 0.5f;
  save_checkpoint(*world, b.path(), example_state(300), store, {});
  r = call(diff_command, {first.string(), b.path().string()});
  EXPECT_EQ(r.code, 1) << r.out;
  EXPECT_TRUE(says(r, "/params/layers.0.tiny") && says(r, "0.5") && says(r, "1 of ")) << r.out;
  EXPECT_FALSE(says(r, "/params/embedding.weight"));
  r = call(diff_command, {first.string(), b.path().string(), "--json"});
  EXPECT_EQ(r.code, 1);
  const Json json = Json::parse(r.out);
  EXPECT_EQ(json.at("equal"), false);
  EXPECT_EQ(json.at("different"), 1);
  EXPECT_EQ(json.at("tensors").at(0).at("max_abs"), 0.5);

  EXPECT_EQ(call(diff_command, {first.string()}).code, 2);
  EXPECT_EQ(call(diff_command, {first.string(), (b.path() / "none").string()}).code, 2);
  EXPECT_EQ(call(diff_command, {first.string(), second.string(), "--none"}).code, 2);
}

}  // namespace
}  // namespace sy
