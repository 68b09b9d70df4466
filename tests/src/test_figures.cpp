#include "src/analyse/figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <fstream>

#include "src/analyse/report.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/src/checkpoint_fixture.h"

namespace sy {
namespace {

Section example_section() {
  const Dimension layers = numbered_dimension("layer", std::vector<std::int64_t>{1, 3});
  Section s{"demo", "A demonstration", "Of all forms.", {}, {}};
  s.figures.push_back({"rate", "rate", "share", "What is lost.", {layers}, {0.5, NAN}});
  s.figures.push_back({"gain", "gain", "nats", "What is won.", {layers}, {1.25, -2}});
  s.figures.push_back({"table",
                       "a table",
                       "count",
                       "Counts <by> both.",
                       {layers, {"domain", {"a,b", "c\"d"}}},
                       {1, 2, 3, 4},
                       Look::change});
  s.figures.push_back({"cube",
                       "a cube",
                       "share",
                       "Thrice.",
                       {layers, counted_dimension("expert", 2), counted_dimension("next", 3)},
                       {0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1, .5},
                       Look::relative,
                       0.25});
  s.listings.push_back({"words", "Words", "Read them.", {"token", "count"}, {{"x\x1b", 12345}, {"y", Json()}}, 0});
  return s;
}

TEST(Figures, PrintTables) {
  const std::string text = sections_text(std::vector{example_section()});
  EXPECT_TRUE(has(text, "layer    rate  gain\n")) << text;
  EXPECT_TRUE(has(text, "1  50.0 %  1.25\n"));
  EXPECT_TRUE(has(text, "3       -    -2\n"));
  EXPECT_TRUE(has(text, "a table (by layer and domain)"));
  EXPECT_TRUE(has(text, "12,345") && !has(text, "\x1b"));
  EXPECT_TRUE(has(text, "In the page and the files: a cube"));
}

TEST(Figures, FormatNumbersByUnit) {
  const auto text = [](const char* unit, double value) { return figure_text({"", "", unit, "", {}, {}}, value); };
  EXPECT_EQ(text("ratio", 1.23456), "1.235");
  EXPECT_EQ(text("ratio", 2), "2.000");
  EXPECT_EQ(text("nats per token", -0.00001), "0.0000");
  EXPECT_EQ(text("bits", 0.5), "0.5000");
  EXPECT_EQ(text("tokens", 1234567), "1,234,567");
  EXPECT_EQ(text("share", 0.125), "12.5 %");
  EXPECT_EQ(text("ratio", NAN), "-");
  Section s{"", "", "", {}, {}};
  s.listings.push_back({"", "", "", {"change", "of"}, {{-0.00001, NAN}, {1.5, 2}}});
  EXPECT_EQ(listing_table(s.listings[0], 9).rows,
            (std::vector<std::vector<std::string>>{{"0.0000", "-"}, {"1.5000", "2"}}));
}

TEST(Figures, WriteCsv) {
  const std::string csv = sections_csv(std::vector{example_section()});
  EXPECT_EQ(count(csv, "\n"), 1 + 2 + 2 + 4 + 12);
  EXPECT_TRUE(has(csv, "section,figure,unit,layer,domain,expert,next,value\n"));
  EXPECT_TRUE(has(csv, "demo,rate,share,1,,,,0.5\n"));
  EXPECT_TRUE(has(csv, "demo,rate,share,3,,,,\n"));  // unknown
  EXPECT_TRUE(has(csv, "demo,table,count,3,\"a,b\",,,3\n"));
  EXPECT_TRUE(has(csv, "demo,table,count,1,\"c\"\"d\",,,2\n"));
  EXPECT_TRUE(has(csv, "demo,cube,share,3,,1,2,0.5\n"));
}

TEST(Figures, WriteJson) {
  const Json j = Json::parse(sections_json(std::vector{example_section()}).dump())["demo"];
  EXPECT_EQ(j["figures"].size(), 4u);
  EXPECT_TRUE(j["figures"][0]["values"][1].is_null());
  EXPECT_EQ(j["figures"][2]["values"], Json::parse("[[1,2],[3,4]]"));
  EXPECT_EQ(j["figures"][3]["values"][1][0][1].get<double>(), 0.7);
  EXPECT_EQ(j["figures"][2]["dimensions"][1]["labels"][0], "a,b");
  EXPECT_EQ(j["listings"][0]["rows"][0][1], 12345);
}

TEST(Figures, DrawHtmlPictures) {
  Page page("demo");
  add_sections(page, std::vector{example_section()});
  const std::string html = page.finish();
  // The table, wide and narrow, and a picture of each layer's table.
  EXPECT_EQ(count(html, "<svg"), 2 + 2);
  EXPECT_TRUE(has(html, "Counts &lt;by&gt; both.") && has(html, "What is lost.") && has(html, "Read them."));
  EXPECT_TRUE(has(html, "relative to an even share of 25.0 %"));
  EXPECT_TRUE(has(html, "prefers-color-scheme: dark"));
  EXPECT_FALSE(has(html, "nan"));
}

// Only loads are red and blue; changes have other colours.
TEST(Figures, UseSeparateColoursForChanges) {
  Section s{"demo", "A demonstration", "", {}, {}};
  const Dimension layers = counted_dimension("layer", 2);
  for (const Look look : {Look::change, Look::relative})
    s.figures.push_back(
        {"f", "f", "share", "What.", {layers, layers, layers}, {-1, 1, 0.5, 2, -1, 1, 0.5, 2}, look, 0.5});
  const auto has_bar = [&](std::size_t figure, Palette palette) {
    Page page("demo");
    add_sections(page, std::vector{Section{"demo", "", "", {s.figures[figure]}, {}}});
    return has(page.finish(), "to right," + palette_colour(palette, 0));
  };
  EXPECT_TRUE(has_bar(0, Palette::change) && !has_bar(0, Palette::balance));
  EXPECT_TRUE(has_bar(1, Palette::balance) && !has_bar(1, Palette::change));
}

// Wide tables are split, and names form a table. Pictures without a value are omitted, and a
// definition appears once per table.
TEST(Figures, WriteHtmlTables) {
  const Dimension layers = counted_dimension("layer", 2), domains{"domain", {"a", "b"}};
  Section s{"demo", "A demonstration", "", {}, {}};
  for (int i = 0; i < 12; ++i)
    s.figures.push_back(
        {fmt::format("f{}", i), fmt::format("figure {}", i), "nats per token", "The same.", {domains}, {1, 2}});
  s.figures.push_back(
      {"names", "names", "expert", "Who is where.", {layers, counted_dimension("place", 2)}, {0, 1, 1, 0}, Look::none});
  s.figures.push_back(
      {"more", "more names", "id", "Elsewhere.", {layers, layers, layers}, {0, 1, 1, 0, 0, 1, 1, 0}, Look::none});
  s.figures.push_back(
      {"paths", "paths", "share", "To the next.", {layers, layers, layers}, {0, .1, .2, .3, NAN, NAN, NAN, NAN}});
  Page page("demo");
  page.contents();
  add_sections(page, std::vector{s});
  const std::string html = page.finish();
  EXPECT_EQ(count(html, "<table>"), 2 + 1);
  EXPECT_EQ(count(html, "The same."), 2);
  EXPECT_TRUE(has(html, "figure 10; figure 11</b>, nats per token: The same."));
  EXPECT_TRUE(has(html, "<td class=\"text\">a</td>") && !has(html, "<td class=\"text\">0</td>"));
  EXPECT_TRUE(has(html, "names, by layer and place") && has(html, "Unit: expert.") && !has(html, "Elsewhere."));
  EXPECT_EQ(count(html, "<svg"), 2);
  EXPECT_EQ(count(html, "class=\"large\""), 1);
  EXPECT_EQ(count(html, "class=\"small\""), 1);
  EXPECT_EQ(count(html, "viewBox=\"0 0 360 "), 1);
  EXPECT_TRUE(has(html, "<a href=\"#demo\">A demonstration</a>"));
}

// On a dark page, pictures have its colours for text, background and lines.
TEST(Figures, UseTheColoursOfThePage) {
  LineChart chart;
  chart.lines = {{"first", {1, 2}, {1, 2}}, {"second", {1, 2}, {2, 1}}};
  chart.depths = {0, 1};
  Page page("demo");
  page.picture(chart, "a chart");
  const std::string html = page.finish();
  const std::string svg = html.substr(html.find("<svg"));
  for (const char* name : {"--ink", "--card", "--edge", "--line-0", "--line-14"})
    EXPECT_TRUE(has(svg, fmt::format("var({}, #", name)) && has(html, fmt::format(" {}: #", name))) << name;
  EXPECT_FALSE(has(svg, "rgb("));
}

TEST(Figures, WriteHdf5) {
  const TempFolder folder;
  const auto file = folder.write("figures.h5", "something else");  // it is replaced
  write_figures(file, std::vector{example_section()}, "demo");
  const Hdf5File h5 = Hdf5File::open(file);
  EXPECT_EQ(h5.datasets(), (std::vector<std::string>{"/demo/rate", "/demo/gain", "/demo/table", "/demo/cube"}));
  const Hdf5Dataset cube = h5.open_dataset("/demo/cube");
  EXPECT_EQ(cube.shape(), (Shape{2, 2, 3}));
  std::vector<double> values(12);
  cube.read(full_box(cube.shape()), values.data());
  EXPECT_EQ(values, example_section().figures[3].values);
  EXPECT_EQ(h5.get("/demo/cube", "dimensions", ""), Attribute("layer, expert, next"));
  EXPECT_EQ(h5.get("/demo/cube", "layer", ""), Attribute("1, 3"));
  EXPECT_EQ(h5.get("/demo/cube", "meaning", ""), Attribute("Thrice."));
  // No unfinished file remains.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_THROW(write_figures(folder.path() / "no" / "where.h5", {}, ""), Failure);
}

// Counts in a run of another program, of any length. The memory of the reader is bounded, and no
// count is lost.
TEST(Figures, ReadALongHistoryInBoundedMemory) {
  const TempFolder folder;
  TrainState state = test::example_state(20000);
  ExpertHistory& h = state.experts;
  h.steps.clear();
  h.routed.clear();
  h.dropped.clear();
  h.probability.clear();
  for (Index w = 0; w < 10000; ++w) {
    h.steps.push_back(2 * w + 2);
    for (Index i = 0; i < 6; ++i) {
      h.routed.push_back(w + i);
      h.dropped.push_back(i);
      h.probability.push_back(0.25f);
    }
  }
  const ExpertHistory read = read_state(test::write_as(folder.path(), Layout{}, state)).experts;
  EXPECT_LE(read.windows(), ExpertHistory::max_windows);
  EXPECT_GT(read.windows(), ExpertHistory::max_windows / 2);
  EXPECT_EQ(read.steps.back(), 20000);
  for (Index i = 0; i < 6; ++i) {
    Index routed = 0, dropped = 0;
    for (Index w = 0; w < read.windows(); ++w) {
      routed += read.routed[w * 6 + i];
      dropped += read.dropped[w * 6 + i];
      ASSERT_EQ(read.probability[w * 6 + i], 0.25f);
    }
    EXPECT_EQ(routed, 9999 * 10000 / 2 + 10000 * i);
    EXPECT_EQ(dropped, 10000 * i);
  }
}

// The comparison of two runs is computed again from their counts.
TEST(Comparison, MatchesTheCountsOfBothRuns) {
  const auto report = [](std::vector<std::int64_t> blocks, Index experts, std::vector<std::int64_t> routed) {
    ExpertReport r;
    r.checkpoint = "/runs/x";
    r.state.experts = {static_cast<Index>(blocks.size()), experts, {10}, routed, {}, {}, blocks};
    r.state.experts.dropped.assign(routed.size(), 1);
    r.state.experts.probability.assign(routed.size(), 0.25f);
    r.last = 1;
    r.load = layer_loads(r.state.experts, 0, 1);
    return r;
  };
  const ExpertReport a = report({0, 1, 2}, 4, {10, 10, 10, 10, 40, 0, 0, 0, 1, 2, 3, 4});
  const Section s = comparison(a, report({1, 2, 7}, 4, {0, 0, 0, 40, 4, 3, 2, 1, 1, 1, 1, 1}));
  const auto figure = [&](const std::string& name) -> const Figure& {
    for (const Figure& f : s.figures)
      if (f.name == name) return f;
    throw std::runtime_error("no " + name);
  };
  EXPECT_EQ(figure("difference").dimensions[0].labels, (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(figure("max_vio_first").values[0], 3);
  EXPECT_DOUBLE_EQ(figure("max_vio_second").values[1], 0.6);
  EXPECT_DOUBLE_EQ(figure("drop_rate_first").values[1], 0.4);
  EXPECT_DOUBLE_EQ(figure("difference").values[0], 1);
  EXPECT_NEAR(figure("difference").values[1], 0.4, 1e-15);
  EXPECT_EQ(figure("difference_sorted").values, (std::vector<double>{0, 0}));
  EXPECT_NEAR(figure("share_difference").values[4], 0.3, 1e-15);
  EXPECT_NEAR(figure("max_vio_over_time_first").values[0], (0 + 3 + 0.6) / 3, 1e-12);
  // With different numbers of experts, the comparable figures remain.
  const Section other = comparison(a, report({1}, 2, {3, 1}));
  for (const Figure& f : other.figures) EXPECT_NE(f.name, "difference");
  EXPECT_BAD_INPUT(comparison(a, report({9}, 4, {1, 1, 1, 1})), "no layer with experts in common");
  ExpertReport empty = a;
  empty.load.clear();
  EXPECT_BAD_INPUT(comparison(a, empty), "no expert counts yet");
}

// Peak memory of this process since the last reset, in bytes.
Index peak_since(bool reset) {
  if (reset) std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6)) * 1024;
  return 0;
}

// A run of 200 layers of 256 experts with 10,000 windows. Its checkpoint is read and reported in
// every form in seconds, in less than 1 GiB.
TEST(ExpertsAtScale, ReportTenThousandWindowsIn1GiB) {
  const TempFolder folder;
  const Index row = 200 * 256;
  std::filesystem::path checkpoint;
  {
    TrainState state = test::example_state(10000);
    ExpertHistory& h = state.experts = {};
    h.layers = 200;
    h.experts = 256;
    for (Index l = 0; l < h.layers; ++l) h.layer_ids.push_back(l);
    std::vector<std::int64_t> routed(row), dropped(row, 1);
    std::vector<float> probability(row, 1.0f / 256);
    for (Index i = 0; i < row; ++i) routed[i] = i % 97 + 1;
    for (Index w = 1; w <= 10000; ++w) h.append(w, routed, dropped, probability);
    state.router_bias.assign(row, 0.5f);
    checkpoint = test::write_as(folder.path(), Layout{}, state);
  }
  const Index before = peak_since(true);
  const std::clock_t start = std::clock();
  {
    const ExpertReport r = make_report(checkpoint, {});
    Index routed = 0;
    for (const LayerLoad& l : layer_loads(r.state.experts, 0, r.state.experts.windows())) routed += l.routed;
    Index expected = 0;
    for (Index i = 0; i < row; ++i) expected += (i % 97 + 1) * 10000;
    EXPECT_EQ(routed, expected);
    EXPECT_TRUE(has(report_text(r, false), "Load in steps "));
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, 10);
    EXPECT_GT(report_csv(r).size(), 1u << 20);
    EXPECT_GT(json_text(report_json(r), 1).size(), 1u << 20);
    write_figures(folder.path() / "load.h5", load_sections(r), "load");
    EXPECT_TRUE(has(report_html(r), "</html>"));
  }
#ifndef SWITCHYARD_SANITIZED  // the sanitizer's own memory exceeds the limit
  EXPECT_LT(peak_since(false), Index{1} << 30) << "it began with " << before;
#endif
  EXPECT_GT(peak_since(false), 0);
}

}  // namespace
}  // namespace sy
