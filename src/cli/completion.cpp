// switchyard completion: what a shell needs to complete the command line, from the program's own tables.
#include <fmt/core.h>

#include "src/cli/options.h"
#include "src/config.h"
#include "src/text/words.h"

namespace sy {
namespace {

std::string options_of(const Command& command, Comm& world) {
  std::vector<std::string> names;
  CommandLine line{world, {}, &names};
  command.run(line);
  if (command.run == train_command)
    for (const ConfigKey& key : config_keys()) names.push_back("--" + key.name + "=");
  return join(names, " ");
}

}  // namespace

int completion_command(CommandLine& line) {
  po::options_description options("Completion of commands, options and settings: source <(switchyard completion bash)");
  po::variables_map given;
  if (!parse_options(line, "completion", options, {"shell"}, given)) return 0;
  const std::string shell = given["shell"].as<std::string>();
  if (shell != "bash") bad_input("completion: '{}': expected bash", shell);

  std::string names, cases;
  for (const Command& c : commands()) {
    names += std::string(names.empty() ? "" : " ") + c.name;
    if (c.run != completion_command)
      cases += fmt::format("    {}) options='{}' ;;\n", c.name, options_of(c, line.world));
  }
  fmt::print(
      R"(# Completion of switchyard for bash.
_switchyard() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} options= words=
  case ${{COMP_WORDS[1]}} in
{}  esac
  case $COMP_CWORD,${{COMP_WORDS[1]}} in
    1,*) words='{} --version' ;;
    2,help) words='config {}' ;;
    2,completion) words='bash' ;;
  esac
  # A kind of layer has any name.
  [[ $word =~ ^--([a-z]+)\.([^.=]+)\. ]] && options=${{options//.NAME./.${{BASH_REMATCH[2]}}.}}
  [[ $word == -* ]] && words+=" $options"
  COMPREPLY=($(compgen -W "$words" -- "$word" || :))
  # The value of a setting follows at once.
  [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace
  return 0
}}
complete -o default -F _switchyard switchyard
)",
      cases, names, names);
  return 0;
}

}  // namespace sy
