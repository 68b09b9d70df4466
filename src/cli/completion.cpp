// switchyard completion: scripts that shells load, and the candidates that they request.
#include <fmt/core.h>

#include <algorithm>

#include "src/cli/options.h"
#include "src/config.h"
#include "src/families/family.h"
#include "src/plan/machine.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// Candidates for a shell's completion of the word at the cursor. A name ends in '=' or ':' if more
// follows without a blank. The help may be empty.
using CompletionCandidates = std::vector<CommandOption>;

// Returns the only valid values of a configuration key. Empty if there is no such list or key.
std::vector<std::string> key_values(std::string_view key) {
  const ConfigKey* const found = find_config_key(key);
  return found ? found->values : std::vector<std::string>();
}

// Returns the values of an option, or the prefixes of its values. Empty if it takes any text.
std::vector<std::string> option_values(const std::string& command, const std::string& option) {
  if (option == "--backend") return key_values("run.backend");
  if (option == "--dtype") return {"f32", "bf16", "f16"};
  if (option == "--tokenizer") return {"bytes", "spm:", "train-spm:", "hf:"};
  if (option == "--placement") return {"ep="};
  if (option == "--upcycle") return {"experts="};
  if (option == "--layouts" && command == "scale") return {"auto"};
  // doctor writes this file
  if (option == "--machine" && command != "doctor") return machine_names();
  if (option == "--family") {
    std::vector<std::string> names;
    for (const Family& family : families()) names.emplace_back(family.name);
    return names;
  }
  return {};
}

// Returns the kind of layer that a setting names: "local" for "--attention.local.window". Empty if
// it names none.
std::string kind_of(const std::string& setting) {
  constexpr std::string_view section = "--attention.";
  const auto end = setting.find('.', section.size());
  return setting.starts_with(section) && end != setting.npos ? setting.substr(section.size(), end - section.size())
                                                             : "";
}

std::vector<std::string> values_of(const Command& command, const std::string& name) {
  std::vector<std::string> values;
  if (takes_settings(command)) values = key_values(name.substr(std::min<std::size_t>(2, name.size())));
  return values.empty() ? option_values(command.name, name) : values;
}

CompletionCandidates all_options(const Command& command, const std::string& current, Comm& world) {
  CompletionCandidates all = options_of(command, world);
  if (!takes_settings(command)) return all;
  const std::string kind = kind_of(current);
  for (const ConfigKey& key : config_keys()) {
    std::string name = key.name;
    if (!kind.empty()) replace_all(name, ".NAME.", "." + kind + ".");
    all.push_back({"--" + name + "=", key.help});
  }
  return all;
}

CompletionCandidates of_command(const Command& command, const std::vector<std::string>& args, Comm& world) {
  const std::string &current = args.back(), &previous = args[args.size() - 2];
  CompletionCandidates all;
  const auto add = [&](const std::string& start, const std::vector<std::string>& values) {
    for (const std::string& value : values) all.push_back({start + value, ""});
  };
  if (command.run == help_command) {
    const bool of_configuration = args.size() == 3 && previous == "config";
    if (args.size() == 2 || of_configuration) add("", help_topics(of_configuration));
  } else if (const auto equals = current.find('='); current.starts_with("--") && equals != current.npos) {
    add(current.substr(0, equals + 1), values_of(command, current.substr(0, equals)));
  } else if (args.size() > 2 && previous.starts_with("--") && previous.find('=') == previous.npos &&
             !current.starts_with("-")) {
    add("", values_of(command, previous));
  } else if (current.starts_with("-")) {
    all = all_options(command, current, world);
  } else if (command.run == completion_command && args.size() == 2) {
    add("", {"bash", "zsh", "fish"});
  }
  return all;
}

// Returns the candidates for the last of `args`, which follow the program's name. Empty if the
// word may be a file or any text.
CompletionCandidates completion_candidates(const std::vector<std::string>& args, Comm& world) {
  CompletionCandidates all;
  if (args.size() == 1) {
    for (const Command& c : commands()) all.push_back({c.name, c.summary});
    all.push_back({"--version", ""});
    all.push_back({"--help", ""});
  }
  for (const Command& c : commands())
    if (args.size() > 1 && args.front() == c.name) all = of_command(c, args, world);
  std::erase_if(all, [&](const CommandOption& c) { return args.empty() || !c.name.starts_with(args.back()); });
  return all;
}

// Each script calls the program that is being completed, whatever its path.
constexpr const char* bash_script = R"sh(# Completion of switchyard for bash: source <(switchyard completion bash)
_switchyard() {
  local token glued= args=() before line found=()
  # bash splits arguments at = and : (COMP_WORDBREAKS).
  for token in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ ${#args[@]} -gt 0 && ($glued || $token == [=:]*) ]]; then
      args[${#args[@]}-1]+=$token
    else
      args+=("$token")
    fi
    [[ $token == [=:] ]] && glued=1 || glued=
  done
  [[ $token == [=:] ]] && token=
  before=${args[${#args[@]}-1]}
  before=${before%"$token"}
  while IFS= read -r line; do
    line=${line%%$'\t'*}
    found+=("${line#"$before"}")
  done < <("${COMP_WORDS[0]/#\~/$HOME}" completion candidates "${args[@]}" 2>/dev/null)
  COMPREPLY=("${found[@]}")
  # No blank separates = or : from the value.
  [[ ${#found[@]} -eq 1 && ${found[0]} == *[=:] ]] && compopt -o nospace
  return 0
}
complete -o default -F _switchyard switchyard
)sh";

constexpr const char* zsh_script = R"sh(#compdef switchyard
# Completion of switchyard for zsh: source <(switchyard completion zsh), or a file _switchyard in $fpath.
_switchyard() {
  local line program="${words[1]/#\~/$HOME}"
  local -a args open_texts open_lines texts lines
  args=("${(@Q)words[2,CURRENT]}")
  for line in "${(@f)$("$program" completion candidates "${args[@]}" 2>/dev/null)}"; do
    [[ -n $line ]] || continue
    if [[ ${line%%$'\t'*} == *[=:] ]]; then
      open_texts+=("${line%%$'\t'*}") open_lines+=("${line/$'\t'/  -- }")
    else
      texts+=("${line%%$'\t'*}") lines+=("${line/$'\t'/  -- }")
    fi
  done
  if (( ${#texts} + ${#open_texts} == 0 )); then
    compset -P '--*='
    _files
    return
  fi
  (( ${#texts} )) && compadd -l -d lines -- "${texts[@]}"
  (( ${#open_texts} )) && compadd -l -S '' -d open_lines -- "${open_texts[@]}"
}
if [[ ${funcstack[1]} == _switchyard ]]; then _switchyard "$@"; else compdef _switchyard switchyard; fi
)sh";

constexpr const char* fish_script = R"sh(# Completion of switchyard for fish: switchyard completion fish | source
function __switchyard_candidates
  set -l tokens (commandline -opc)
  set -l current (commandline -ct)
  test (count $current) -eq 0; and set current ''
  set -l program (string replace -r '^~' $HOME -- $tokens[1])
  set -l found ($program completion candidates $tokens[2..-1] $current 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\n' $found
  else
    set -l start (string match -r -- '^--[^=]*=' $current)
    for path in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' $current))
      printf '%s%s\n' "$start" $path
    end
  end
end
complete -c switchyard -f -a '(__switchyard_candidates)'
)sh";

}  // namespace

int completion_command(CommandLine& line) {
  // The scripts call `completion candidates WORD...`. A WORD may look like an option.
  if (!line.options && !line.args.empty() && line.args.front() == "candidates") {
    for (const CommandOption& c : completion_candidates({line.args.begin() + 1, line.args.end()}, line.world)) {
      const std::string help = first_sentence(c.help, 60);
      fmt::print("{}{}{}\n", c.name, help.empty() ? "" : "\t", help);
    }
    return 0;
  }
  po::options_description options(
      "Prints a script that a shell loads to complete commands, options, settings and values:\n"
      "  bash: source <(switchyard completion bash)\n"
      "  zsh:  source <(switchyard completion zsh), after compinit\n"
      "  fish: switchyard completion fish | source");
  po::variables_map arguments;
  if (!parse_options(line, "completion", options, {"shell"}, arguments)) return 0;
  const std::string shell = arguments["shell"].as<std::string>();
  for (const auto& [name, script] : {std::pair{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}})
    if (shell == name) {
      fmt::print("{}", script);
      return 0;
    }
  bad_input("completion: '{}': expected bash, zsh or fish", shell);
}

}  // namespace sy
