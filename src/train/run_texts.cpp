#include "src/train/run_texts.h"

#include <errno.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "dist/runtime.h"
#include "src/build_info.h"
#include "src/io/manifest.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// Returns the command line of this process, quoted for a shell.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {}), out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string argument = text.c_str() + at;
    out += (out.empty() ? "" : " ") + shell_quote(argument);
    at += argument.size() + 1;
  }
  return out;
}

}  // namespace

std::string start_text(const Config& config, int ranks) {
  const BuildInfo& build = build_info();
  return fmt::format("== {} switchyard {}{} on {}, layout {}: {}\n", utc_now(true), build.version,
                     build.commit.empty() ? "" : " " + build.commit.substr(0, 12), host_name(),
                     config.layout(ranks).str(), one_line(command_line()));
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
  if (end.can_generate) next(fmt::format("generate {} --prompt 'Once upon a time'", run));
  return text;
}

}  // namespace sy
