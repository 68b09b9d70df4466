// Parsing of options, and the table of commands. All commands use it.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "dist/runtime.h"
#include "src/provenance/provenance.h"
#include "src/text/error_list.h"

namespace sy {

namespace po = boost::program_options;

// An option of a command, for the shell's completion.
struct CommandOption {
  std::string name;  // "--json"
  std::string help;
  bool takes_value = false;
  std::string default_value = {};  // as --help prints it; empty if there is none
};

struct CommandLine {
  Comm& world;
  std::vector<std::string> args;  // after the command's name
  // If not nullptr, the command appends its options to it and does nothing else.
  std::vector<CommandOption>* options = nullptr;
  // Record of the program, the machines and this call (src/provenance/provenance.h); null if the
  // command writes no files with it.
  Json provenance = {};
};

// Runs a command, and returns its exit code.
using RunCommand = int(CommandLine&);

struct Command {
  const char* name;
  const char* usage;    // "CHECKPOINT [--verify]"
  const char* summary;  // one line
  RunCommand* run;
  bool parallel;  // runs on every rank; otherwise on one rank
  // If true, the command reads a checkpoint and changes nothing before that. It may start again if
  // a training deletes the checkpoint meanwhile.
  bool repeatable = false;
  bool records = false;  // gets CommandLine::provenance
};
const std::vector<Command>& commands();
// Returns the options of a command with their help texts.
std::vector<CommandOption> options_of(const Command& command, Comm& world);
// Returns true if the command takes settings, --section.key=value. Its usage says so.
bool takes_settings(const Command& command);

RunCommand prepare_command, train_command, import_command, export_command, evaluate_command, generate_command,
    inspect_command, diff_command, runs_command, experts_command, plan_command, scale_command, sweep_command,
    doctor_command, selftest_command, config_command, completion_command, help_command, version_command;

// Returns the topics of `switchyard help`: commands, sections and keys of the configuration. If
// of_configuration is true, returns only sections and keys.
std::vector<std::string> help_topics(bool of_configuration);

// Returns the first sentence of a help text, cut to `width` columns.
std::string first_sentence(const std::string& help, int width);

// Add the option --provenance of commands that write files for others, and return its value. A
// wrong value is added to `errors`.
void add_provenance_option(po::options_description& options);
ProvenanceDetail provenance_detail(const po::variables_map& arguments, ErrorList& errors);

// For commands that start trainings themselves.
// Adds the option --launcher, which launch_command() parses.
void add_launcher_option(po::options_description& options, std::string& launcher);
// Throws InputError under mpirun or srun.
void starts_ranks_itself(const char* command);
// Prints that the command was asked to stop, and returns the exit code for it.
int report_stop();

// Returns the value of an option --seed, which is 1 by default. Boost itself takes negative numbers
// for large ones.
po::typed_value<std::string>* seed_value(std::uint64_t& seed);

// Parses the numbers of ranks of --ranks, "1,2,4". Throws InputError.
std::vector<int> parse_ranks(const std::string& text);

// Parses args against `options`. Positional names are assigned in order; the last one may repeat if
// repeat_last.
// Adds unknown options, missing required ones and ill-typed values to `errors`. An ill-typed value
// is present in `out`, but empty.
// settings: gets the settings of a command that takes them, --section.key=value or --section.key
// value.
// With --help, prints the usage and returns false. Commands call this before they do anything else.
bool parse_options(const CommandLine& line, const std::string& command, const po::options_description& options,
                   const std::vector<std::string>& positional, po::variables_map& out, ErrorList& errors,
                   std::vector<std::string>* settings = nullptr, bool repeat_last = false);
// The same, but throws InputErrors.
bool parse_options(const CommandLine& line, const std::string& command, const po::options_description& options,
                   const std::vector<std::string>& positional, po::variables_map& out);
// Returns true if the option is present with a value of its type.
bool has_value(const po::variables_map& arguments, const char* option);

}  // namespace sy
