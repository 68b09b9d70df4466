// switchyard version: the program, its build and its libraries.
#include <iostream>

#include "src/cli/options.h"
#include "src/provenance/provenance.h"

namespace sy {

int version_command(CommandLine& line) {
  po::options_description options;
  options.add_options()("json", po::bool_switch(), "print JSON");
  po::variables_map arguments;
  if (!parse_options(line, "version", options, {}, arguments)) return 0;
  const Json program = program_record();
  std::cout << (arguments["json"].as<bool>() ? json_text(program) : program_text(program)) << std::flush;
  return 0;
}

}  // namespace sy
