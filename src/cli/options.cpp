#include "src/cli/options.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <utility>

#include "src/config.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/train/stop.h"

namespace sy {

namespace {

// The usage of a command: in full the first time, then a reference to it.
class Usage {
 public:
  explicit Usage(const std::string& command) : command_(command) {}
  std::string text() {
    if (std::exchange(shown_, true)) return fmt::format("see `switchyard help {}`", command_);
    for (const Command& c : commands())
      if (command_ == c.name) return fmt::format("usage: switchyard {} {}", c.name, c.usage);
    return "usage: switchyard " + command_;
  }

 private:
  const std::string& command_;
  bool shown_ = false;
};

// Returns true if an argument is this option, with a value after "=" or without.
bool names_option(const std::string& arg, const std::string& option) {
  return arg == option || arg.starts_with(option + "=");
}

// Splits arguments into options and positional ones. An option that lacks its value, or has too
// many, is added to `errors` and left out.
po::parsed_options split_arguments(const std::string& command, std::vector<std::string> args,
                                   const po::options_description& options, ErrorList& errors, Usage& usage) {
  using namespace po::command_line_style;
  for (;;) {
    try {
      return po::command_line_parser(args)
          .options(options)
          .style(unix_style & ~allow_guessing)
          .allow_unregistered()
          .run();
    } catch (const po::error_with_option_name& e) {
      errors.add("{}: {}: {}", command, e.what(), usage.text());
      const std::string option = e.get_option_name();
      if (std::erase_if(args, [&](const std::string& arg) { return names_option(arg, option); }) == 0) args.clear();
    } catch (const po::error& e) {
      errors.add("{}: {}: {}", command, e.what(), usage.text());
      args.clear();
    }
  }
}

// Removes the settings, --section.key=value or --section.key value, from the arguments. Returns the
// remaining arguments.
// own: the options of the command. An unknown option that is the end of a setting's key is reported
// as a setting without its section.
std::vector<std::string> take_settings(const std::string& command, const std::vector<std::string>& args,
                                       std::vector<std::string>& settings, ErrorList& errors,
                                       const po::options_description& own) {
  const auto keys_end_with = [](const std::string& name) {
    return std::ranges::find_if(config_keys(), [&](const ConfigKey& key) { return key.name.ends_with("." + name); });
  };
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const std::string name = arg.substr(0, arg.find('='));
    const bool value_follows = i + 1 < args.size() && !args[i + 1].starts_with("--");
    if (!name.starts_with("--") || name.find('.') == name.npos) {
      const auto key = name.starts_with("--") && !own.find_nothrow(name.substr(2), false)
                           ? keys_end_with(name.substr(2))
                           : config_keys().end();
      if (key == config_keys().end()) {
        rest.push_back(arg);
        continue;
      }
      errors.add("{}: unknown option {}: did you mean --{}?", command, name, key->name);
      if (name.size() == arg.size() && value_follows) ++i;
    } else if (name.size() < arg.size()) {
      settings.push_back(arg);
    } else if (value_follows) {
      settings.push_back(arg + "=" + args[++i]);
    } else {
      errors.add("{}: {} has no value: settings have the form --section.key=value", command, arg);
    }
  }
  return rest;
}

using ParsedOption = po::basic_option<char>;

// Names the positional arguments. A word after an unknown option may be its value. It is used only
// if there are too few others.
void name_positional(const std::string& command, const std::vector<std::string>& positional, bool repeat_last,
                     std::vector<ParsedOption>& parsed, ErrorList& errors, Usage& usage) {
  std::vector<ParsedOption*> sure, doubtful;
  for (std::size_t i = 0; i < parsed.size(); ++i) {
    if (parsed[i].position_key < 0) continue;
    const bool may_be_value = i > 0 && parsed[i - 1].unregistered && parsed[i - 1].value.empty();
    (may_be_value ? doubtful : sure).push_back(&parsed[i]);
  }
  if (sure.size() < positional.size() && !doubtful.empty()) {
    sure.insert(sure.end(), doubtful.begin(), doubtful.end());
    std::ranges::sort(sure, {}, &ParsedOption::position_key);
    if (!repeat_last && sure.size() > positional.size()) sure.resize(positional.size());
  }
  for (std::size_t i = 0; i < sure.size(); ++i)
    if (i < positional.size())
      sure[i]->string_key = positional[i];
    else if (repeat_last && !positional.empty())
      sure[i]->string_key = positional.back();
    else
      errors.add("{}: unexpected '{}': {}", command, sure[i]->value.front(), usage.text());
}

}  // namespace

bool parse_options(const CommandLine& line, const std::string& command, const po::options_description& options,
                   const std::vector<std::string>& positional, po::variables_map& out, ErrorList& errors,
                   std::vector<std::string>* settings, bool repeat_last) {
  po::options_description all;
  all.add(options);
  all.add_options()("help,h", "show this");
  if (line.options) {
    for (const auto& option : all.options()) {
      const bool takes_value = option->semantic()->max_tokens() > 0;
      // "arg (=0.8)"
      const std::string form = option->format_parameter();
      const std::size_t begin = takes_value ? form.find("(=") : form.npos;
      line.options->push_back({"--" + option->long_name(), option->description(), takes_value,
                               begin == form.npos ? "" : form.substr(begin + 2, form.size() - begin - 3)});
    }
    return false;
  }
  for (const std::string& name : positional) {
    if (all.find_nothrow(name, false)) continue;
    const bool repeats = repeat_last && name == positional.back();
    const po::value_semantic* value =
        repeats ? static_cast<po::value_semantic*>(po::value<std::vector<std::string>>()) : po::value<std::string>();
    all.add_options()(name.c_str(), value);
  }
  Usage usage(command);
  const std::vector<std::string> args =
      settings ? take_settings(command, line.args, *settings, errors, options) : line.args;
  po::parsed_options parsed = split_arguments(command, args, all, errors, usage);
  if (std::ranges::find(parsed.options, "help", &ParsedOption::string_key) != parsed.options.end()) {
    if (line.world.rank() == 0) std::cout << usage.text() << "\n\n" << options;
    return false;
  }
  name_positional(command, positional, repeat_last, parsed.options, errors, usage);

  std::vector<std::string> known;
  for (const auto& o : all.options()) known.push_back("--" + o->long_name());
  // by option, so that a wrong one does not affect the others
  std::map<std::string, po::parsed_options> groups;
  for (ParsedOption& option : parsed.options) {
    if (option.unregistered) {
      const std::string name = (option.string_key.starts_with('-') ? "" : "--") + option.string_key;
      const std::string near = nearest(name, known);
      errors.add("{}: unknown option {}: {}", command, name,
                 near.empty() ? usage.text() : "did you mean " + near + "?");
    } else if (!option.string_key.empty()) {
      const auto group = groups.try_emplace(option.string_key, parsed.description, parsed.m_options_prefix).first;
      group->second.options.push_back(option);
    }
  }
  po::store(po::parsed_options(&all), out);  // the defaults
  std::set<std::string> wrong;
  for (const auto& [name, group] : groups) {
    try {
      po::store(group, out);
    } catch (const po::error& e) {
      wrong.insert(name);
      out.erase(name);
      out.emplace(name, po::variable_value());
      errors.add("{}: {}: {}", command, e.what(), usage.text());
    }
  }
  for (const auto& option : all.options()) {
    const std::string& name = option->long_name();
    if (const auto value = out.find(name); value != out.end() && !value->second.empty()) {
      try {
        option->semantic()->notify(value->second.value());
      } catch (const InputError& e) {
        errors.add("{}: {}", command, e.what());
      }
    } else if (option->semantic()->is_required() && !wrong.contains(name)) {
      errors.add("{}: --{} is missing: {}", command, name, usage.text());
    }
  }
  for (const std::string& p : positional)
    if (!out.count(p)) errors.add("{}: {} is missing: {}", command, p, usage.text());
  return true;
}

bool parse_options(const CommandLine& line, const std::string& command, const po::options_description& options,
                   const std::vector<std::string>& positional, po::variables_map& out) {
  ErrorList errors(command);
  const bool go = parse_options(line, command, options, positional, out, errors);
  if (go) errors.raise();
  return go;
}

void add_provenance_option(po::options_description& options) {
  options.add_options()("provenance", po::value<std::string>()->default_value("brief"),
                        "brief or full: files for others contain version, commit, hardware and digest of the "
                        "configuration, or also hosts, command, date, environment and libraries");
}

ProvenanceDetail provenance_detail(const po::variables_map& arguments, ErrorList& errors) {
  if (!has_value(arguments, "provenance")) return ProvenanceDetail::brief;
  const std::string value = arguments["provenance"].as<std::string>();
  if (value != "brief" && value != "full") errors.add("--provenance {}: expected brief or full", value);
  return value == "full" ? ProvenanceDetail::full : ProvenanceDetail::brief;
}

void add_launcher_option(po::options_description& options, std::string& launcher) {
  options.add_options()("launcher", po::value(&launcher),
                        "how ranks are started, {ranks} being their number, as in \"srun --mpi=pmix -n {ranks}\" "
                        "(otherwise launch/mpirun.sh)");
}

void starts_ranks_itself(const char* command) {
  if (launcher_pid() != 0) bad_input("{} starts the ranks itself: call it without mpirun or srun", command);
}

int report_stop() {
  fmt::print(stderr, "stopped as {} asked; the same command goes on\n", signal_name(stop_signal()));
  return stopped_exit_code;
}

bool has_value(const po::variables_map& arguments, const char* option) {
  return arguments.count(option) > 0 && !arguments[option].empty();
}

std::vector<CommandOption> options_of(const Command& command, Comm& world) {
  std::vector<CommandOption> options;
  CommandLine line{world, {}, &options};
  command.run(line);
  return options;
}

po::typed_value<std::string>* seed_value(std::uint64_t& seed) {
  return po::value<std::string>()->default_value("1")->notifier([&seed](const std::string& text) {
    const auto number = parse_number<std::uint64_t>(text);
    if (!number) bad_input("--seed {}: expected a whole number from 0 to 2^64 - 1", text);
    seed = *number;
  });
}

std::vector<int> parse_ranks(const std::string& text) {
  constexpr int most = 1 << 20;
  std::vector<int> ranks;
  for (const std::string& item : split_list(text)) {
    ranks.push_back(parse_number<int>(item).value_or(0));
    if (ranks.back() < 1 || ranks.back() > most)
      bad_input("--ranks {}: '{}' is no number of ranks: give some from 1 to {}, as in 1,2,4", text, item, most);
  }
  if (ranks.empty()) bad_input("--ranks is empty: give numbers of ranks, as in 1,2,4");
  return ranks;
}

}  // namespace sy
