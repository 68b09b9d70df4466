#include <fmt/core.h>

#include "src/build_info.h"
#include "src/cli/options.h"
#include "src/config.h"
#include "src/text/words.h"

namespace sy {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"prepare", "--domain NAME=PATH[,PATH...] ... --tokenizer KIND --output DIR", "text to a data set",
       prepare_command, false},
      {"train", "CONFIG [--section.key=value ...] [--quiet] [--dry-run [--ranks N]]",
       "train a model, alone or under mpirun or srun", train_command, true},
      {"evaluate", "CHECKPOINT [--data DIR]", "loss, perplexity and bits per byte, by domain", evaluate_command, true,
       true},
      {"generate", "CHECKPOINT --prompt TEXT ... | --prompts FILE", "continue texts, alone or under mpirun or srun",
       generate_command, true, true},
      {"experts",
       "RUN|CHECKPOINT [--compare OTHER] [--replay DATA] [--ablate DATA] [--placement ep=N] [--html FILE] [--csv FILE] [--hdf5 FILE] [--json] [--layer N]",
       "what the experts did", experts_command, false, true},
      {"plan", "CONFIG --ranks N,... [--machine FILE|NAME] [--load RUN] [--layouts LIST] [--section.key=value ...]",
       "memory, FLOPs, traffic and time of every layout, without running any", plan_command, false, true},
      {"scale", "CONFIG --ranks N,... [--layouts auto|LIST] [--weak] [--section.key=value ...]",
       "measure a training on other numbers of ranks and layouts", scale_command, false},
      {"sweep", "CONFIG ... [--vary KEY=VALUE,VALUE,...] [--seeds N,N,...] [--ranks N] [--section.key=value ...]",
       "train a grid of configurations, and compare them", sweep_command, false},
      {"import", "FOLDER RUN [--upcycle experts=E,top_k=K[,parts=P]] [--section.key=value ...]",
       "start a run from a Hugging Face model, alone or under mpirun or srun", import_command, true},
      {"export", "CHECKPOINT FOLDER [--family NAME] [--dtype f32|bf16|f16]",
       "write a checkpoint as a Hugging Face model, alone or under mpirun or srun", export_command, true},
      {"inspect", "CHECKPOINT|DATA [--verify]", "what is in a checkpoint or a data set, and whether it is whole",
       inspect_command, false, true},
      {"diff", "CHECKPOINT CHECKPOINT", "compare two checkpoints, tensor by tensor", diff_command, false, true},
      {"doctor", "[--dir DIR] [--machine FILE] [--json]",
       "what this machine offers, and what is misconfigured; under mpirun, on every rank", doctor_command, true},
      {"completion", "bash", "what bash needs to complete commands, options and settings", completion_command, false},
      {"help", "[config | COMMAND]", "this list, every configuration key, or a command", help_command, false},
      {"version", "", "the version", version_command, false},
  };
  return table;
}

int version_command(CommandLine& line) {
  po::variables_map given;
  if (!parse_options(line, "version", {}, {}, given)) return 0;
  fmt::print("switchyard {}\n", build_info().version);
  return 0;
}

int help_command(CommandLine& line) {
  if (line.options) return 0;
  if (line.args.empty() || line.args.front() == "--help" || line.args.front() == "-h") {
    fmt::print("Switchyard trains mixture-of-experts decoders on MPI ranks.\n\nusage: switchyard COMMAND ...\n\n");
    for (const Command& c : commands()) fmt::print("  {:<11} {}\n", c.name, c.summary);
    fmt::print("\n`switchyard help COMMAND` says more; `switchyard help config` lists every configuration key.\n");
    return 0;
  }
  const std::string& topic = line.args.front();
  if (topic == "config") {
    std::string section;
    for (const ConfigKey& k : config_keys()) {
      const auto dot = k.name.rfind('.');
      if (k.name.substr(0, dot) != section) {
        section = k.name.substr(0, dot);
        fmt::print("\n[{}]\n", section);
      }
      fmt::print("{:<32} # {} ({})\n", k.name.substr(dot + 1) + " = " + k.default_value, k.help, k.type);
    }
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& c : commands()) {
    if (topic == c.name) {
      CommandLine other{line.world, {"--help"}, nullptr};
      return c.run(other);
    }
    names.emplace_back(c.name);
  }
  const std::string near = nearest(topic, names);
  bad_input("help: unknown command '{}': {}", topic,
            near.empty() ? "`switchyard help` lists them" : "did you mean " + near + "?");
}

}  // namespace sy
