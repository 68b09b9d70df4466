// Command line of a benchmark: options, a usage text, and exit code 2 for bad options.
#pragma once

#include <boost/program_options.hpp>
#include <cstdio>
#include <sstream>
#include <string>

#include "kernels/check.h"
#include "kernels/threads.h"

namespace sy::bench {

// Reads the options of `program` into their variables. Returns false after --help; if `prints`,
// this rank has printed the usage text. Throws InputError for a bad option.
inline bool read_arguments(int argc, char** argv, const std::string& program, const std::string& purpose,
                           boost::program_options::options_description& options,
                           boost::program_options::variables_map& values, bool prints = true,
                           const boost::program_options::positional_options_description& positional = {}) {
  namespace po = boost::program_options;
  options.add_options()("help,h", "print this text");
  try {
    using namespace po::command_line_style;
    po::store(po::command_line_parser(argc, argv)
                  .options(options)
                  .positional(positional)
                  .style(unix_style & ~allow_guessing)
                  .run(),
              values);
    if (values.count("help")) {
      std::ostringstream text;
      text << options;
      if (prints) fmt::print("usage: {} [OPTION...]\n{}\n\n{}", program, purpose, text.str());
      return false;
    }
    po::notify(values);
  } catch (const po::error& error) {
    bad_input("{}: {} --help lists the options", error.what(), program);
  }
  return true;
}

// Runs a benchmark of one process with the thread settings of switchyard. Prints its error and
// returns its exit code.
template <class Run>
int exit_code_of(const char* program, char** argv, const Run& run, int spins = spins_between_large_products) {
  apply_thread_settings(argv, spins);
  try {
    return run();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return 1;
  }
}

}  // namespace sy::bench
