// switchyard export: writes a checkpoint as a Hugging Face model.
#include <fmt/format.h>

#include "src/cli/progress.h"
#include "src/cli/trained.h"
#include "src/families/export.h"

namespace sy {

int export_command(CommandLine& line) {
  po::options_description options(
      "Writes config.json, safetensors, the tokenizer that the run keeps and generation_config.json to FOLDER, which must be\n"
      "new.\n\n"
      "Options");
  ExportOptions settings;
  bool quiet = false;
  Index average = 1;
  // clang-format off
  options.add_options()
      ("family", po::value(&settings.family),
       "model_type of config.json; default: the imported model's, otherwise the first that can express the model")
      ("dtype", po::value(&settings.type), "f32, bf16 or f16; default: as imported, otherwise run.dtype")
      ("file-bytes", po::value(&settings.file_bytes)->default_value(settings.file_bytes),
       "a file ends where the next tensor would make it larger than this; default: as imported")
      ("average", po::value(&average)->default_value(average),
       "writes the means of the weights of this number of checkpoints: CHECKPOINT and the newest ones before it")
      ("adapter", po::bool_switch(&settings.adapter),
       "of a run that trained adapters of LoRA: writes these alone, as adapter_model.safetensors and "
       "adapter_config.json of PEFT; default: weights that include them")
      ("quiet", po::bool_switch(&quiet), "no progress");
  // clang-format on
  add_provenance_option(options);
  po::variables_map arguments;
  bool go = true;
  ProvenanceDetail detail{};
  Comm& world = line.world;
  agree_on_errors(world, [&] {
    ErrorList errors("export");
    go = parse_options(line, "export", options, {"checkpoint", "folder"}, arguments, errors);
    if (!go) return;
    detail = provenance_detail(arguments, errors);
    errors.raise();
    if (settings.file_bytes < 1) bad_input("export: --file-bytes must be at least 1");
    if (average > 1 && settings.adapter) bad_input("export: --average is of whole weights: leave out --adapter");
    if (average < 1) bad_input("export: --average must be at least 1");
  });
  if (!go) return 0;
  const Trained trained = open_checkpoint(world, arguments["checkpoint"].as<std::string>());
  agree_on_errors(world, [&] {
    if (settings.adapter && trained.config.train.lora_rank == 0)
      bad_input("export: {} has no adapters of LoRA: leave out --adapter", trained.step_dir().string());
  });
  if (average > 1) {
    std::vector<std::string> warnings;
    settings.average = last_checkpoints(world, trained.step_dir(), average, warnings);
    for (const std::string& text : warnings) warn(text);
    agree_on_errors(world, [&] {
      const std::vector<ParamSpec> specs = param_specs(trained.config, trained.state.vocab);
      for (const std::filesystem::path& step_dir : settings.average) check_parameters(step_dir, specs);
    });
  }
  if (!line.provenance.is_null())
    settings.provenance = {
        {"export",
         record_for(with_inputs(line.provenance, trained.state.config, trained.state.dataset_digest), detail)},
        {"checkpoint", record_for(parse_record(trained.state.provenance), detail)}};
  const bool lead = world.rank() == 0;
  const std::string folder = arguments["folder"].as<std::string>();
  std::string note;
  {
    Progress progress;
    note = export_checkpoint(world, trained.folder, trained.state, trained.config, folder, settings,
                             [&](Index done, Index total) {
                               if (lead && !quiet) progress.show("exporting", done, total);
                             });
  }
  if (lead && !note.empty()) fmt::print(stderr, "note: {}\n", note);
  const std::string mean = average > 1 ? fmt::format(", the mean of {} checkpoints", average) : "";
  if (lead && !quiet)
    fmt::print("{} of {} at step {}{}\n", folder, trained.step_dir().string(), trained.state.step, mean);
  return 0;
}

}  // namespace sy
