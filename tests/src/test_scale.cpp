// The report of `switchyard scale` about the points that it measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "src/config.h"
#include "src/experiments/document.h"
#include "src/experiments/scale_check.h"
#include "src/experiments/scale_report.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

ScalePoint measured(const Layout& layout, std::vector<double> seconds, bool balanced = false) {
  ScalePoint point{layout, 8, 8, balanced, {}};
  point.step_seconds = std::move(seconds);
  point.tokens = 1000;
  return point;
}

// A speed-up of 12 with four ranks, which is impossible. The other layout has nodes, and its times
// vary.
ScaleResult result() {
  ScaleResult result{
      .options = {}, .points = {}, .environment = {"host", "avx2", "1", "0.1.0 abc", "launch/mpirun.sh"}};
  result.options.config = "model.ini";
  result.options.ranks = {1, 4};
  result.config.train.global_batch = 8;
  result.points = {measured({1}, {2.456, 2.456, 2.456}), measured({4, 1, 4, 1}, {0.2, 0.2, 0.2}),
                   measured({4, 1, 4, 1, 2}, {0.9, 1.3, 1.1})};
  result.points[2].warnings = {"first doubt", "second doubt"};
  result.points[0].warnings = {"second doubt"};
  return result;
}

TEST(Scale, FormatsSecondsWithThreeDigits) {
  EXPECT_EQ(seconds_text(2.456), "2.46 s");
  EXPECT_EQ(seconds_text(1.2964), "1.30 s");
  EXPECT_EQ(seconds_text(12.34), "12.3 s");
  EXPECT_EQ(seconds_text(72.4), "72.4 s");
  EXPECT_EQ(seconds_text(123.4), "123 s");
  EXPECT_EQ(seconds_text(1234), "1234 s");
  EXPECT_EQ(seconds_text(0.99951), "1.00 s");
  EXPECT_EQ(seconds_text(0.8504), "850 ms");
  EXPECT_EQ(seconds_text(0.00851), "8.51 ms");
  EXPECT_EQ(seconds_text(not_known), "?");
  EXPECT_NE(scale_text(result()).find("2.46 s"), std::string::npos);
}

TEST(Scale, WritesCsvRowsWithUniqueKeys) {
  std::istringstream csv(scale_csv(result()));
  std::string line;
  std::getline(csv, line);
  EXPECT_TRUE(line.starts_with("ranks,tp,ep,etp,node,dp,")) << line;
  std::set<std::string> keys;
  while (std::getline(csv, line)) {
    std::size_t end = 0;
    for (int column = 0; column < 5; ++column) end = line.find(',', end) + 1;
    EXPECT_TRUE(keys.insert(line.substr(0, end)).second) << line;
  }
  EXPECT_EQ(keys, (std::set<std::string>{"1,1,1,1,1,", "4,1,4,1,1,", "4,1,4,1,2,"}));
  const Json json = scale_json(result());
  EXPECT_EQ(json.at("points").at(2).at("node").get<Index>(), 2);
  EXPECT_EQ(json.at("environment").at("instruction_set").get<std::string>(), "avx2");
}

// Names of the members of an object, each followed by a comma.
std::string fields_of(const Json& object) {
  std::string names;
  for (const Json::Member& m : object.members()) names += m.name + ",";
  return names;
}

TEST(Scale, WritesOriginsInJson) {
  ScaleResult r = result();
  r.points.push_back(measured({4, 2, 2, 1}, {}));
  r.points.back().failure = "no memory";
  r.points.back().breakdown.reset();
  r.points.front().breakdown.emplace();
  r.provenance = {{"program_version", "1.2.3"}, {"command", "switchyard scale"}};
  r.config = parse_config("[model]\nlayers = 3\n[train]\nlr = 0.25\n[data]\npath = 7\n", "test");
  const Json json = Json::parse(scale_json(r).dump());
  EXPECT_EQ(json["format"].get<std::string>(), "switchyard-scale");
  EXPECT_EQ(json["version"], Json(json_version));
  EXPECT_EQ(json["provenance"], r.provenance);
  // Each key has its own type.
  const Json& config = json["configuration"];
  EXPECT_TRUE(config["model"]["layers"].is_integer());
  EXPECT_EQ(config["train"]["lr"], Json(0.25));
  EXPECT_EQ(config["train"]["recompute"], Json("none"));
  EXPECT_EQ(config["model"]["tie_embeddings"], Json(false));
  EXPECT_EQ(config["data"]["path"], Json("7"));
  EXPECT_TRUE(json["machine"].is_null());
  // All rows have the same fields; null if a value is unknown.
  const Json& points = json["points"];
  for (const Json& point : points) EXPECT_EQ(fields_of(point), fields_of(points[0]));
  EXPECT_TRUE(points[3]["step_seconds"].is_null());
  EXPECT_TRUE(points[3]["parts"].is_null());
  EXPECT_EQ(points[3]["failure"], Json("no memory"));
  EXPECT_TRUE(points[0]["failure"].is_null());
  EXPECT_TRUE(points[0]["tokens_per_step"].is_integer());
}

TEST(Scale, PrintsWarningsAsFootnotes) {
  const ScaleResult r = result();
  const std::string text = scale_text(r);
  for (const char* row : {"tp 1 ep 1 etp 1 [1]", "tp 1 ep 4 etp 1 [2]", "tp 1 ep 4 etp 1 node 2 [1, 3, 4]",
                          "\nwarning [1] second doubt\n", "\nwarning [2] an efficiency above 110 %",
                          "\nwarning [3] first doubt\n", "\nwarning [4] the repeats spread by more than 20 %"})
    EXPECT_NE(text.find(row), std::string::npos) << row << "\n" << text;
  EXPECT_EQ(r.warnings(r.points[1]).size(), 1u);
  const Json json = scale_json(r);
  EXPECT_EQ(json.at("points").at(2).at("warnings").elements().size(), 3u);
  ScaleResult calm = r;
  calm.points = {measured({1}, {1, 1.1}), measured({4}, {0.25, 0.25})};
  EXPECT_EQ(scale_text(calm).find("warning"), std::string::npos);
}

TEST(Scale, CountsRowsOfEarlierCalls) {
  ScaleResult r = result();
  EXPECT_EQ(scale_text(r).find("earlier"), std::string::npos);
  r.points[2].requested = false;
  EXPECT_NE(scale_text(r).find("1 of the rows was measured by earlier calls"), std::string::npos);
}

// The ends of the heatmap's row names differ, and each picture has a heading.
TEST(Scale, LabelsPicturesAndRowsOfThePage) {
  ScaleResult r = result();
  r.points.push_back(measured({4, 1, 4, 1, 2}, {1, 1, 1}, true));
  for (ScalePoint& p : r.points) {
    p.breakdown.emplace();
    (*p.breakdown)[TimeCategory::compute] = 1;
  }
  r.provenance = {{"program_version", "1.2.3"}, {"command", "switchyard scale"}};
  const std::string html = scale_html(r);
  EXPECT_NE(html.find("<footer><p class=\"muted\">switchyard 1.2.3</p>"), std::string::npos);
  EXPECT_EQ(html.find("switchyard scale"), std::string::npos);
  EXPECT_NE(scale_html(r, ProvenanceDetail::full).find("switchyard scale"), std::string::npos);
  for (const char* heading : {"<h1>Scaling of model</h1>", "<h2>Strong scaling</h2>",
                              "<h2>Where the time of a step goes</h2>", "<h2>All layouts</h2>"})
    EXPECT_NE(html.find(heading), std::string::npos) << heading;
  EXPECT_NE(html.find("4 ranks, tp 1 ep 4 etp 1 node 2, balanced<"), std::string::npos);
  EXPECT_NE(html.find("<title>4 ranks, tp 1 ep 4 etp 1 node 2, balanced, compute: 100 %</title>"), std::string::npos);
  // A colour has the same meaning in both charts, also on small screens.
  for (const char* series : {"own-routing", "balanced-routing", "ideal"})
    EXPECT_GE(count(html, fmt::format("'var(--{}, #", series)), 2 * 2) << series;
  EXPECT_EQ(html.find("var(--line-"), std::string::npos);
  EXPECT_NE(html.find("Warning [1]: second doubt"), std::string::npos);
  EXPECT_EQ(html.find("gnuplot_plot_1</title>"), std::string::npos);
}

// Points of both kinds of scaling on two nodes of two ranks, with all figures by hand.
ScaleResult both_scalings() {
  ScaleResult r = result();
  r.options.weak = true;
  r.points = {measured({1}, {0.5, 0.4, 0.6, 0.45, 0.55, 0.5}),
              measured({2}, {0.25, 0.25, 0.26, 0.24, 0.3, 0.2}),
              measured({4}, {0.2, 0.1, 0.16, 0.15, 0.14, 0.15}),
              measured({2}, {0.6, 0.5}),
              measured({4}, {0.8}),
              measured({4, 1, 4, 1}, {0.125, 0.125, 0.125, 0.125, 0.125, 0.125}, true)};
  for (const std::size_t i : {3u, 4u}) {
    ScalePoint& p = r.points[i];
    p.global_batch = 8 * p.layout.ranks;
    p.tokens = 1000 * p.layout.ranks;
  }
  for (ScalePoint& p : r.points) p.nodes = p.layout.ranks == 4 ? 2 : 1;
  r.flops_per_token = 6e9;
  Machine machine;
  machine.name = "here";
  machine.shared = true;
  machine.peak_f32 = 40e12;
  r.options.peak = machine;
  return r;
}

TEST(Scale, ComputesSpeedsFlopsAndMfu) {
  ScaleResult r = both_scalings();
  const ScalePoint& four = r.points[2];  // median step 0.15 s, 1000 tokens
  EXPECT_DOUBLE_EQ(four.tokens_per_second(), 1000 / 0.15);
  EXPECT_DOUBLE_EQ(four.tokens_per_second_per_rank(), 1000 / 0.15 / 4);
  EXPECT_DOUBLE_EQ(four.tokens_per_second_per_node(), 1000 / 0.15 / 2);
  EXPECT_DOUBLE_EQ(r.tflops_per_second(four), 6e9 * 1000 / 0.15 / 1e12);  // 40
  EXPECT_DOUBLE_EQ(r.tflops_per_second_per_rank(four), 10);
  EXPECT_DOUBLE_EQ(r.mfu(four), 0.5);  // 40 of two nodes' 80
  EXPECT_EQ(r.base(Scaling::strong), &r.points[0]);
  EXPECT_EQ(r.base(Scaling::weak), &r.points[0]);
  EXPECT_DOUBLE_EQ(r.speedup(four), 0.5 / 0.15);
  EXPECT_DOUBLE_EQ(r.efficiency(four), 0.5 / 0.15 / 4);
  EXPECT_DOUBLE_EQ(r.efficiency(r.points[4]), 0.5 / 0.8);  // weak: four times the tokens
  // Speeds of each rank do not depend on the nodes.
  r.options.peak->shared = false;
  EXPECT_DOUBLE_EQ(r.mfu(four), 0.25);
  r.options.peak->backend = "cuda";
  EXPECT_EQ(r.mfu_problem(four),
            "here has the speed of cuda, and the runs compute on cpu: give the machine of the runs");
  EXPECT_TRUE(std::isnan(r.mfu(four)));
  r.options.peak->backend = "cpu";
  r.config.run.dtype = "bf16";
  EXPECT_TRUE(r.mfu_problem(four).starts_with("here has no compute.peak_bf16"));
  r.options.peak.reset();
  EXPECT_TRUE(r.mfu_problem(four).starts_with("give --machine or run.machine"));
  EXPECT_NE(scale_text(r).find("MFU is unknown: give --machine"), std::string::npos);
}

// Without a point on the fewest ranks, each kind of scaling has its own base.
TEST(Scale, HasABaseOfEachKindIfNoPointBelongsToBoth) {
  ScaleResult r = both_scalings();
  r.points[0].step_seconds.clear();
  EXPECT_EQ(r.base(Scaling::strong), &r.points[1]);
  EXPECT_EQ(r.base(Scaling::weak), &r.points[3]);
  EXPECT_DOUBLE_EQ(r.speedup(r.points[2]), 0.25 / 0.15);
  EXPECT_DOUBLE_EQ(r.efficiency(r.points[4]), 0.55 / 0.8);  // twice the tokens on twice the ranks
  EXPECT_EQ(scale_figures(r).size(), 4u);
  EXPECT_EQ(
      base_text(r),
      "The bases of speed-up and efficiency are tp 1 ep 1 etp 1 on 2 ranks, with 4000 tokens/s (strong scaling), and "
      "tp 1 ep 1 etp 1 on 2 ranks, with 3636 tokens/s (weak scaling): the fastest layouts with unforced routing on "
      "the fewest ranks.");
  const Json json = scale_json(r);
  EXPECT_TRUE(json.at("base").is_null());
  EXPECT_EQ(json.at("bases").at("weak").at("global_batch").get<Index>(), 16);
  const Json of_both = scale_json(both_scalings());
  EXPECT_EQ(of_both.at("base"), of_both.at("bases").at("weak"));
}

// The weak batch of 5 sequences on 4 ranks is 7.5 on 6 ranks, and 15 on 12.
TEST(Scale, LeavesOutWeakPointsWithoutAWholeBatch) {
  ScaleOptions options;
  options.ranks = {4, 6, 12};
  options.weak = true;
  const Config config = parse_config(
      "[model]\nlayers = 1\nd_model = 48\nheads = 12\nd_ff = 48\nseq_len = 24\n[train]\nglobal_batch = 5\nmicro_batch = 1\n",
      "test");
  const auto points = [&] {
    std::set<std::pair<int, Index>> found;  // ranks and batch
    for (const auto& [layout, batch] : scale_layouts(config, options).layouts) found.emplace(layout.ranks, batch);
    return found;
  };
  EXPECT_EQ(points(), (std::set<std::pair<int, Index>>{{4, 5}, {6, 5}, {12, 5}, {12, 15}}));
  EXPECT_EQ(
      scale_layouts(config, options).left_out,
      std::vector<std::string>{"weak scaling is not measured on 6 ranks: its batch, train.global_batch * 6 / 4 = 5 * 6 "
                               "/ 4, is no whole number"});
  options.strong = false;
  EXPECT_EQ(points(), (std::set<std::pair<int, Index>>{{4, 5}, {12, 15}}));
}

TEST(Scale, ComparesNodes) {
  ScaleResult r = both_scalings();
  r.options.by_nodes = true;
  EXPECT_EQ(r.base(Scaling::strong), &r.points[0]);  // it belongs to both kinds
  r.options.weak = false;
  EXPECT_EQ(r.base(Scaling::strong), &r.points[1]);  // the fastest on one node
  EXPECT_DOUBLE_EQ(r.efficiency(r.points[2]), 0.25 / 0.15 / 2);
  const auto figures = scale_figures(r);
  EXPECT_EQ(figures[0].chart.x_label, "nodes");
  EXPECT_EQ(figures[0].chart.lines[0].x, (std::vector<double>{1, 2}));
  EXPECT_NE(base_text(r).find("on 1 node, with 4000 tokens/s"), std::string::npos) << base_text(r);
  r.points[1].nodes = 0;  // unknown
  EXPECT_EQ(r.base(Scaling::strong), &r.points[0]);
  EXPECT_TRUE(std::isnan(r.efficiency(r.points[1])));
}

TEST(Scale, DrawsStrongAndWeakScalingWithIntervals) {
  const ScaleResult r = both_scalings();
  const auto figures = scale_figures(r);
  std::vector<std::string> names;
  for (const ScaleFigure& f : figures) names.push_back(f.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"strong-throughput", "strong-efficiency", "weak-throughput", "weak-efficiency"}));
  const LineChart& throughput = figures[0].chart;
  EXPECT_TRUE(throughput.log_x && throughput.log_y);
  const auto line = [](const LineChart& chart, Series series) {
    return *std::ranges::find_if(chart.lines, [&](const Line& l) { return l.series == series; });
  };
  const Line own = line(throughput, Series::own_routing);
  EXPECT_EQ(own.x, (std::vector<double>{1, 2, 4}));
  EXPECT_NEAR(own.y[2], 1000 / 0.15, 1e-9);
  EXPECT_NEAR(own.low[2], 1000 / 0.2, 1e-9);  // of 6 runs, the interval is the range
  EXPECT_NEAR(own.high[2], 1000 / 0.1, 1e-9);
  EXPECT_EQ(line(throughput, Series::ideal).y, (std::vector<double>{2000, 4000, 8000}));
  EXPECT_EQ(line(throughput, Series::balanced_routing).x, (std::vector<double>{4}));
  const Line weak = line(figures[3].chart, Series::own_routing);
  EXPECT_EQ(weak.x, (std::vector<double>{1, 2, 4}));
  EXPECT_NEAR(weak.y[1], 0.5 / 0.55, 1e-9);
  EXPECT_NEAR(weak.low[1], 0.5 / 0.6, 1e-9);
  EXPECT_TRUE(std::isnan(weak.low[2]));  // one run has no interval
  const std::string html = scale_html(r), text = scale_text(r);
  for (const char* heading : {"<h2>Strong scaling</h2>", "<h2>Weak scaling</h2>"})
    EXPECT_NE(html.find(heading), std::string::npos) << heading;
  EXPECT_NE(html.find("The base of speed-up and efficiency is tp 1 ep 1 etp 1 on 1 rank, with 2000 tokens/s"),
            std::string::npos)
      << base_text(r);
  EXPECT_TRUE(text.starts_with("model: strong and weak scaling, 1,000 tokens a step on 1 rank\n")) << text;
  EXPECT_NE(text.find("500 ms to 600 ms (50.0 %)"), std::string::npos) << text;
  EXPECT_NE(text.find("100 ms to 200 ms "), std::string::npos) << text;
  EXPECT_NE(text.find("One repeat has no interval"), std::string::npos) << text;
}

TEST(Scale, WritesFiguresForPapers) {
  const ScaleResult r = both_scalings();
  const auto files = scale_figure_files(r, {{"program_version", "1.2.3"}}, true);
  ASSERT_EQ(files.size(), 8u);
  EXPECT_EQ(files[0].first, "model-strong-throughput.tex");
  EXPECT_EQ(files[7].first, "model-weak-efficiency.svg");
  EXPECT_NE(files[0].second.find("% {\"program_version\":\"1.2.3\"}\n"), std::string::npos);
  EXPECT_TRUE(files[7].second.starts_with("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<svg "));
  EXPECT_NE(files[7].second.find("<title>Efficiency of the fastest layout of each number of ranks. The base of"),
            std::string::npos);
  EXPECT_NE(files[7].second.find("<metadata>{&quot;program_version"), std::string::npos);
  EXPECT_EQ(files[7].second.find("var(--"), std::string::npos);
  EXPECT_EQ(scale_figure_files(r, {}, false).size(), 4u);
}

TEST(Scale, SumsTheEnergyOfAToken) {
  ScaleResult r = both_scalings();
  ScalePoint& p = r.points[0];
  EXPECT_NE(scale_text(r).find("Energy is unknown: "), std::string::npos);
  EXPECT_TRUE(Json::parse(scale_json(r).dump()).at("points").at(0).at("joules_per_token").is_null());
  EXPECT_TRUE(scale_json(r).at("energy_problem").is_string());
  p.cpu_joules_per_token = {0.5, 0.75, 0.5};
  EXPECT_DOUBLE_EQ(p.joules_per_token(), 0.5);
  p.gpu_joules_per_token = {2};
  EXPECT_DOUBLE_EQ(p.joules_per_token(), 2.5);
  EXPECT_DOUBLE_EQ(scale_json(r).at("points").at(0).at("cpu_joules_per_token").get<double>(), 0.5);
  EXPECT_TRUE(scale_json(r).at("energy_problem").is_null());
  EXPECT_NE(scale_text(r).find("(RAPL) and of the GPUs (NVML), other programs included."), std::string::npos);
  p.cpu_joules_per_token.clear();
  EXPECT_DOUBLE_EQ(p.joules_per_token(), 2);
}

TEST(ScaleCheck, NamesPointsThatFell) {
  const ScaleResult before = both_scalings();
  const Json earlier = Json::parse(scale_json(before).dump());
  EXPECT_FALSE(compare_scale(earlier, before, "old.json", 0.1).fell());
  ScaleResult now = before;
  now.points[1].step_seconds = {0.25 / 0.9};    // by 10 %
  now.points[2].step_seconds = {0.15 / 0.901};  // by 9.9 %
  now.points[3].step_seconds.clear();           // its runs failed
  now.points.pop_back();
  now.points[0].reused = true;
  const ScaleComparison comparison = compare_scale(earlier, now, "old.json", 0.1);
  EXPECT_TRUE(comparison.fell());
  EXPECT_EQ(comparison_text(comparison),
            "check against old.json: 5 points compared, 2 fell by 10.0 % or more\n"
            "fell: tp 1 ep 1 etp 1 on 2 ranks, batch 8, own routing: 4000 tokens/s before, 3600 now, 10.0 % less\n"
            "fell: tp 1 ep 1 etp 1 on 2 ranks, batch 16, own routing: 3636 tokens/s before, failed now\n"
            "1 point of old.json is not in this result\n"
            "1 of the points was measured by an earlier call of this build: remove their runs to measure them again\n");
  EXPECT_EQ(comparison_json(comparison).at("points").at(1).at("fell"), Json(true));
  EXPECT_FALSE(compare_scale(earlier, now, "old.json", 0.5).points[1].fell);
  now.points = {measured({8}, {1})};
  EXPECT_THROW(compare_scale(earlier, now, "old.json", 0.1), InputError);
}

TEST(ScaleCheck, RefusesOtherEnvironmentsAndConfigurations) {
  ScaleResult r = both_scalings();
  r.config = parse_config("[model]\nlayers = 2\n[data]\npath = data\n[run]\nbackend = cpu\n", "test");
  const Json earlier = Json::parse(scale_json(r).dump());
  check_comparable(earlier, r, "old.json");
  r.environment.build = "another";
  r.config.run.dir = "elsewhere";
  r.config.log.csv = true;
  check_comparable(earlier, r, "old.json");
  const auto refused = [&](const ScaleResult& other, const std::string& difference) {
    const std::string message = MESSAGE_OF(InputError, check_comparable(earlier, other, "old.json"));
    EXPECT_TRUE(has(message, "old.json is of another environment or configuration (")) << message;
    EXPECT_TRUE(has(message, difference)) << message;
  };
  ScaleResult other = r;
  other.environment.threads = "7";
  refused(other, "threads: 7 here, 1 there");
  other = r;
  other.config.model.layers = 3;
  refused(other, "model.layers: 3 here, 2 there");
  other = r;
  other.config.run.backend = "cuda";
  refused(other, "run.backend: cuda here, cpu there");
}

TEST(ScaleCheck, RefusesOtherFiles) {
  const TempFolder folder;
  for (const char* text :
       {"nothing", "{}", "[1]", "{\"format\": \"switchyard-plan\"}", "{\"format\": \"switchyard-scale\"}",
        // a section of the configuration that is no object
        R"({"format": "switchyard-scale", "environment": {}, "configuration": {"model": 1}, "points": []})"})
    EXPECT_TRUE(has(MESSAGE_OF(InputError, read_scale_json(folder.write("x.json", text))), "cannot be compared with"))
        << text;
  Json document = Json::parse(scale_json(both_scalings()).dump());
  read_scale_json(folder.write("x.json", document.dump()));
  document["version"] = json_version + 1;
  EXPECT_BAD_INPUT(read_scale_json(folder.write("x.json", document.dump())),
                   "it has version 2 of the format, and this program reads versions up to 1");
}

TEST(Scale, GivesEachEnvironmentItsOwnFolder) {
  const Environment here = this_environment("");
  EXPECT_EQ(here.folder(), this_environment("").folder());
  EXPECT_TRUE(here.folder().starts_with(here.instruction_set + "-"));
  std::set<std::string> folders = {here.folder()};
  for (std::string Environment::*member : {&Environment::host, &Environment::instruction_set, &Environment::threads,
                                           &Environment::build, &Environment::launcher}) {
    Environment other = here;
    other.*member += "x";
    EXPECT_TRUE(folders.insert(other.folder()).second);
  }
  EXPECT_NE(this_environment("srun -n {ranks}").folder(), here.folder());
}

TEST(Footnotes, AreNumberedInRowOrder) {
  Footnotes notes;
  EXPECT_EQ(notes.marks({}), "");
  EXPECT_EQ(notes.marks({"b"}), " [1]");
  EXPECT_EQ(notes.marks({"a", "b", "a"}), " [1, 2]");
  EXPECT_EQ(notes.lines("- "), "- [1] b\n- [2] a\n");
}

}  // namespace
}  // namespace sy
