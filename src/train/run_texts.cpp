#include "src/train/run_texts.h"

#include <errno.h>

#include "dist/device_comm.h"
#include "dist/runtime.h"
#include "src/build_info.h"
#include "src/io/manifest.h"
#include "src/model/rope.h"
#include "src/provenance/provenance.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {

std::string start_text(const Config& config, int ranks) {
  const BuildInfo& build = build_info();
  return fmt::format("== {} switchyard {}{} on {}, layout {}: {}\n", utc_now(true), build.version,
                     build.commit.empty() ? "" : " " + build.commit.substr(0, 12) + (build.dirty ? "-dirty" : ""),
                     host_name(), config.layout(ranks).str(), one_line(command_line_text()));
}

namespace {

// Returns "web 0.5, code 1.25".
std::string epochs_text(const DomainEpochs& epochs) {
  std::vector<std::string> texts;
  for (const auto& [domain, value] : epochs) texts.push_back(fmt::format("{} {:.3g}", domain, value));
  return join(texts, ", ");
}

// Describes the changes of the global batch: ", from step 100 on 32". Empty if there are none.
std::string ramp_text(const Config::Train& train) {
  std::string text;
  for (const BatchRamp::Change& change : train.batch_ramp.changes)
    text += fmt::format(", from step {} on {}", change.step, change.batch);
  return text;
}

}  // namespace

DomainEpochs domain_epochs(const Dataset& dataset, const SampleStream& samples, Index n) {
  DomainEpochs out;
  const std::vector<double> epochs = samples.epochs(n);
  for (std::size_t d = 0; d < epochs.size(); ++d) out.emplace_back(dataset.domains()[d].name, epochs[d]);
  return out;
}

std::vector<std::string> repetition_warnings(Index step, const DomainEpochs& before, const DomainEpochs& after) {
  std::vector<std::string> out;
  for (std::size_t d = 0; d < after.size(); ++d)
    if (before[d].second <= 1 && after[d].second > 1)
      out.push_back(fmt::format("step {}: all samples of domain {} have been read once: from now on they repeat", step,
                                after[d].first));
  return out;
}

std::string training_summary(const Config& config, const Dataset& dataset, const SampleStream& samples,
                             Index last_samples, const Layout& layout, const MemoryPlan& memory,
                             const std::string& device, Index library_bytes) {
  const ParamCount count = count_params(config, model_vocab(config, dataset.vocab()));
  return fmt::format(
      "model     {:.2f} M parameters, {:.2f} M active per token{}\n"
      "layout    {} ({}), {}\n"
      "memory    {} per rank: weights {}, gradients {}, optimizer {}, activations about {}{}{}\n"
      "data      {}: {} sequences of {} tokens an epoch; a step takes {}{}\n"
      "epochs    {} until step {}{}",
      static_cast<double>(count.total) / 1e6, static_cast<double>(count.active) / 1e6,
      count.trained < count.total ? fmt::format(", {} trained ({})", count_text(count.trained),
                                                config.train.lora_rank > 0 ? "LoRA" : "indexers")
                                  : "",
      layout.str(), counted(layout.ranks, "rank"), device, megabytes(memory.total()), megabytes(memory.weights),
      megabytes(memory.gradients), megabytes(memory.optimizer), megabytes(memory.activations()),
      library_bytes > 0 ? fmt::format("; {} and cuBLAS have {}", device_collectives().name, megabytes(library_bytes))
                        : "",
      config.run.async_checkpoint
          ? fmt::format("; {} of the host for the copy of a checkpoint", megabytes(memory.checkpoint_copy))
          : "",
      config.data.path, samples.samples_per_epoch(), config.model.seq_len, config.train.global_batch,
      ramp_text(config.train), epochs_text(domain_epochs(dataset, samples, last_samples)), config.train.steps,
      training_rope_text(block_specs(config)));
}

std::vector<std::string> all_config_warnings(const Config& config, const Layout& layout, const Dataset& dataset,
                                             const SampleStream& samples, Index last_samples) {
  std::vector<std::string> out = config_warnings(config, layout);
  if (const Index batch = config.train.largest_batch(); samples.samples_per_epoch() < batch)
    out.push_back(fmt::format(
        "data.path = {} has {} sequences of {} tokens, fewer than train.global_batch = {}: a step trains on "
        "some of them several times: prepare more text, or lower train.global_batch",
        config.data.path, samples.samples_per_epoch(), config.model.seq_len, batch));
  for (const auto& [domain, epochs] : domain_epochs(dataset, samples, last_samples))
    if (epochs > 1)
      out.push_back(fmt::format(
          "domain {} will be read {:.1f} times in this run: prepare more of its text, or lower its weight or train.steps",
          domain, epochs));
  return out;
}

std::string end_text(const RunEnd& end) {
  const std::string run = shell_quote(end.run.string()), program = shell_quote(program_invocation_name);
  std::string text =
      fmt::format("done      steps {} to {} in {}", end.first_step, end.last_step, duration_text(end.seconds));
  if (end.first_step > 1)
    text += fmt::format(", and {} in the steps of all starts", duration_text(end.totals.step_seconds));
  if (end.totals.best_step >= 0)
    text += fmt::format("\nbest      validation loss {:.4f} at step {}", end.totals.best_loss, end.totals.best_step);
  text += fmt::format("\nresult    {}", (checkpoints_of(end.run) / step_name(end.last_step)).string());
  const char* before = "\nnext      ";
  const auto next = [&](const std::string& command) {
    text += before + fmt::format("{} {}", program, command);
    before = "\n          ";
  };
  if (end.can_evaluate) next("evaluate " + run);
  if (end.has_experts) next("experts " + run);
  constexpr Index usual_tokens = 200;
  const Index prompt_tokens = end.reads_source ? 0 : 17;
  const std::string tokens = end.positions > 0 && end.positions < prompt_tokens + usual_tokens
                                 ? fmt::format(" --tokens {}", std::max<Index>(1, end.positions - prompt_tokens))
                                 : "";
  if (end.can_generate)
    next(fmt::format("generate {} {}", run,
                     end.is_encoder ? "--fill-mask 'Once upon a [MASK]'" : "--prompt 'Once upon a time'" + tokens));
  return text;
}

}  // namespace sy
