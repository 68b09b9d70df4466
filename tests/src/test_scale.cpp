// The report of `switchyard scale` about the points that it measured.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "src/config.h"
#include "src/experiments/document.h"
#include "src/experiments/footnotes.h"
#include "src/experiments/scale.h"
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
  ScaleResult result{"model", false, {}, {"host", "avx2", "1", "0.1.0 abc", "launch/mpirun.sh"}};
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
  for (const char* heading : {"<h1>Scaling of model</h1>", "<h2>Speed-up</h2>", "<h2>Efficiency</h2>",
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
