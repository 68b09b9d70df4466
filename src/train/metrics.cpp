#include "src/train/metrics.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/check.h"
#include "src/text/numbers.h"
#include "src/text/table.h"

namespace sy {
namespace {

using nlohmann::json;

// The step that a line is of; -1 for what is no whole line of ours.
Index step_of(const std::string& line) {
  const json m = json::parse(line, nullptr, false);
  const bool whole = m.is_object() && m.contains("step") && m["step"].is_number_integer();
  return whole ? m["step"].get<Index>() : -1;
}

// Cuts the file after its last whole line of a step before `first_step`. Steps only grow, so that what is cut
// is a tail.
void cut_from(const std::filesystem::path& path, Index first_step) {
  std::ifstream in(path);
  if (!in) return;
  std::uintmax_t at = 0, keep = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {  // a last line without '\n' is torn
    at += line.size() + 1;
    const Index step = step_of(line);
    if (step >= 0 && step < first_step) keep = at;
  }
  if (keep == std::filesystem::file_size(path)) return;
  std::error_code error;
  std::filesystem::resize_file(path, keep, error);
  if (error) fail("cannot cut {} back to step {}: {}", path.string(), first_step - 1, error.message());
}

int terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& run_dir, Index first_step) : path_(run_dir / "metrics.jsonl") {
  cut_from(path_, first_step);
  file_ = std::fopen(path_.c_str(), "a");
  if (!file_) bad_input("cannot write {}: {}: choose another run.dir", path_.string(), std::strerror(errno));
}

MetricsFile::~MetricsFile() {
  if (file_) std::fclose(file_);
}

void MetricsFile::write(const StepMetrics& m, const ExpertCounts* experts) {
  nlohmann::ordered_json line = {{"step", m.step},
                                 {"tokens", m.tokens},
                                 {"loss", m.loss},
                                 {"aux_loss", m.aux_loss},
                                 {"z_loss", m.z_loss},
                                 {"lr", m.lr},
                                 {"grad_norm", m.grad_norm},
                                 {"step_seconds", m.step_seconds},
                                 {"tokens_per_second", m.tokens_per_second},
                                 {"routed", m.routed},
                                 {"dropped", m.dropped}};
  if (experts) line["experts"] = {{"routed", experts->routed}, {"dropped", experts->dropped}};
  const std::string text = line.dump() + '\n';
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    fail("cannot write {}: {}", path_.string(), std::strerror(errno));
}

std::string progress_text(const StepMetrics& m, Index total_steps, double per_step) {
  std::string text = fmt::format("step {:>{}}/{}  loss {:.4f}  {} tokens/s", m.step, std::to_string(total_steps).size(),
                                 total_steps, m.loss, short_count_text(m.tokens_per_second));
  if (m.routed > 0) text += fmt::format("  dropped {:.1f} %", 100.0 * m.dropped / m.routed);
  if (m.step < total_steps) text += fmt::format("  {} left", duration_text(per_step * (total_steps - m.step)));
  return text;
}

ProgressLine::ProgressLine(Index total_steps, Index every)
    : total_(total_steps), every_(std::max<Index>(every, 1)), terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressLine::step(const StepMetrics& m) {
  // The first step also warms the machine up, so the second replaces it; then a mean of all, later of
  // about 20.
  const bool first = seen_++ == 0;
  const double weight = std::max(0.05, 1.0 / std::max<Index>(seen_ - 1, 1));
  per_step_ += weight * (m.step_seconds - per_step_);
  if (terminal_)
    show(progress_text(m, total_, per_step_));
  else if (first || m.step % every_ == 0 || m.step == total_) {
    fmt::print("{}\n", progress_text(m, total_, per_step_));
    std::fflush(stdout);
  }
}

void ProgressLine::show(const std::string& line) {
  shown_ = fit_width(line, terminal_columns() - 1);
  fmt::print(stderr, "\r{}\x1b[K", shown_);
  std::fflush(stderr);
}

void ProgressLine::note(const std::string& text) {
  if (!terminal_) {
    fmt::print("{}\n", text);
    std::fflush(stdout);
    return;
  }
  fmt::print(stderr, "\r\x1b[K{}\n{}", text, shown_);
  std::fflush(stderr);
}

void ProgressLine::finish() {
  if (terminal_ && !shown_.empty()) fmt::print(stderr, "\n");
  shown_.clear();
}

}  // namespace sy
