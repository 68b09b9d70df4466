// switchyard help: the list of commands, one command, or configuration keys.
#include <fmt/core.h>

#include "src/cli/options.h"
#include "src/config.h"
#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {
std::string section_of(const std::string& key) {
  return key.substr(0, key.rfind('.'));
}

std::string name_in_section(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}

std::string first_sentence(const std::string& help, int width) {
  return fit_width(visible(help.substr(0, help.find(". "))), width);
}

std::string type_and_range(const ConfigKey& key) {
  return key.range.empty() ? key.type : key.type + " " + key.range;
}

namespace {

std::string wrapped(const std::string& text) {
  constexpr int columns = 80, indent = 4;
  std::string out;
  for (const std::string& line : wrap_text(text, columns - indent)) out += fmt::format("{:{}}{}\n", "", indent, line);
  return out;
}

bool is_of_kind(const ConfigKey& key) {
  return key.name.find(".NAME.") != key.name.npos;
}

std::string key_text(const ConfigKey& key, const std::string& name) {
  std::string text = name;
  if (!is_of_kind(key)) text += fmt::format(" (default: {})", key.default_value.empty() ? "empty" : key.default_value);
  std::string type = type_and_range(key);
  if (key.type == "text" && !key.values.empty()) type = "one of " + join(key.values, ", ");
  return text + "\n" + wrapped(key.help + ".") + wrapped("Takes " + type + ".");
}

// Prints all keys, for grep: a line for each, with the first sentence of its help.
void print_all_keys() {
  fmt::print(
      "`switchyard help SECTION` and `switchyard help KEY` say more, as in help moe and help moe.top_k;\n"
      "`switchyard config --help` is about the command of this name.\n");
  std::string section;
  for (const ConfigKey& k : config_keys()) {
    if (section_of(k.name) != section) {
      section = section_of(k.name);
      fmt::print("\n[{}]\n", section);
    }
    fmt::print("{:<31} # {}\n", name_in_section(k.name) + " = " + k.default_value, first_sentence(k.help, 66));
  }
}

// Prints a section of the configuration, or a key. Returns false if it is neither.
bool print_keys(const std::string& topic) {
  if (const ConfigKey* const key = find_config_key(topic)) {
    fmt::print("{}", key_text(*key, topic));
    if (is_of_kind(*key)) {
      const ConfigKey* const of_model = find_config_key("model." + name_in_section(topic));
      fmt::print("{}", key_text(*of_model, of_model->name));
    }
    return true;
  }
  constexpr std::string_view of_kinds = "attention.";
  const bool any_kind = (topic + ".").starts_with(of_kinds) && topic.find('.', of_kinds.size()) == topic.npos;
  const std::string wanted = any_kind ? "attention.NAME" : topic;
  bool found = false;
  for (const ConfigKey& k : config_keys()) {
    if (section_of(k.name) != wanted) continue;
    if (!found) fmt::print("[{}]\n", topic == "attention" ? wanted : topic);
    found = true;
    fmt::print("\n{}", key_text(k, name_in_section(k.name)));
  }
  return found;
}

}  // namespace

std::vector<std::string> help_topics(bool of_configuration) {
  std::vector<std::string> topics;
  if (!of_configuration) {
    topics.emplace_back("config");
    for (const Command& c : commands())
      if (c.name != topics.front()) topics.emplace_back(c.name);
  }
  for (const ConfigKey& k : config_keys())
    for (const std::string& topic : {section_of(k.name), k.name})
      if (std::find(topics.begin(), topics.end(), topic) == topics.end()) topics.push_back(topic);
  return topics;
}

int help_command(CommandLine& line) {
  if (line.options) {
    line.options->push_back({"--man", "print the manual page, as roff"});
    line.options->push_back({"--markdown", "print the reference of the commands, or after `config` that of the keys"});
    return 0;
  }
  std::vector<std::string> args = line.args;
  using Args = std::vector<std::string>;
  if (args == Args{"--man"} || args == Args{"--markdown"} || args == Args{"config", "--markdown"}) {
    fmt::print("{}", args.front() == "--man"        ? man_page(line.world)
                     : args.front() == "--markdown" ? command_page(line.world)
                                                    : config_page());
    return 0;
  }
  const auto no_more_than = [&](std::size_t most) {
    if (args.size() > most)
      bad_input("help: unexpected '{}': usage: switchyard help [COMMAND | config | SECTION | KEY]", args[most]);
  };
  if (args.empty() || args.front() == "--help" || args.front() == "-h") {
    no_more_than(1);
    fmt::print("Switchyard trains mixture-of-experts models on MPI ranks.\n\nusage: switchyard COMMAND ...\n\n");
    for (const Command& c : commands()) fmt::print("  {:<11} {}\n", c.name, c.summary);
    fmt::print(
        "\n`switchyard help COMMAND` says more; `switchyard help config` lists every configuration key, and\n"
        "`switchyard help moe` and `switchyard help moe.top_k` explain those of a section, or one.\n");
    return 0;
  }
  const bool of_configuration = args.front() == "config" && args.size() > 1;
  if (of_configuration) args.erase(args.begin());
  no_more_than(1);
  const std::string& topic = args.front();
  if (topic == "config" && !of_configuration) {
    print_all_keys();
    return 0;
  }
  if (!of_configuration)
    for (const Command& c : commands())
      if (topic == c.name) {
        CommandLine other{line.world, {"--help"}, nullptr};
        return c.run(other);
      }
  if (print_keys(topic)) return 0;
  const std::string near = nearest(topic, help_topics(of_configuration));
  bad_input("help: '{}' is no {}: {}", topic, of_configuration ? "section or key" : "command, section or key",
            !near.empty()      ? fmt::format("did you mean {}?", near)
            : of_configuration ? "`switchyard help config` lists them"
                               : "`switchyard help` and `switchyard help config` list them");
}

}  // namespace sy
