// Row `foreign`: folders from elsewhere. They have files that are no regular files, files with
// strange names, and hostile regular expressions and chat templates.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/reliability/damage.h"

namespace sy::campaign {
namespace {

// ---- other kinds of files ----

// Replaces the file by another kind of file.
Damage replaced(const char* name, const std::function<void(const fs::path&)>& make) {
  return [=](const fs::path& file, const fs::path&, Draw&) {
    fs::remove_all(file);
    make(file);
    return std::string("replaced by ") + name;
  };
}
const std::vector<Damage> file_kinds = {
    replaced("a FIFO", [](const fs::path& file) { ::mkfifo(file.c_str(), 0666); }),
    replaced("a folder", [](const fs::path& file) { fs::create_directory(file); }),
    replaced("a link to /dev/zero", [](const fs::path& file) { fs::create_symlink("/dev/zero", file); }),
    replaced("a link to /dev/full", [](const fs::path& file) { fs::create_symlink("/dev/full", file); }),
    replaced("a link to itself", [](const fs::path& file) { fs::create_symlink(file.filename(), file); }),
    replaced("a link to nothing", [](const fs::path& file) { fs::create_symlink("../nothing", file); }),
    replaced("a link to a file outside", [](const fs::path& file) { fs::create_symlink(canary(), file); }),
    replaced("a second name of a file outside", [](const fs::path& file) { fs::create_hard_link(canary(), file); })};

// ---- strange names ----

struct StrangeName {
  const char* meaning;
  std::string name;
};
const std::vector<StrangeName> strange_names = {
    {"control characters", "\x1b[31m\x1b]0;title\x07red\b\r\x7f"},
    {"a line break", "name\nswitchyard: error: a forged line"},
    {"a leading dash", "--help"},
    {"255 bytes", std::string(255, 'n')},
    {"invalid UTF-8", "\xff\xfe\xc3(\xed\xa0\x80"},
    {"characters of a shell and of lists", "$(touch forged);`touch forged`|*?'\",=#%s {}"},
};

// Returns the name with the extension of `file`, in at most 255 bytes.
fs::path with_extension_of(const fs::path& file, const std::string& name) {
  const std::string extension = file.extension().string();
  return name.substr(0, 255 - extension.size()) + extension;
}
// Adds an entry with the name beside the file, or renames the file.
Damage named(const StrangeName& strange) {
  return [&strange](const fs::path& file, const fs::path&, Draw& draw) {
    const fs::path path =
        file.parent_path() / (draw.below(2) == 0 ? with_extension_of(file, strange.name) : fs::path(strange.name));
    switch (draw.below(3)) {
      case 0:
        fs::copy_file(file, path);
        return fmt::format("has a copy whose name has {}", strange.meaning);
      case 1:
        fs::create_directory(path);
        fs::copy_file(file, path / path.filename());
        return fmt::format("is beside a folder whose name has {}", strange.meaning);
      default:
        fs::rename(file, path);
        return fmt::format("is renamed: the name has {}", strange.meaning);
    }
  };
}
Damage renamed(const StrangeName& strange) {
  return [&strange](const fs::path& file, const fs::path&, Draw&) {
    fs::rename(file, file.parent_path() / strange.name);
    return fmt::format("is renamed: the name has {}", strange.meaning);
  };
}

// ---- hostile expressions ----

std::string times(std::string_view text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

// A command that reads an expression must end with one error, or with the result of the harmless
// expression. If that is empty, it must end with an error.
struct Hostile {
  std::string expression, harmless;
};
// The text has 60 times "a", and no "Z".
const std::vector<Hostile> regular_expressions = {
    {"(a+a+)+[YZ]", ""},
    {"(a|aa)+[YZ]", "Z"},
    {"^(([a-z])+.)+[YZ](([a-z])+.)+$", "Z"},
    {"(?:a?){24}[YZ]", "Z"},
    {"(a*)*Z|(a*)*Z", "Z"},
    {times("(a?", 200) + times(")", 200) + "Z", "Z"},
    {times("(", 5000) + "Z" + times(")", 5000), "Z"},
    {"Z{1,65535}{1,65535}", "Z"},
    {times("Z?", 5000) + "Z", "Z"},
    {"(?:Z{1000}){1000}", "Z"},
    {"(?<=a{1,1000})Z", "Z"},
    {"(?R)Z", "Z"},
    {"(Z|\\g<1>)+", "Z"},
    {"\\p{L}{0}Z", "Z"},
    {"(?:(?=a)|(?!a))*Z", "Z"},
    {"(?{system('touch forged')})Z", ""},
    {"(*LIMIT_MATCH=4000000000)Z", "Z"},
    {"(?C1)Z", "Z"},
    {"(", ""},
    {"a{2,1}", ""},
    {"\\p{Nothing}", ""},
    {"(?<=a*)b", ""},
    {"[[:Z", ""},
    {"\\", ""},
    {std::string(1 << 20, 'x'), ""},
    {std::string("Z\0(", 3), ""},
    {"\xff(Z", ""},
};
constexpr const char* good_template =
    "{% for message in messages %}{{ message.role ~ ': ' ~ message.content ~ '\\n' }}{% endfor %}";
// Each is before the good template.
const std::vector<Hostile> templates = {
    {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", ""},
    {"{{ 'abc' * 999999999999999 }}", ""},
    {"{% set n = namespace(a='xxxxxxxx') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}", ""},
    {"{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", ""},
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ""},
    {"{{ " + times("(", 99999) + times(")", 99999) + " }}", ""},
    {times("{% if 1 %}", 9999), ""},
    {"{{ " + std::string(2 << 20, ' ') + " }}", ""},
    {"{{ 9223372036854775807 * 2 }}", ""},
    {"{% include '/etc/passwd' %}", ""},
    {"{% import 'os' as os %}", ""},
    {"{% extends 'x' %}", ""},
    {"{{ ''.__class__.__mro__[1].__subclasses__() }}", ""},
    {"{{ messages.__class__.__init__.__globals__ }}", ""},
    {"{{ cycler.__init__.__globals__.os.popen('touch forged').read() }}", ""},
    {"{{ raise_exception('switchyard: forged\\n\\x1b[31m') }}", ""},
    {"{{ '%9999999999d' % 1 }}", ""},
    {"{{ (1, 2", ""},
    {"{% endfor %}", ""},
    {"{# no end", ""},
    {"{{ 'a' | replace('', 'x' * 99999) | replace('x', 'x' * 99999) }}", ""},
    {"{% set messages = messages * 99999 %}", ""},
    {"{{ ''.__class__ }}", good_template},
    {"{{ self }}", good_template},
    {"{% raw %}{% endraw %}", good_template},
};

// Commands that read expressions of a tokenizer's folder.
class Expressions {
 public:
  Expressions() {
    fs::create_directory("words");
    write_text("words/text", "count the tokens " + times("a", 60) + " of the experts\n" + times("one two three\n", 40));
    fs::create_directory("expressions");
    for (int i = 0; i < 40; ++i)
      write_text_line("talk.jsonl", fmt::format(R"({{"prompt": "count {}", "completion": "wagon {}"}})", i, i % 3));
    const Json golden = Json::parse(read_file(GOLDEN "/tokenizer_json.json"));
    for (const Json& c : golden["cases"].elements())
      if (c["name"].get<std::string>() == "gpt2") {
        tokenizer_ = c["parts"];
        tokenizer_["model"] = golden["models"][c["model"].get<std::string>()];
      }
    right_regular_ = right([&] { return with_regular_expression("Z", false); });
    right_template_ = right([&] { return with_template(good_template, false); });
  }
  TrialResult regular_expression(Draw& draw) {
    return judged(regular_expressions, draw, right_regular_, [&](const Hostile& hostile) {
      return with_regular_expression(hostile.expression, draw.below(2) == 1);
    });
  }
  TrialResult chat_template(Draw& draw) {
    return judged(templates, draw, right_template_, [&](const Hostile& hostile) {
      return with_template(hostile.expression + good_template, draw.below(2) == 1);
    });
  }

 private:
  static void write_text_line(const fs::path& path, const std::string& line) {
    write_text(path, (fs::exists(path) ? read_file(path) : "") + line + "\n");
  }

  // as_normalizer: the expression changes a text before it is split.
  CommandResult with_regular_expression(const std::string& expression, bool as_normalizer) const {
    const Json pattern = {{"Regex", expression}};
    Json file = tokenizer_;
    if (as_normalizer)
      file["normalizer"] = Json{{"type", "Replace"}, {"pattern", pattern}, {"content", "b"}};
    else
      file["pre_tokenizer"] =
          Json{{"type", "Sequence"},
               {"pretokenizers",
                Json::array({Json{{"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}},
                             tokenizer_["pre_tokenizer"]})}};
    fs::remove_all("made");
    write_text("expressions/tokenizer.json", file.dump());
    return run_command({"prepare", "--domain", "words=words", "--tokenizer", "hf:expressions", "--valid-fraction",
                        "0.2", "--quiet", "--output", "made"},
                       {.limit = 60});
  }
  // in_configuration: the template is a member of tokenizer_config.json, otherwise a file.
  static CommandResult with_template(const std::string& text, bool in_configuration) {
    fs::remove_all("made");
    fs::remove("expressions/tokenizer_config.json");
    fs::remove("expressions/chat_template.jinja");
    if (in_configuration)
      write_text("expressions/tokenizer_config.json", Json{{"chat_template", text}}.dump());
    else
      write_text("expressions/chat_template.jinja", text);
    return run_command({"prepare", "--chat", "talk=talk.jsonl", "--template", "hf:expressions", "--tokenizer", "bytes",
                        "--valid-fraction", "0.2", "--quiet", "--output", "made"},
                       {.limit = 60});
  }
  // The tokens of the data set.
  static std::string tokens() {
    std::string result;
    for (const fs::path& file : files_below("made"))
      if (file.stem().extension() == ".train" || file.stem().extension() == ".valid")
        result += file.string() + " " + files_result(fs::path("made") / file) + "\n";
    return result;
  }
  static std::string right(const std::function<CommandResult()>& prepare) {
    const CommandResult done = prepare();
    if (done.code != 0 || tokens().empty()) fail("a harmless expression failed: {}", text_of(done));
    return tokens();
  }
  static TrialResult judged(const std::vector<Hostile>& all, Draw& draw, const std::string& expected,
                            const std::function<CommandResult(const Hostile&)>& prepare) {
    const Hostile& hostile = all[static_cast<std::size_t>(draw.below(std::ssize(all)))];
    const CommandResult done = prepare(hostile);
    TrialResult result{outcome_of(done),
                       fmt::format("expression {}: {}", hostile.expression.substr(0, 200), text_of(done))};
    if (result.outcome == Outcome::survived && (hostile.harmless.empty() || tokens() != expected))
      result.outcome = Outcome::wrong;
    return result;
  }

  Json tokenizer_;
  std::string right_regular_, right_template_;
};

// ---- the row ----

std::vector<Group> groups_of_folders() {
  make_folders_to_read();
  std::vector<Group> groups = {
      {"trained", files_below("trained"), checkpoint_readers(), newest_checkpoint},
      {"imported", files_below("imported"), {making({"export", "imported", "--quiet"}, "exported")}},
      {"data", files_below("data"), {evaluating()}},
      {"model", files_below("model"), {importing()}}};
  groups.front().readers.push_back(resuming({"--log.csv=true", "--log.prometheus=true"}));
  return groups;
}
// A folder of texts with one file, whose name does not change the data set.
std::vector<Group> group_of_texts() {
  fs::create_directory("texts");
  write_text("texts/text", times("a token is sent to its experts\n", 50));
  return {{"texts",
           {"text"},
           {making({"prepare", "--domain", "texts=texts", "--tokenizer", "bytes", "--valid-fraction", "0.2", "--quiet",
                    "--output"},
                   "made")}}};
}

constexpr Index num_kinds = 16;

// Consecutive trials have all kinds.
class ForeignFiles final : public Row {
 public:
  ForeignFiles() : folders_(groups_of_folders()), texts_(group_of_texts()) {
    if (std::ssize(file_kinds) + std::ssize(strange_names) + 2 != num_kinds) fail("the number of kinds is wrong");
  }
  Index points() const override { return 0; }
  TrialResult run(Index trial) override {
    Draw draw("foreign", trial);
    Index kind = trial % num_kinds;
    if (kind < std::ssize(file_kinds))
      return folders_.trial(draw, [&]() -> const Damage& { return file_kinds[static_cast<std::size_t>(kind)]; });
    kind -= std::ssize(file_kinds);
    TrialResult result = kind < std::ssize(strange_names)
                             ? with_name(draw, strange_names[static_cast<std::size_t>(kind)])
                         : kind == std::ssize(strange_names) ? expressions_.regular_expression(draw)
                                                             : expressions_.chat_template(draw);
    // No text of a foreign folder is a command.
    if (fs::exists("forged")) result.outcome = Outcome::wrong;
    return result;
  }

 private:
  TrialResult with_name(Draw& draw, const StrangeName& name) {
    const bool is_text = draw.below(4) == 0;
    const Damage damage = is_text ? renamed(name) : named(name);
    return (is_text ? texts_ : folders_).trial(draw, [&]() -> const Damage& { return damage; });
  }

  DamagedFolders folders_, texts_;
  Expressions expressions_;
};

}  // namespace

std::unique_ptr<Row> make_foreign_files() {
  return std::make_unique<ForeignFiles>();
}

}  // namespace sy::campaign
