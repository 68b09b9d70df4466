#include "src/analyse/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "src/analyse/placement.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

// A report of a history. In every layer expert 0 has half of the load, and expert 1 none.
ExpertReport example(Index layers, Index experts, Index windows) {
  ExpertReport r;
  r.checkpoint = "/runs/demo/checkpoints/step-00000040";
  r.state.step = windows * 10;
  r.state.tokens = windows * 10000;
  r.state.layout = "dp 1 tp 1 ep 1 etp 1 edp 1";
  ExpertHistory& h = r.state.experts;
  h.layers = layers;
  h.experts = experts;
  for (Index l = 0; l < layers; ++l) h.layer_ids.push_back(l);
  for (Index w = 0; w < windows; ++w) {
    h.steps.push_back(w * 10 + 10);
    for (Index l = 0; l < layers; ++l)
      for (Index e = 0; e < experts; ++e) {
        h.routed.push_back(e == 0 ? 4 * experts : e == 1 ? 0 : 4 + w);
        h.dropped.push_back(e == 0 ? 2 : 0);
        h.probability.push_back(1.0f / static_cast<float>(experts));
      }
  }
  r.last = windows;
  r.first = std::max<Index>(windows - 1, 0);
  if (windows > 0) r.load = layer_loads(h, r.first, r.last);
  return r;
}

TEST(ReportText, PrintsTables) {
  const std::string text = report_text(example(2, 4, 3), false);
  EXPECT_TRUE(has(text, "2 layers with 4 experts"));
  EXPECT_TRUE(has(text, "Load in steps 21-30"));
  // 16, 0, 6, 6 of 28 are 2.29, 0, 0.86, 0.86 of an even share.
  EXPECT_TRUE(has(text, "0 (57.1 %)"));
  EXPECT_TRUE(has(text, "1 (0.0 %)"));
  EXPECT_TRUE(has(text, "█·▃▃"));
  EXPECT_TRUE(has(text, "an even share (25.0 %)"));
  EXPECT_TRUE(has(text, "Over time"));
  EXPECT_FALSE(has(text, "\x1b"));
  EXPECT_TRUE(has(report_text(example(2, 4, 3), true), "\x1b[31m█\x1b[0m"));
}

TEST(ReportText, ListsExpertsOfASingleLayer) {
  const std::string text = report_text(example(1, 4, 1), false);
  EXPECT_TRUE(has(text, "probability"));
  EXPECT_TRUE(has(text, "2.67"));        // 16 of 24 relative to 1 of 4
  EXPECT_FALSE(has(text, "Over time"));  // one window is no history
}

TEST(ReportText, SharesMarksBetweenManyExperts) {
  const std::string text = report_text(example(1, 256, 2), false);
  EXPECT_TRUE(has(text, "4 experts to a mark"));
}

TEST(ReportText, ReportsMissingWindows) {
  const std::string text = report_text(example(2, 4, 0), false);
  EXPECT_TRUE(has(text, "No expert counts yet at step 0"));
}

TEST(ReportCsv, HasOneRowPerWindowLayerAndExpert) {
  EXPECT_EQ(report_csv(example(1, 2, 2)),
            "first_step,last_step,layer,expert,routed,dropped,share,drop_rate,probability,probability_gap,bias,"
            "layer_drop_rate,layer_max_vio,layer_dead,layer_overloaded\n"
            "1,10,0,0,8,2,1,0.25,0.5,-0.5,,0.25,1,1,0\n"
            "1,10,0,1,0,0,0,0,0.5,0.5,,0.25,1,1,0\n"
            "11,20,0,0,8,2,1,0.25,0.5,-0.5,,0.25,1,1,0\n"
            "11,20,0,1,0,0,0,0,0.5,0.5,,0.25,1,1,0\n");
  ExpertReport biased = example(1, 2, 2);
  biased.state.router_bias = {0.5f, -0.25f};
  // The biases of earlier windows are unknown.
  EXPECT_TRUE(has(report_csv(biased), "1,10,0,1,0,0,0,0,0.5,0.5,,0.25"));
  EXPECT_TRUE(has(report_csv(biased), "11,20,0,1,0,0,0,0,0.5,0.5,-0.25,0.25"));
  EXPECT_EQ(count(report_csv(example(3, 5, 4)), "\n"), 1 + 3 * 5 * 4);
  EXPECT_EQ(count(report_csv(example(3, 5, 0)), "\n"), 1);
}

TEST(ReportJson, HoldsEverything) {
  ExpertReport r = example(2, 4, 3);
  const auto j = Json::parse(report_json(r).dump());
  EXPECT_EQ(j["step"], 30);
  EXPECT_EQ(j["first_step"], 21);
  EXPECT_EQ(j["layers"].size(), 2u);
  EXPECT_EQ(j["layers"][1]["experts"].size(), 4u);
  EXPECT_EQ(j["layers"][1]["experts"][0]["routed"], 16);
  EXPECT_DOUBLE_EQ(j["layers"][1]["max_over_mean"].get<double>(), 16.0 / 7);
  EXPECT_EQ(j["windows"].size(), 3u);
  EXPECT_EQ(j["windows"][0]["layers"][0]["expert_routed"], Json(std::vector<int>{16, 0, 4, 4}));
  EXPECT_FALSE(j.contains("evaluation"));
  EXPECT_EQ(report_json(example(1, 2, 0))["windows"].size(), 0u);
}

Evaluation two_domains(Index layers, Index experts) {
  Evaluation e;
  e.step = 30;
  for (Index l = 0; l < layers; ++l) e.layers.push_back(l);
  for (const char* name : {"<script>alert('x')</script> & co", "日本語"}) {
    DomainUse d{name, 10, 20, 1.5, 4.5, 2.1, {}};
    std::vector<std::int64_t> counts(experts, 1);
    counts[e.domains.size() % experts] = 5;
    d.experts.assign(layers, counts);
    e.domains.push_back(d);
  }
  return e;
}

void add_domains(ExpertReport& r) {
  r.evaluation = two_domains(r.state.experts.layers, r.state.experts.experts);
  r.specialisation = specialisation(*r.evaluation);
}

TEST(Report, MarksPartialEvaluationsAndUnknownValues) {
  ExpertReport r = example(2, 4, 3);
  add_domains(r);
  EXPECT_FALSE(has(report_text(r, false), "windows"));
  r.evaluation->windows = 8;
  r.evaluation->of = 1234;
  DomainUse& d = r.evaluation->domains[1];
  d.bytes = -1;
  d.bits_per_byte = r.evaluation->bits_per_byte = std::nan("");
  EXPECT_TRUE(has(report_text(r, false), "Domains, evaluated at step 30 on 8 of 1,234 windows\n"));
  EXPECT_FALSE(has(report_text(r, false), "nan"));
  EXPECT_TRUE(has(report_html(r), "evaluated at step 30 on 8 of 1,234 windows"));
  const auto j = report_json(r)["evaluation"];
  EXPECT_EQ(j["windows"], 8);
  EXPECT_EQ(j["of"], 1234);
  EXPECT_TRUE(j["domains"][1]["bytes"].is_null());
  EXPECT_TRUE(Json::parse(j.dump())["domains"][1]["bits_per_byte"].is_null());
}

TEST(Report, ShowsDomainsInEveryFormat) {
  ExpertReport r = example(2, 4, 3);
  add_domains(r);
  // (5, 1, 1, 1)/8 against (1, 5, 1, 1)/8: 2 * 1/2 * (5/8 log2(5/3) + 1/8 log2(1/3))
  const double bits = 5.0 / 8 * std::log2(5.0 / 3) - 1.0 / 8 * std::log2(3.0);
  EXPECT_NEAR(report_json(r)["evaluation"]["layers"][1]["js_divergence_mean"].get<double>(), bits, 1e-12);
  EXPECT_TRUE(has(report_text(r, false), fmt::format("{:.3f}", bits)));
  const std::string page = report_html(r);
  EXPECT_TRUE(has(page, fmt::format("divergence {:.3f} bits", bits)));
  EXPECT_TRUE(has(page, "日本語"));
  EXPECT_FALSE(has(page, "<script"));
  EXPECT_TRUE(has(page, "&lt;script&gt;"));
}

// A layer without a pair of domains with assignments has no divergence.
TEST(Report, ShowsNoDivergenceWithoutPairs) {
  ExpertReport r = example(2, 4, 3);
  add_domains(r);
  r.evaluation->domains[0].experts[1] = {0, 0, 0, 0};
  r.specialisation = specialisation(*r.evaluation);
  const std::string text = report_text(r, false);
  EXPECT_TRUE(std::regex_search(text, std::regex("\n +1 +- +- +-\n"))) << text;
  const std::string page = report_html(r);
  EXPECT_FALSE(has(page, "nan"));
  EXPECT_EQ(count(page, "</b>, divergence") + count(page, ">layer 1, divergence"), 0);
  const auto layers = Json::parse(report_json(r).dump())["evaluation"]["layers"];
  EXPECT_TRUE(layers[1]["js_divergence_mean"].is_null() && layers[1]["js_divergence_max"].is_null());
  EXPECT_TRUE(layers[1]["between"].is_null());
  EXPECT_EQ(layers[0]["between"].size(), 2u);
}

TEST(Report, ShowsUnknownProbabilities) {
  ExpertReport r = example(1, 2, 1);
  for (float& p : r.state.experts.probability) p = std::nanf("");
  r.load = layer_loads(r.state.experts, r.first, r.last);
  EXPECT_EQ(count(report_csv(r), ",0,1,0,8,"), 0);
  EXPECT_TRUE(has(report_csv(r), "1,10,0,0,8,2,1,0.25,,,,0.25,1,1,0\n"));
  EXPECT_TRUE(std::regex_search(report_text(r, false), std::regex("25.0 % +- +-\n")));
  const auto j = Json::parse(report_json(r).dump());
  EXPECT_TRUE(j["layers"][0]["experts"][0]["probability"].is_null());
  EXPECT_TRUE(j["layers"][0]["experts"][0]["probability_gap"].is_null());
  EXPECT_TRUE(j["windows"][0]["layers"][0]["expert_probability"][1].is_null());
  EXPECT_FALSE(has(report_html(r), "nan"));
}

// The loss of masked tokens is no loss of their text.
TEST(Report, ShowsMaskedLosses) {
  ExpertReport r = example(2, 4, 3);
  add_domains(r);
  const std::string page = report_html(r);
  EXPECT_TRUE(has(page, "bits per byte, validation<") && has(page, "perplexity"));
  EXPECT_TRUE(has(report_text(r, false), "bits/byte"));
  r.evaluation->masked = true;
  for (const std::string& text : {report_text(r, false), report_html(r)}) {
    EXPECT_TRUE(has(text, "masked loss"));
    for (const char* column : {"perplexity", "bits/byte", "bits per byte"}) EXPECT_FALSE(has(text, column)) << column;
  }
  EXPECT_EQ(report_json(r)["evaluation"]["scoring"], "masked_tokens");
}

TEST(ReportHtml, NamesTheStepOfAnotherEvaluation) {
  ExpertReport r = example(2, 4, 3);
  add_domains(r);
  EXPECT_TRUE(has(report_html(r), "bits per byte, validation</span>"));
  r.evaluation->step = 1020;
  EXPECT_TRUE(has(report_html(r), "bits per byte, validation, step 1,020</span>"));
}

// Long domain names are cut in the pictures, which number them. The table has each number with the
// whole name.
TEST(Report, TruncatesLongDomainNames) {
  ExpertReport r = example(1, 4, 3);
  add_domains(r);
  const std::string long_name = "manual-pages-of-section-eight-in-";
  r.evaluation->domains[0].name = long_name + "german";
  r.evaluation->domains[1].name = long_name + "\x1b[31mjapanese";
  r.specialisation = specialisation(*r.evaluation);
  const std::string page = report_html(r), text = report_text(r, false);
  EXPECT_TRUE(has(page, "<td class=\"text\">1: " + long_name + "german"));
  EXPECT_TRUE(has(page, ">1: manual-pages-of-sect…<") && has(page, ">2: manual-pages-of-sect…<"));
  EXPECT_TRUE(has(text, long_name + "german"));
  EXPECT_TRUE(has(text, long_name + "␛[31mjapanese") && !has(text, "\x1b"));
}

// The JSON is valid for any bytes in a path.
TEST(Report, WritesValidJsonForAnyBytes) {
  ExpertReport r = example(1, 2, 1);
  r.checkpoint = "/runs/\xff\xfe/step";
  EXPECT_EQ(Json::parse(json_text(report_json(r)))["checkpoint"], "/runs/\ufffd\ufffd/step");
}

TEST(ReportHtml, IsOneSelfContainedPage) {
  ExpertReport r = example(2, 4, 3);
  r.losses = {{1, 5.5}, {2, 4.5}, {3, 4}};
  add_domains(r);
  const std::string page = report_html(r);
  EXPECT_EQ(page.rfind("<!doctype html>", 0), 0u);
  EXPECT_EQ(page.substr(page.size() - 8), "</html>\n");
  // The page fetches nothing: its only addresses are names of namespaces.
  EXPECT_EQ(count(page, "http"), count(page, "xmlns=\"http") + count(page, "xmlns:xlink=\"http"));
  EXPECT_EQ(count(page, "src="), 0);
  EXPECT_EQ(count(page, "<link"), 0);
  // Loss, load, drops, and probability against load, each wide and narrow. Then four measures, and
  // for each of two layers a history and a domain picture.
  EXPECT_EQ(count(page, "<svg"), 2 * 4 + 4 + 2 + 2);
  EXPECT_EQ(count(page, "<title>gnuplot"), 0);
  EXPECT_TRUE(has(page, "<title>layer 1, expert 0: 2.286×</title>"));
  EXPECT_TRUE(has(page, "<title>Expert load of demo, step-00000040</title>"));
  EXPECT_EQ(count(page, "<svg"), count(page, "aria-label="));
  EXPECT_TRUE(has(page, "4.667"));  // mean loss of the last steps
  for (const char* tag : {"section", "div", "figure", "table", "svg", "p", "h2", "details"})
    EXPECT_EQ(count(page, fmt::format("<{}>", tag)) + count(page, fmt::format("<{} ", tag)),
              count(page, fmt::format("</{}>", tag)))
        << tag;
}

TEST(ReportHtml, DrawsTrainingAndValidationLosses) {
  ExpertReport r = example(1, 4, 3);
  r.losses = {{1, 5.5}, {2, 4.5}, {3, 4}};
  const std::string without = report_html(r);
  EXPECT_TRUE(has(without, "var(--training, #"));
  EXPECT_FALSE(has(without, "var(--validation, #"));
  r.validations = {{2, 4.25}};
  const std::string page = report_html(r);
  EXPECT_TRUE(has(page, "var(--validation, #") && has(page, ">validation<"));
  EXPECT_TRUE(has(page, "step 2\ntraining: 4.5\nvalidation: 4.25<"));
}

// Experts of a collapsed router are dead: the report says how many, and what to change.
TEST(Report, AdvisesOnACollapsedRouter) {
  ExpertReport r = example(2, 4, 3);
  EXPECT_TRUE(has(report_html(r), "<b>2 of 8</b>"));
  EXPECT_TRUE(collapse_advice(r).finding.empty());  // too few assignments to judge
  for (std::int64_t& n : r.state.experts.routed) n *= 100;
  r.load = layer_loads(r.state.experts, r.first, r.last);
  const auto changes = [&] { return join(collapse_advice(r).changes); };
  EXPECT_TRUE(has(collapse_advice(r).finding, "2 of 8 experts are dead in steps 21-30"));
  EXPECT_TRUE(has(collapse_advice(r).finding,
                  "In 2 of 2 layers a quarter of the experts is dead, or the entropy is below 0.5: 0, 1."));
  EXPECT_TRUE(has(changes(), "moe.aux_loss"));
  Config& c = r.config.emplace();
  c.moe.experts = 4;
  c.moe.aux_loss = c.moe.bias_update_rate = 0;
  EXPECT_TRUE(has(changes(), "both are 0"));
  EXPECT_FALSE(has(changes(), "moe.renormalize"));
  c.moe.aux_loss = 0.02;
  EXPECT_TRUE(has(changes(), "Raise moe.aux_loss = 0.02 to about 0.06"));
  c.moe.bias_update_rate = 0.001;
  EXPECT_TRUE(has(changes(), "Raise moe.bias_update_rate = 0.001 to about 0.003."));
  c.moe.top_k = 1;
  c.moe.renormalize = Renormalize::on;
  EXPECT_TRUE(has(changes(), "Set moe.renormalize = auto"));
  for (const std::string& text : {report_text(r, false), report_html(r)})
    EXPECT_TRUE(has(text, "The router has collapsed"));
}

// Layers with few assignments are not judged: neither they nor their experts are counted.
TEST(Report, CountsTheExpertsOfJudgedLayers) {
  ExpertReport r = example(3, 4, 3);
  ExpertHistory& h = r.state.experts;
  for (Index w = 0; w < 3; ++w)
    for (Index e = 0; e < 4; ++e) h.routed[(w * 3 + 1) * 4 + e] *= 100;
  r.load = layer_loads(h, r.first, r.last);
  const std::string finding = collapse_advice(r).finding;
  EXPECT_TRUE(has(finding, "1 of 4 experts are dead in steps 21-30")) << finding;
  EXPECT_TRUE(has(finding, "In 1 of 1 layers a quarter of the experts is dead, or the entropy is below 0.5: 1."));
  EXPECT_TRUE(has(finding, " Not counted: 2 layers with fewer than 64 assignments per expert."));
}

// Layers of both stacks, and those of modules of multi-token prediction, have the same names in all
// tables, figures and pictures. The numbers of the blocks stay in CSV and JSON.
ExpertReport with_config(Index layers, const std::string& config) {
  ExpertReport r = example(layers, 4, 3);
  r.config = parse_config(config, "test");
  return r;
}
const std::string pairs = R"(
[model]
kind = encoder_decoder
layers = 2
d_model = 8
heads = 2
seq_len = 8
[moe]
experts = 4
[train]
objective = seq2seq
)";
const std::string modules = R"(
[model]
layers = 2
mtp_depth = 2
d_model = 8
heads = 2
seq_len = 8
[moe]
experts = 4
)";

TEST(Report, NamesLayersAlikeEverywhere) {
  using Names = std::vector<std::string>;
  struct Model {
    const std::string& config;
    Names names;
  };
  for (const Model& m : {Model{pairs, {"encoder 0", "encoder 1", "decoder 0", "decoder 1"}},
                         Model{modules, {"0", "1", "module 1", "module 2"}}}) {
    ExpertReport r = with_config(4, m.config);
    r.sections = {placement_section(balance_placement(r.load, 2), layer_dimension(r)), comparison(r, r)};
    std::vector<Section> sections = load_sections(r);
    sections.insert(sections.end(), r.sections.begin(), r.sections.end());
    for (const Section& s : sections)
      for (const Figure& f : s.figures)
        for (const Dimension& d : f.dimensions)
          if (d.name == "layer") {
            EXPECT_EQ(d.labels, m.names) << s.name << ' ' << f.name;
          }
    const auto j = report_json(r);
    EXPECT_EQ(j["layers"][3]["layer"], 3);
    EXPECT_EQ(j["layers"][3]["name"], m.names[3]);
    EXPECT_TRUE(has(report_csv(r), "\n1,10,3,0,"));
    EXPECT_TRUE(has(report_text(r, false), "\n" + m.names[2] + " "));
  }
}

TEST(Report, ComparesLayersOfOneName) {
  const ExpertReport two = with_config(4, modules), four = example(4, 4, 3);
  const std::vector<std::string> both = {"0", "1"};
  EXPECT_EQ(comparison(two, four).figures[0].dimensions[0].labels, both);
  EXPECT_TRUE(has(comparison_warnings(two, four).at(0), "the 2 that both have are compared"));
  EXPECT_TRUE(comparison_warnings(two, two).empty());
  EXPECT_BAD_INPUT(comparison(with_config(4, pairs), four), "encoder 0, encoder 1, decoder 0, decoder 1");
}

TEST(ReportHtml, AcceptsExtremeSizes) {
  struct Size {
    Index layers, experts, windows;
  };
  for (const Size s : {Size{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {60, 256, 3}, {9, 3, 500}, {1, 4, 0}}) {
    ExpertReport r = example(s.layers, s.experts, s.windows);
    add_domains(r);
    const std::string page = report_html(r);
    EXPECT_TRUE(has(page, "</html>"));
    EXPECT_FALSE(has(page, "nan"));
    EXPECT_EQ(has(page, "No expert counts yet"), s.windows == 0);
    EXPECT_LT(page.size(), 20u << 20);
  }
}

TEST(CountText, GroupsThousands) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(-123456), "-123,456");
  EXPECT_EQ(count_text(1234567890), "1,234,567,890");
}

// make_report with a checkpoint and the files beside it.
class MakeReport : public testing::Test {
 protected:
  TempFolder folder_;
  std::filesystem::path checkpoint_ = test::write_as(folder_.path(), Layout{}, 19);
};

TEST_F(MakeReport, WorksWithACheckpointOnly) {
  const ExpertReport r = make_report(checkpoint_, {});
  EXPECT_EQ(r.state.experts.windows(), 4);
  EXPECT_EQ(r.first, 3);  // a tenth of the steps, at least one window
  EXPECT_EQ(r.last, 4);
  EXPECT_EQ(r.load[1].layer, 10);
  EXPECT_TRUE(r.losses.empty());
  EXPECT_FALSE(r.evaluation);
}

TEST_F(MakeReport, ReadsTheFilesOfTheRun) {
  folder_.write(
      "metrics.jsonl",
      "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":null}\n{\"step\":19,\"loss\":2,\"validation\":{\"loss\":2.5}}\n{\"step\":"
      "20,\"loss\":1}\n{\"st");
  folder_.write("evaluation.json",
                R"({"step": 19, "tokens": 1, "loss": 1, "perplexity": 1, "bits_per_byte": 1, "layers": [0, 10],
    "domains": [{"name": "a", "tokens": 1, "bytes": 1, "loss": 1, "perplexity": 1, "bits_per_byte": 1,
                 "experts": [[1, 2, 3], [4, 5, 6]]}]})");
  const ExpertReport r = make_report(checkpoint_, {"10", {}});
  ASSERT_EQ(r.losses.size(), 2u);  // without later steps and torn lines
  EXPECT_EQ(r.losses[1].step, 19);
  ASSERT_EQ(r.validations.size(), 1u);
  EXPECT_EQ(r.validations[0].loss, 2.5);
  EXPECT_EQ(r.evaluation->domains[0].experts, (std::vector<std::vector<std::int64_t>>{{4, 5, 6}}));
  EXPECT_EQ(r.state.experts.layers, 1);
  EXPECT_EQ(r.load.size(), 1u);
}

TEST_F(MakeReport, SelectsWindowsBySteps) {
  // Windows: 1-4, 5-9, 10-14, 15-19.
  const auto windows = [&](Index from, Index to) {
    const ExpertReport r = make_report(checkpoint_, {{}, {{from, to}}});
    return std::pair(r.first, r.last);
  };
  EXPECT_EQ(windows(1, 19), (std::pair<Index, Index>(0, 4)));
  EXPECT_EQ(windows(4, 5), (std::pair<Index, Index>(0, 2)));
  EXPECT_EQ(windows(10, 10), (std::pair<Index, Index>(2, 3)));
  EXPECT_EQ(windows(15, 1000), (std::pair<Index, Index>(3, 4)));
  EXPECT_BAD_INPUT(make_report(checkpoint_, {{}, {{20, 30}}}), checkpoint_.string() + " has counts of steps 1-19");
  for (const char* layer : {"3", "encoder 0", ""})
    EXPECT_BAD_INPUT(make_report(checkpoint_, {layer, {}}),
                     checkpoint_.string() + " has no such layer: the layers with experts are 0, 10");
}

}  // namespace
}  // namespace sy
