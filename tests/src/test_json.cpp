#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/text/json.h"

namespace sy {
namespace {

std::string error_of(const std::string& text) {
  try {
    Json::parse(text);
  } catch (const JsonError& e) {
    return e.what();
  }
  return "";
}

TEST(Json, ReadsNonFiniteNumbersOfPython) {
  const Json json =
      Json::parse(standard_json(R"({"a": [0.0, Infinity, -Infinity], "b\\\"Infinity": "NaN", "c": NaN})"));
  EXPECT_EQ(json["a"][1].get<double>(), std::numeric_limits<double>::max());
  EXPECT_EQ(json["a"][2].get<double>(), std::numeric_limits<double>::lowest());
  EXPECT_EQ(json["b\\\"Infinity"], Json("NaN"));
  EXPECT_TRUE(json["c"].is_null());
  for (const char* text : {"", "\\", "\"\\", "Inf", "[Infinity", "\"Infinity"})
    EXPECT_FALSE(Json::try_parse(standard_json(text))) << text;
}

TEST(Json, RoundTripsText) {
  const char* line =
      R"({"a":[],"b":{},"c":[1,-2,18446744073709551615,0.1,1e-05,1e+300,2.0],"d":null,"e":true,"f":"ä\n\"\\ \u0001"})";
  const Json json = Json::parse(line);
  EXPECT_EQ(json.dump(), line);
  EXPECT_EQ(Json::parse(json.dump(3)), json);
  EXPECT_EQ(json.members()[5].name, "f");
  EXPECT_EQ(Json::parse(R"({"x": [1, {"y": 2}], "z": {}})").dump(1),
            "{\n \"x\": [\n  1,\n  {\n   \"y\": 2\n  }\n ],\n \"z\": {}\n}");
}

TEST(Json, ReplacesUnrepresentableValues) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Json({{"a", infinity}, {"b", -infinity}, {"c", std::nan("")}}).dump(), R"({"a":null,"b":null,"c":null})");
  EXPECT_EQ(Json("\xff/\xc3").dump(), "\"\ufffd/\ufffd\"");
  EXPECT_EQ(Json({{"\xff", 1}}).dump(), "{\"\ufffd\":1}");
}

TEST(Json, IsBuiltFromStandardTypes) {
  Json json;
  json["list"].push_back(1.5f);
  json["list"].push_back({{"n", std::size_t{7}}, {"name", std::string_view("x")}});
  json["lists"] = std::vector<std::vector<int>>{{1, 2}, {}};
  json["list"].push_back(Json::array({"a", true}));
  EXPECT_EQ(json.dump(), R"({"list":[1.5,{"n":7,"name":"x"},["a",true]],"lists":[[1,2],[]]})");
  EXPECT_EQ(json.find("none"), nullptr);
  EXPECT_EQ(Json({{"a", 1}, {"b", 2}}), Json({{"b", 2}, {"a", 1}}));
  EXPECT_FALSE(Json({{"a", 1}}) == Json({{"a", 1}, {"b", 2}}));
}

TEST(Json, RejectsOtherTypes) {
  const Json json = Json::parse(
      R"({"n": 1, "big": 18446744073709551615, "x": 0.5, "whole": 12.0, "s": "t", "twice": 1, "twice": 2})");
  EXPECT_EQ(json["n"].get<double>(), 1);
  EXPECT_EQ(json["big"].get<std::uint64_t>(), 18446744073709551615u);
  EXPECT_EQ(json["whole"].get<std::int64_t>(), 12);
  EXPECT_EQ(json["twice"], 2);
  EXPECT_THROW(json["big"].get<std::int64_t>(), JsonError);
  EXPECT_THROW(json["x"].get<std::int64_t>(), JsonError);
  EXPECT_THROW(json["s"].get<double>(), JsonError);
  EXPECT_THROW(json["n"].get<std::string>(), JsonError);
  EXPECT_THROW(json["n"].get<bool>(), JsonError);
  EXPECT_THROW(json["n"].get<std::vector<double>>(), JsonError);
  EXPECT_THROW(json["none"], JsonError);
  EXPECT_THROW(json["n"]["n"], JsonError);
  EXPECT_THROW(json.at(std::size_t{0}), JsonError);
  EXPECT_THROW(Json::array({1}).at(1), JsonError);
  EXPECT_THROW(Json(1).push_back(1), JsonError);
  EXPECT_THROW(Json(-1).get<std::uint64_t>(), JsonError);
}

TEST(Json, ReportsThePositionOfAnError) {
  EXPECT_EQ(error_of("{\"a\": 1} x"), "not JSON from its byte 9 on");
  EXPECT_EQ(error_of(""), "not JSON from its byte 0 on");
  EXPECT_EQ(error_of("[1e999]"), "not JSON from its byte 5 on");
  for (const char* text : {"[1,", "{\"a\" 1}", "nul", "\"\xff\"", "[1,]", "'a'", "{\"a\":1,}"})
    EXPECT_NE(error_of(text).find("not JSON from its byte"), std::string::npos) << text;
  EXPECT_FALSE(Json::try_parse("{"));
  EXPECT_TRUE(Json::try_parse("{}"));
}

// A file may nest as deeply as it is long. This is an error, not a stack overflow.
TEST(Json, RejectsDeepNesting) {
  EXPECT_EQ(error_of(std::string(1000, '[') + std::string(1000, ']')), "");
  EXPECT_EQ(error_of(std::string(1001, '[') + std::string(1001, ']')), "JSON nested more than 1000 deep");
  EXPECT_EQ(error_of(std::string(10'000'000, '[')), "JSON nested more than 1000 deep");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(error_of(objects), "JSON nested more than 1000 deep");
}

}  // namespace
}  // namespace sy
