#include "src/cli/options.h"

#include <iostream>

#include "src/config.h"
#include "src/text/words.h"

namespace sy {

bool parse_options(const CommandLine& line, const std::string& command, const po::options_description& options,
                   const std::vector<std::string>& positional, po::variables_map& out, bool repeat_last) {
  po::options_description all;
  all.add(options);
  all.add_options()("help,h", "show this");
  if (line.options) {
    for (const auto& option : all.options())
      line.options->push_back(
          {"--" + option->long_name(), option->description(), option->semantic()->max_tokens() > 0});
    return false;
  }
  // Takes the words after the last positional one. No option can have this name by accident.
  constexpr const char* surplus = "surplus words";
  po::positional_options_description places;
  for (std::size_t i = 0; i < positional.size(); ++i) {
    const bool repeats = repeat_last && i + 1 == positional.size();
    places.add(positional[i].c_str(), repeats ? -1 : 1);
    const po::value_semantic* value =
        repeats ? static_cast<po::value_semantic*>(po::value<std::vector<std::string>>()) : po::value<std::string>();
    all.add_options()(positional[i].c_str(), value);
  }
  if (!repeat_last) {
    places.add(surplus, -1);
    all.add_options()(surplus, po::value<std::vector<std::string>>());
  }
  const auto usage = [&] {
    for (const Command& c : commands())
      if (command == c.name) return fmt::format("usage: switchyard {} {}", c.name, c.usage);
    return "usage: switchyard " + command;
  };
  try {
    using namespace po::command_line_style;
    po::store(
        po::command_line_parser(line.args).options(all).positional(places).style(unix_style & ~allow_guessing).run(),
        out);
    if (out.count("help")) {
      if (line.world.rank() == 0) std::cout << usage() << "\n\n" << options;
      return false;
    }
    if (out.count(surplus))
      bad_input("{}: unexpected '{}': {}", command, out[surplus].as<std::vector<std::string>>().front(), usage());
    po::notify(out);
  } catch (const po::unknown_option& e) {
    std::vector<std::string> known{"--help"};
    for (const auto& o : options.options()) known.push_back("--" + o->long_name());
    const std::string near = nearest(e.get_option_name(), known);
    bad_input("{}: unknown option {}: {}", command, e.get_option_name(),
              near.empty() ? usage() : "did you mean " + near + "?");
  } catch (const po::error& e) {
    bad_input("{}: {}: {}", command, e.what(), usage());
  }
  for (const std::string& p : positional)
    if (!out.count(p)) bad_input("{}: {} is missing: {}", command, p, usage());
  return true;
}

std::vector<std::string> take_settings(const std::string& command, const std::vector<std::string>& args,
                                       std::vector<std::string>& settings, const po::options_description& own) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const std::string name = arg.substr(0, arg.find('='));
    if (!name.starts_with("--") || name.find('.') == name.npos) {
      for (const ConfigKey& key : config_keys())
        if (name.starts_with("--") && key.name.ends_with("." + name.substr(2)) &&
            !own.find_nothrow(name.substr(2), false))
          bad_input("{}: unknown option {}: did you mean --{}?", command, name, key.name);
      rest.push_back(arg);
    } else if (name.size() < arg.size()) {
      settings.push_back(arg);
    } else if (i + 1 < args.size() && !args[i + 1].starts_with("--")) {
      settings.push_back(arg + "=" + args[++i]);
    } else {
      bad_input("{}: {} has no value: settings have the form --section.key=value", command, arg);
    }
  }
  return rest;
}

std::vector<int> parse_ranks(const std::string& text) {
  constexpr int most = 1 << 20;
  std::vector<int> ranks;
  for (const std::string& item : split_list(text)) {
    const bool digits = !item.empty() && item.size() <= 7 && item.find_first_not_of("0123456789") == item.npos;
    ranks.push_back(digits ? std::stoi(item) : 0);
    if (ranks.back() < 1 || ranks.back() > most)
      bad_input("--ranks {}: '{}' is no number of ranks: give some from 1 to {}, as in 1,2,4", text, item, most);
  }
  if (ranks.empty()) bad_input("--ranks is empty: give numbers of ranks, as in 1,2,4");
  return ranks;
}

}  // namespace sy
