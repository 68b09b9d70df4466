#include "src/cli/options.h"

namespace sy {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"prepare", "--domain NAME=PATH[,PATH...] ... --tokenizer KIND --output DIR", "text to a data set",
       prepare_command, false},
      {"train", "CONFIG [--section.key=value ...] [--quiet] [--dry-run [--ranks N]]",
       "train a model, alone or under mpirun or srun", train_command, true, false, true},
      {"evaluate", "CHECKPOINT [--data DIR]", "loss, perplexity and bits per byte, by domain", evaluate_command, true,
       true, true},
      {"generate", "CHECKPOINT --prompt TEXT ... | --prompts FILE", "continue texts, alone or under mpirun or srun",
       generate_command, true, true},
      {"experts",
       "RUN|CHECKPOINT [--compare OTHER] [--replay DATA] [--ablate DATA] [--placement ep=N] [--html FILE] [--csv FILE] [--hdf5 FILE] [--json] [--layer N]",
       "what the experts did", experts_command, false, true, true},
      {"config", "CONFIG [--section.key=value ...] [--json]",
       "the whole configuration of a file, and where each value comes from", config_command, false},
      {"plan", "CONFIG --ranks N,... [--machine FILE|NAME] [--load RUN] [--layouts LIST] [--section.key=value ...]",
       "memory, FLOPs, traffic and time of every layout, without running any", plan_command, false, true, true},
      {"scale",
       "CONFIG --ranks N,... [--layouts auto|LIST] [--strong] [--weak] [--check FILE] [--section.key=value ...]",
       "measure a training on other numbers of ranks and layouts", scale_command, false, false, true},
      {"sweep", "CONFIG ... [--vary KEY=VALUE,VALUE,...] [--seeds N,N,...] [--ranks N] [--section.key=value ...]",
       "train a grid of configurations, and compare them", sweep_command, false, false, true},
      {"import", "FOLDER RUN [--upcycle experts=E,top_k=K[,parts=P]] [--section.key=value ...]",
       "start a run from a Hugging Face model, alone or under mpirun or srun", import_command, true, false, true},
      {"export", "CHECKPOINT FOLDER [--family NAME] [--dtype f32|bf16|f16]",
       "write a checkpoint as a Hugging Face model, alone or under mpirun or srun", export_command, true, false, true},
      {"inspect", "CHECKPOINT|DATA [--verify]", "what is in a checkpoint or a data set, and whether it is whole",
       inspect_command, false, true},
      {"runs", "[FOLDER] [--json]", "list the runs below a folder: step, loss, speed and state", runs_command, false},
      {"diff", "CHECKPOINT CHECKPOINT", "compare two checkpoints, tensor by tensor", diff_command, false, true},
      {"doctor", "[--dir DIR] [--machine FILE] [--json]",
       "what this machine offers, and what is misconfigured; under mpirun, on every rank", doctor_command, true},
      {"selftest", "[--dir DIR] [--json]",
       "check that this copy computes right on this machine; under mpirun or srun, on every rank", selftest_command,
       true},
      {"completion", "bash|zsh|fish", "what a shell needs to complete commands, options, settings and values",
       completion_command, false},
      {"help", "[COMMAND | config | SECTION | KEY] [--man | --markdown]", "this list, a command, or configuration keys",
       help_command, false},
      {"version", "[--json]", "version, commit, compiler and libraries of this program", version_command, false},
  };
  return table;
}

bool takes_settings(const Command& command) {
  return std::string_view(command.usage).find("--section.key=value") != std::string_view::npos;
}

}  // namespace sy
