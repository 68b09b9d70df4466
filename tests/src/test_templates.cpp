// Chat templates are compared with Jinja as transformers configures it
// (tests/golden/chat_templates.py). Wrong and hostile templates end with an error.
#include <gtest/gtest.h>

#include <random>

#include "src/system/files.h"
#include "src/templates/template.h"

namespace sy {
namespace {

const Json& golden() {
  static const Json json = Json::parse(read_file(GOLDEN "/chat_templates.json"));
  return json;
}

// Returns the text; null if the template is refused.
Json rendered(const Json& source, const Json& variables) {
  try {
    return Template("template", source.get<std::string>()).render(variables);
  } catch (const TemplateError& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("template: line ")) << e.what();
    return {};
  }
}

std::string error_of(std::string_view source, const TemplateLimits& limits = {}) {
  try {
    return "no error, but " + Template("t", source).render(Json::object(), limits);
  } catch (const TemplateError& e) {
    return e.what();
  }
}

TEST(Golden, TemplatesOfFamilies) {
  for (const Json& r : golden()["renderings"]) {
    const std::string family = r["family"].get<std::string>(), conversation = r["conversation"].get<std::string>();
    Json variables = {{"messages", golden()["conversations"][conversation]},
                      {"add_generation_prompt", r["prompt"]},
                      {"bos_token", "<s>"},
                      {"eos_token", "</s>"}};
    if (r["tools"].get<bool>()) variables["tools"] = golden()["tools"];
    EXPECT_EQ(rendered(golden()["families"][family], variables), r["text"]) << family << ", " << conversation;
  }
}

TEST(Golden, TemplatesOfEachConstruct) {
  for (const Json& c : golden()["small"])
    EXPECT_EQ(rendered(c["template"], golden()["variables"]), c["text"]) << c["template"];
}

TEST(Templates, ErrorsNameLineAndReason) {
  EXPECT_EQ(error_of("a\n{{ x.y }}"), "t: line 2: 'x' is undefined");
  EXPECT_EQ(error_of("\n\n{{ raise_exception('roles must alternate') }}"),
            "t: line 3: the template refuses the conversation: roles must alternate");
  EXPECT_EQ(error_of("{% if 1 %}\n{{ 2 | nothing }}{% endif %}"), "t: line 2: the filter 'nothing' is not supported");
  EXPECT_EQ(error_of("{% if 1 %}\n"), "t: line 1: the block has no end: write {% endif %}");
  EXPECT_EQ(error_of("{% include 'x' %}"), "t: line 1: the statement 'include' is not supported");
  EXPECT_EQ(error_of("{{ strftime_now('%Y') }}"),
            "t: line 1: strftime_now is not supported, because the text would depend on the date: test "
            "'strftime_now is defined', or write a date");
}

TEST(Templates, WorkIsBounded) {
  const auto times = [](std::string_view text, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
  };
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_EQ(error_of(loops, {.steps = 100'000}), "t: line 1: the template takes too many steps");
  EXPECT_EQ(error_of("{{ 'abc' * 999999999999999 }}"), "t: line 1: the template needs too much memory");
  EXPECT_EQ(error_of("{{ [0] * 999999999999999 }}"), "t: line 1: the template needs too much memory");
  EXPECT_EQ(
      error_of(
          "{% set ns = namespace(a='xxxxxxxx') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}"),
      "t: line 1: the template needs too much memory");
  EXPECT_EQ(error_of("{% for i in range(99) %}0123456789{% endfor %}", {.output_bytes = 100}),
            "t: line 1: 100 bytes of text are exceeded");
  EXPECT_EQ(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
            "t: line 1: macros or expressions are nested too deep");
  EXPECT_EQ(error_of("{{ range(99999999) }}"), "t: line 1: range() has more than 100000 items");
  EXPECT_EQ(error_of("{{ " + times("(", 9999) + times(")", 9999) + " }}"), "t: line 1: nested more than 100 deep");
  EXPECT_EQ(error_of("{{ " + times("[", 9999) + times("]", 9999) + " }}"), "t: line 1: nested more than 100 deep");
  EXPECT_EQ(error_of("{{ " + times("-", 9999) + "1 }}"), "t: line 1: nested more than 100 deep");
  EXPECT_EQ(error_of(times("{% if 1 %}", 9999)), "t: line 1: nested more than 100 deep");
  EXPECT_EQ(error_of("{{ 1" + times(" + 1", 9999) + " }}"), "t: line 1: an expression has more than 400 levels");
  EXPECT_EQ(error_of("{{ 1" + times(" | string", 9999) + " }}"), "t: line 1: an expression has more than 400 levels");
  EXPECT_EQ(error_of("{{ " + std::string(2 << 20, ' ') + " }}"), "t: line 1: a template has at most 1048576 bytes");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"), "t: line 1: an integer has more than 64 bits");
  EXPECT_EQ(error_of("{{ (-9223372036854775807 - 1) // -1 }}"), "t: line 1: an integer has more than 64 bits");
}

// Random changes of templates: each ends with a text or a TemplateError.
TEST(Templates, RandomTemplatesEnd) {
  std::vector<std::string> sources;
  for (const Json& c : golden()["small"]) sources.push_back(c["template"].get<std::string>());
  for (const Json::Member& family : golden()["families"].members()) sources.push_back(family.value.get<std::string>());
  const Json variables = {{"messages", golden()["conversations"]["tool"]},
                          {"tools", golden()["tools"]},
                          {"d", golden()["variables"]["d"]},
                          {"m", golden()["variables"]["m"]}};
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return random() % n; };
  constexpr std::string_view inserted[] = {
      "{{", "}}", "{%",   "%}",          "-",          "'",        "(",        ")",      "[",       "]",  "{",   "}",
      "|",  ".",  "not ", "{% endif %}", "{% else %}", "messages", " * 99999", "[::-1]", "|tojson", "\n", "\xff"};
  int texts = 0, errors = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string source = sources[below(sources.size())];
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
      const std::size_t at = below(source.size() + 1), size = std::min(below(12), source.size() - at);
      if (below(3) == 0) {
        const std::string& other = sources[below(sources.size())];
        source.replace(at, size, other.substr(below(other.size()), below(40)));
      } else if (below(2) == 0) {
        source.insert(at, inserted[below(std::size(inserted))]);
      } else {
        source.erase(at, size);
      }
    }
    try {
      const TemplateLimits limits = {.output_bytes = 1 << 20, .steps = 100'000, .created_bytes = 16 << 20};
      EXPECT_LE(Template("t", source).render(variables, limits).size(), std::size_t{1} << 20);
      ++texts;
    } catch (const TemplateError&) {
      ++errors;
    }
  }
  EXPECT_GT(texts, 100);
  EXPECT_GT(errors, 100);
}

}  // namespace
}  // namespace sy
