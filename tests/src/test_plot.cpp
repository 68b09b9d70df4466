#include "src/analyse/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "tests/src/temp_folder.h"

namespace sy {
namespace {

Heatmap heatmap(Index rows, Index columns) {
  Heatmap map;
  map.rows = rows;
  map.columns = columns;
  for (Index i = 0; i < rows * columns; ++i) map.values.push_back(static_cast<double>(i % 7) / 7);
  for (Index r = 0; r < rows; ++r) map.row_names.push_back(fmt::format("r{}", r));
  for (Index c = 0; c < columns; ++c) map.column_names.push_back(fmt::format("c{}", c));
  map.colour_label = "amount";
  return map;
}

LineChart chart(std::size_t lines, std::size_t points) {
  LineChart out;
  for (std::size_t i = 0; i < lines; ++i) {
    Line line{fmt::format("line {}", i), {}, {}};
    for (std::size_t k = 0; k < points; ++k) {
      line.x.push_back(static_cast<double>(k));
      line.y.push_back(static_cast<double>(k * i));
    }
    out.lines.push_back(line);
    out.depths.push_back(static_cast<double>(i));
  }
  return out;
}

TEST(Palette, InterpolatesColours) {
  EXPECT_EQ(palette_colour(Palette::order, 0), "#440154");
  EXPECT_EQ(palette_colour(Palette::order, 1), "#fde725");
  EXPECT_EQ(palette_colour(Palette::balance, 0.5), "#f7f7f7");
  EXPECT_EQ(palette_colour(Palette::balance, 7), palette_colour(Palette::balance, 1));
  EXPECT_EQ(palette_colour(Palette::balance, 1.0 / 16), "#327db8");  // mean of #2166ac and #4393c3
}

TEST(RoundUp, GivesRoundNumbers) {
  EXPECT_DOUBLE_EQ(round_up(1), 1);
  EXPECT_DOUBLE_EQ(round_up(1.01), 2);
  EXPECT_DOUBLE_EQ(round_up(0.348), 0.4);
  EXPECT_DOUBLE_EQ(round_up(9.1), 10);
  EXPECT_DOUBLE_EQ(round_up(0.1), 0.1);
  EXPECT_DOUBLE_EQ(round_up(0.3, {1, 2, 5}), 0.5);
  EXPECT_DOUBLE_EQ(round_up(700, {1, 2, 5}), 1000);
}

// Browsers show titles as tooltips: the line or cell, and its value.
TEST(Draw, TooltipsShowNamesAndValues) {
  LineChart few = chart(2, 3), many = chart(12, 3);
  few.x_label = many.x_label = "step";
  few.percent = true;
  many.lines[11].name = "layer <11> & last";
  Heatmap map = heatmap(3, 4);
  map.y_label = "layer";
  map.x_label = "expert";
  map.ratio = true;
  map.low = 0.5;
  map.high = 2;
  map.values[5] = 1.25;
  map.values[6] = NAN;
  const auto pictures = draw({plot_of(few), plot_of(map), plot_of(many)});
  for (const std::string& picture : pictures) EXPECT_EQ(picture.find("<title>gnuplot"), std::string::npos);
  EXPECT_TRUE(has(pictures[0], "<title>line 1: 200 % at step 2, from 0 % to 200 %</title>"));
  EXPECT_TRUE(has(pictures[0], "<title>step 1\nline 0: 0 %\nline 1: 100 %</title>"));
  EXPECT_TRUE(has(pictures[1], "<title>layer r1, expert c1: 1.25×</title>"));
  EXPECT_EQ(count(pictures[1], "<title>"), 11);  // NaN has no value
  EXPECT_TRUE(has(pictures[2], "<title>line 0: 0 at step 2, from 0 to 0</title>"));
  EXPECT_TRUE(has(pictures[2], "<title>layer &lt;11&gt; &amp; last: 22 at step 2, from 0 to 22</title>"));
}

TEST(Draw, ManyCellsShareTooltips) {
  Heatmap map = heatmap(60, 256);
  map.values[0] = 0;
  map.values[29] = 0.75;
  const Plot plot = plot_of(map);
  EXPECT_EQ(plot.areas.size(), 60u * 9);
  EXPECT_EQ(plot.areas[0].text, "r0, c0 to c29: 0 to 0.8571");
  EXPECT_NEAR(plot.areas[8].x + plot.areas[8].width, map.width - 110, 1e-6);
  map.x_range = {0, 2560};
  map.x_label = "step";
  EXPECT_EQ(plot_of(map).areas[0].text, "r0, steps 1 to 300: 0 to 0.8571");
}

// Lines may have points at different x. A tooltip has a line's value if the line has a point there.
TEST(Draw, TooltipsSupportLinesOfUnequalPoints) {
  LineChart both = chart(2, 101);
  both.lines[1].x = {50, 100};
  both.lines[1].y = {7, 8};
  int found = 0;
  for (const HoverArea& area : plot_of(both).areas) found += has(area.text, "line 1");
  EXPECT_EQ(found, 2);
}

TEST(Draw, NarrowPicturesFitSmallScreens) {
  Heatmap map = heatmap(2, 3);
  map.row_names = {"4 ranks, tp 1 ep 4 etp 1", "4 ranks, tp 1 ep 4 etp 1, balanced"};
  map.column_names = {"attention", "experts", "<waiting>"};
  const LineChart lines = narrow(chart(3, 2));
  const auto pictures = draw({plot_of(narrow(map)), plot_of(lines)});
  for (const std::string& p : pictures) EXPECT_TRUE(has(p, "viewBox=\"0 0 360 "));
  EXPECT_TRUE(has(pictures[0], "balanced<"));
  // Column names are upright.
  for (const char* name : {"attention", "experts", "waiting"}) EXPECT_TRUE(has(pictures[0], name));
  EXPECT_TRUE(has(pictures[1], ">line 2<"));
}

// A series has its own colour, for any number of lines.
TEST(Draw, SeriesHaveFixedColours) {
  LineChart one = chart(1, 2), three = chart(3, 2);
  one.lines[0].series = three.lines[2].series = Series::validation;
  for (const std::string& p : draw({plot_of(one), plot_of(three)})) EXPECT_TRUE(has(p, "rgb(217, 119,   6)"));
}

// A chart with logarithmic axes and error bars, of which one is missing.
LineChart scaling_chart() {
  LineChart c;
  c.x_label = "ranks";
  c.y_label = "tokens/s";
  c.log_x = c.log_y = true;
  c.lines = {{.name = "own & 100 % real",
              .x = {1, 2, 8},
              .y = {1000, 1900, 6000},
              .series = Series::own_routing,
              .low = {900, 1800, NAN},
              .high = {1200, 2100, NAN}},
             {.name = "ideal", .x = {1, 8}, .y = {1000, 8000}, .series = Series::ideal}};
  c.depths = {0, 1};
  return c;
}

TEST(Draw, HasLogarithmicAxesAndErrorBars) {
  const Plot plot = plot_of(scaling_chart());
  EXPECT_TRUE(has(plot.script, "set logscale x 2\n")) << plot.script;
  EXPECT_TRUE(has(plot.script, "set logscale y 10\n"));
  EXPECT_TRUE(has(plot.script, "set xtics (\"1\" 1, \"2\" 2, \"8\" 8)\n")) << plot.script;
  EXPECT_TRUE(has(plot.script, "set ytics (\"500\" 500, \"1k\" 1000, \"2k\" 2000, \"5k\" 5000, \"10k\" 10000)"))
      << plot.script;
  EXPECT_TRUE(has(plot.script, "2 1900 1800 2100\n"));
  EXPECT_TRUE(has(plot.script, "8 6000 6000 6000\n"));  // no bar
  EXPECT_TRUE(has(plot.script, "using 1:2:3:4 with yerrorlines"));
  EXPECT_TRUE(has(plot.script, "using 1:2 with lines dt 2"));  // the ideal
  // Tooltips of equal distances in the logarithm: 1 to 2 is half as wide as 2 to 8.
  ASSERT_EQ(plot.areas.size(), 3u);
  EXPECT_TRUE(has(plot.areas[1].text, "ranks 2\nown & 100 % real: 1900, 1800 to 2100"));
  const double border = std::log(1.1);
  EXPECT_NEAR(plot.areas[0].width / plot.areas[2].width, (border + std::log(2) / 2) / (border + std::log(2)), 1e-6);
  const auto pictures = draw({plot, plot_of(narrow(scaling_chart()))});
  for (const std::string& p : pictures) EXPECT_TRUE(has(p, "stroke-dasharray"));
}

TEST(Draw, MarksWideLogarithmicAxesByPowersOfTen) {
  LineChart c = scaling_chart();
  c.lines[1].y = {0.5, 3e6};
  EXPECT_TRUE(has(plot_of(c).script,
                  "set ytics (\"0.1\" 0.1, \"1\" 1, \"10\" 10, \"100\" 100, \"1k\" 1000, "
                  "\"10k\" 10000, \"100k\" 100000, \"1M\" 1e+06, \"10M\" 1e+07)"))
      << plot_of(c).script;
  c.lines.pop_back();
  c.lines[0] = {.name = "alone", .x = {4}, .y = {7}};
  c.depths = {0};
  EXPECT_EQ(draw({plot_of(c)}).size(), 1u);
}

TEST(Pgf, HasTheDataOfTheChart) {
  LineChart c = scaling_chart();
  const std::string tex = pgf_of(c, {"first", "second\nline"});
  EXPECT_TRUE(tex.starts_with("% first\n% second line\n\\documentclass[border=2pt]{standalone}\n")) << tex;
  EXPECT_TRUE(has(tex, "xmode=log, log basis x=2, xtick={1,2,8}, xticklabels={1,2,8},\n  ymode=log,\n"));
  EXPECT_TRUE(has(tex, "\\definecolor{ownrouting}{HTML}{2563EB}\n"));
  EXPECT_TRUE(has(tex,
                  "\\addplot+[color=ownrouting, mark=*, error bars/.cd, y dir=both, y explicit] table[x=x, y=y, "
                  "y error minus=minus, y error plus=plus] {\n  x y minus plus\n  1 1000 100 200\n  2 1900 100 200\n"
                  "  8 6000 0 0\n};\n\\addlegendentry{own \\& 100 \\% real}\n"))
      << tex;
  EXPECT_TRUE(has(tex, "\\addplot+[color=ideal, dashed, no marks] table[x=x, y=y] {\n  x y\n  1 1000\n  8 8000\n};\n"));
  EXPECT_EQ(count(tex, "{"), count(tex, "}"));
  EXPECT_EQ(count(tex, "\\begin{"), count(tex, "\\end{"));
  c.percent = true;
  c.log_y = false;
  c.y_low = 0;
  EXPECT_TRUE(has(pgf_of(c, {}), "ylabel={tokens/s (\\%)},\n"));
  EXPECT_TRUE(has(pgf_of(c, {}), "ymin=0,\n"));
  EXPECT_TRUE(has(pgf_of(c, {}), "1 100000 10000 20000\n"));
}

// The lower bound of a chart has a mark, also if it is no round number.
TEST(Draw, TheLowerBoundHasAMark) {
  const auto tics = [](double low, double high) {
    LineChart c = chart(1, 2);
    c.lines[0].y = {low, high};
    c.y_low = low;
    const std::string script = plot_of(c).script;
    const std::size_t at = script.find("set ytics (") + 11;
    return script.substr(at, script.find(')', at) - at);
  };
  EXPECT_EQ(tics(1, 11), "\"1\" 1, \"2\" 2, \"4\" 4, \"6\" 6, \"8\" 8, \"10\" 10, \"12\" 12");
  EXPECT_EQ(tics(1, 20), "\"1\" 1, \"5\" 5, \"10\" 10, \"15\" 15, \"20\" 20");
  EXPECT_EQ(tics(1.9, 11), "\"1.9\" 1.9, \"4\" 4, \"6\" 6, \"8\" 8, \"10\" 10, \"12\" 12");
  EXPECT_EQ(tics(0, 10), "\"0\" 0, \"2\" 2, \"4\" 4, \"6\" 6, \"8\" 8, \"10\" 10");
}

TEST(RatioMarks, ArePowersOfTwo) {
  EXPECT_EQ(ratio_marks(0.25, 4), (std::vector<std::string>{"1/4×", "1/2×", "1×", "2×", "4×"}));
}

TEST(Draw, ReturnsOnePicturePerPlot) {
  const std::vector<Plot> plots = {plot_of(heatmap(3, 4)), plot_of(chart(2, 5)), plot_of(chart(20, 5))};
  const auto pictures = draw(plots);
  ASSERT_EQ(pictures.size(), 3u);
  for (const std::string& p : pictures) {
    EXPECT_EQ(p.rfind("<svg", 0), 0u);
    EXPECT_EQ(p.substr(p.size() - 6), "</svg>");
    EXPECT_TRUE(has(p, "viewBox"));
    EXPECT_FALSE(has(p, "<script"));
  }
  EXPECT_TRUE(has(pictures[0], "amount"));
  EXPECT_EQ(count(pictures[0], "<image style='image-rendering:pixelated'"), 1);
  EXPECT_TRUE(has(pictures[0], "r2"));
  EXPECT_TRUE(has(pictures[1], "line 1"));  // a legend
  // There are too many lines for a legend: a colour bar, and a title for each.
  EXPECT_EQ(count(pictures[2], ">line 1: "), 1);
  EXPECT_TRUE(draw({}).empty());
}

TEST(Draw, IdsDifferBetweenPictures) {
  const auto pictures = draw({plot_of(heatmap(2, 2)), plot_of(chart(1, 1))});
  std::set<std::string> ids;
  for (const std::string& p : pictures)
    for (const char quote : {'\'', '"'}) {
      const std::string mark = std::string(" id=") + quote;
      for (std::size_t at = 0; (at = p.find(mark, at)) != std::string::npos;) {
        at += mark.size();
        EXPECT_TRUE(ids.insert(p.substr(at, p.find(quote, at) - at)).second) << p.substr(at, 20);
      }
    }
  EXPECT_GT(ids.size(), 10u);
  // The single point has an id of its own.
  EXPECT_TRUE(has(pictures[1], "href='#p1-gpPt6'"));
}

TEST(Draw, AcceptsSmallAndLargeHeatmaps) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>{1, 1}, {1, 9}, {9, 1}, {60, 256}}) {
    const std::string p = draw({plot_of(heatmap(rows, columns))})[0];
    EXPECT_EQ(count(p, "<image"), 1) << rows << " x " << columns;
    EXPECT_TRUE(has(p, ">r0<") && has(p, ">c0<")) << rows << " x " << columns;
  }
}

TEST(Draw, TextIsLiteral) {
  Heatmap map = heatmap(2, 2);
  map.row_names = {"a_b^c{x} 'q' \"z\"", "日本 <b>\\n%s@1`date`"};
  map.x_label = "'it''s <x>\n";
  map.cell_texts = {"1", "\\", "'", "\""};
  const std::string p = draw({plot_of(map)})[0];
  EXPECT_TRUE(has(p, "a_b^c{x} 'q'"));
  EXPECT_TRUE(has(p, "日本 &lt;b>\\n%s@1`date`"));
  EXPECT_TRUE(has(p, "'it''s &lt;x>"));
  EXPECT_FALSE(has(p, "<b>"));
}

TEST(Draw, TruncatesLongNames) {
  Heatmap map = heatmap(1, 1);
  map.row_names = {std::string(300, 'x')};
  const std::string p = draw({plot_of(map)})[0];
  EXPECT_TRUE(has(p, std::string(23, 'x') + "…"));
  EXPECT_TRUE(has(p, "<title>" + std::string(300, 'x') + ", c0: "));  // the tooltip has all of it
  EXPECT_FALSE(has(p, "<text>" + std::string(25, 'x')) || has(p, "<text> " + std::string(25, 'x')));
}

TEST(Draw, AcceptsNanAndValuesBeyondTheScale) {
  Heatmap map = heatmap(2, 2);
  map.values = {NAN, 0, 1e300, -5};
  map.cell_texts = {"blank", "b", "c", "d"};
  EXPECT_FALSE(has(draw({plot_of(map)})[0], "blank"));
  map.ratio = true;
  map.low = 0.5;
  map.high = 2;
  EXPECT_TRUE(has(draw({plot_of(map)})[0], "1/2×"));
  LineChart lines = chart(1, 3);
  lines.lines[0].y[1] = NAN;
  EXPECT_EQ(draw({plot_of(lines)}).size(), 1u);
}

TEST(Draw, ReportsGnuplotErrors) {
  const std::string message = MESSAGE_OF(Failure, draw({Plot{"plot nonsense(\n", {}, {}}}));
  EXPECT_TRUE(has(message, "gnuplot")) << message;
  EXPECT_TRUE(has(message, "nonsense")) << message;
  EXPECT_TRUE(has(MESSAGE_OF(Failure, draw({Plot{"exit status 3\n", {}, {}}})), "gnuplot"));
}

TEST(Draw, MissingGnuplotNamesItsPackage) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const std::string message = MESSAGE_OF(Failure, draw({plot_of(chart(1, 2))}));
  setenv("PATH", path.c_str(), 1);
  EXPECT_TRUE(has(message, "gnuplot-nox")) << message;
}

TEST(Draw, RejectsInconsistentData) {
  Heatmap map = heatmap(2, 2);
  map.values.pop_back();
  EXPECT_THROW(plot_of(map), std::logic_error);
  EXPECT_THROW(plot_of(LineChart{}), std::logic_error);
  EXPECT_THROW(plot_of(chart(1, 0)), std::logic_error);
}

}  // namespace
}  // namespace sy
