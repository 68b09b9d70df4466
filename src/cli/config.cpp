// switchyard config: the configuration of a file and settings, with the origin of each value.
#include "src/config.h"

#include <unistd.h>

#include <iostream>

#include "src/cli/options.h"
#include "src/text/json.h"
#include "src/text/table.h"

namespace sy {

int config_command(CommandLine& line) {
  po::options_description options(
      "Prints the whole configuration of CONFIG and the settings, as a configuration file. Comments say where each value\n"
      "comes from: FILE:LINE, the command line, or the default, which may follow from other keys.\n"
      "`switchyard help config` lists the keys.\n\nOptions");
  options.add_options()("json", po::bool_switch(), "print JSON: an object with value and origin of each key");
  std::vector<std::string> settings;
  ErrorList errors("config");
  po::variables_map arguments;
  if (!parse_options(line, "config", options, {"config"}, arguments, errors, &settings)) return 0;
  ConfigOrigins origins;
  Config config;
  std::vector<std::string> warnings;
  if (has_value(arguments, "config"))
    errors.run([&] { config = read_config(arguments["config"].as<std::string>(), settings, {}, &origins, &warnings); });
  errors.raise();
  for (const std::string& text : warnings) warn(text);
  const std::string text =
      arguments["json"].as<bool>() ? json_text(to_json(config, origins)) : to_ini(config, &origins);
  std::cout << (isatty(STDOUT_FILENO) ? visible(text, "\n\t") : text) << std::flush;
  return 0;
}

}  // namespace sy
