#include "src/train/metrics.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "dist/runtime.h"
#include "kernels/environment.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {
namespace {

// Result of reading the file for a run that continues with `first_step`.
struct FileContents {
  MetricsHistory history;
  Index end = 0;       // offset after the last complete line of an earlier step
  Index last = 0;      // step of that line
  Index damaged = 0;   // number of later lines that are damaged
  double skipped = 0;  // steps that were skipped up to that line
};

// Reads the file. An incomplete last line, which a kill leaves, is ignored.
FileContents scan_metrics(const std::filesystem::path& path, Index first_step) {
  FileContents contents;
  if (file_exists(path))
    read_lines(path, [&](const TextLine& line) {
      if (!line.whole) return;
      const std::optional<Json> m = Json::try_parse(line.text);
      const Index at = m ? integer_at(*m, "step").value_or(-1) : -1;
      contents.damaged += at < 0;
      if (at < 0 || at >= first_step) return;
      const Json* validation = m->find("validation");
      contents.history.missing.add(at);
      // A step whose loss was not finite counts unless it was skipped.
      const double skipped = number_at(*m, "skipped_steps").value_or(0);
      const std::optional<double> loss = number_at(*m, "loss");
      if (loss || skipped == contents.skipped) contents.history.rise.add(at, loss.value_or(std::nan("")));
      if (skipped > contents.skipped) contents.history.skips.add(at);
      contents.skipped = skipped;
      contents.history.totals.add(at, number_at(*m, "step_seconds").value_or(0),
                                  validation ? number_at(*validation, "loss") : std::nullopt);
      if (m->find("experts")) contents.history.counted = at;
      contents.end = line.end;
      contents.last = at;
      contents.damaged = 0;
    });
  contents.history.missing.end(first_step - 1);
  return contents;
}

std::string missing_lines_text(const MissingSteps& missing) {
  return fmt::format("lacks {}: these numbers are lost, and nothing else is", missing.text());
}

// Returns the process whose streams show where this process's output ends; 0 means this process.
// Otherwise it is the launcher, or launch/mpirun.sh, which started the launcher and filters its
// standard error.
pid_t console_process() {
  const pid_t parent = launcher_pid();
  const char* const script = environment("SWITCHYARD_CONSOLE_PROCESS");
  return parent != 0 && script && parent_of(parent) == std::atoi(script) ? parent_of(parent) : parent;
}

// Opens the terminal on which a standard stream ends. Returns -1 if there is none. The process that
// started a rank forwards its output, so that process's streams are examined. Streams on another
// machine are not visible.
int terminal_of(int stream) {
  const pid_t parent = console_process();
  const std::string path = fmt::format("/proc/{}/fd/{}", parent, stream);
  struct stat info;
  int file = -1;
  if (parent == 0)
    file = fcntl(stream, F_DUPFD_CLOEXEC, 0);
  else if (stat(path.c_str(), &info) == 0 && S_ISCHR(info.st_mode))
    file = open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 || isatty(file)) return file;
  close(file);
  return -1;
}

bool same_device(int a, int b) {
  struct stat one, other;
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_rdev == other.st_rdev;
}

int columns_of(int terminal) {
  winsize size{};
  const bool known = ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void print(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
  std::fflush(stream);
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& run_dir, Index first_step, const MetricsSinks& sinks)
    : path_(run_dir / "metrics.jsonl"), file_(open_for_writing(path_, "a"), std::fclose) {
  const FileContents contents = scan_metrics(path_, first_step);
  history_ = contents.history;
  totals_ = history_.totals;
  struct stat now {};
  if (fstat(fileno(file_.get()), &now) != 0 ||
      (now.st_size > contents.end && ftruncate(fileno(file_.get()), contents.end) != 0))
    fail("cannot cut {} back to step {}: {}", path_.string(), first_step - 1, std::strerror(errno));
  std::vector<std::string> facts;
  if (contents.damaged > 0)
    facts.push_back(fmt::format("is cut after step {}, from where on {} of its lines are damaged", contents.last,
                                contents.damaged));
  if (!history_.missing.empty()) facts.push_back(missing_lines_text(history_.missing));
  if (!facts.empty()) warn(fmt::format("{} {}", path_.string(), join(facts, ", and ")));
  sinks_.emplace(sinks, run_dir);
}

void MetricsFile::sync() {
  write_point("sync", path_);
  if (std::fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0)
    fail("cannot write {} to the disk: {}", path_.string(), std::strerror(errno));
}

Index last_step(const std::filesystem::path& run) {
  const auto path = run / "metrics.jsonl";
  if (!file_exists(path)) return 0;
  const InputFile file(path);
  constexpr Index most = 1 << 20;  // longer than a line with the counts of all experts
  const Index from = std::max<Index>(0, file.size() - most);
  std::string tail(static_cast<std::size_t>(file.size() - from), '\0');
  tail.resize(file.read_at(from, tail));
  const auto end = tail.rfind('\n');  // a line without it is torn
  constexpr std::string_view begin = "{\"step\":";
  const auto at = end == tail.npos ? tail.npos : tail.rfind(begin, end);
  Index step = 0;
  if (at != tail.npos) std::from_chars(tail.data() + at + begin.size(), tail.data() + tail.size(), step);
  return step;
}

std::string missing_steps_warning(const std::filesystem::path& run_dir, Index last) {
  const std::filesystem::path path = run_dir / "metrics.jsonl";
  const MissingSteps missing = scan_metrics(path, last + 1).history.missing;
  return missing.empty() ? "" : fmt::format("{} {}", path.string(), missing_lines_text(missing));
}

void RunTotals::add(Index step, double seconds, std::optional<double> validation_loss) {
  step_seconds += seconds;
  if (!validation_loss || !std::isfinite(*validation_loss)) return;
  if (best_step >= 0 && *validation_loss >= best_loss) return;
  best_step = step;
  best_loss = *validation_loss;
}

Json metrics_line(const StepMetrics& m, const ExpertCounts* experts, const std::vector<DomainScore>& validation,
                  double time) {
  Json line = {{"step", m.step},
               {"tokens", m.tokens},
               {"samples", m.samples},
               {"loss", m.loss},
               {"aux_loss", m.aux_loss},
               {"z_loss", m.z_loss},
               {"lr", m.lr},
               {"grad_norm", m.grad_norm},
               {"step_seconds", m.step_seconds},
               {"save_seconds", m.save_seconds},
               {"tokens_per_second", m.tokens_per_second},
               {"tflops_per_second_per_rank", m.tflops_per_second_per_rank}};
  if (m.mtp_loss) line["mtp_loss"] = *m.mtp_loss;
  if (m.indexer_loss) line["indexer_loss"] = *m.indexer_loss;
  if (m.mfu) line["mfu"] = *m.mfu;
  if (m.skipped_steps) line["skipped_steps"] = *m.skipped_steps;
  if (m.energy) {
    line["cpu_joules"] = m.energy->cpu_joules;
    line["gpu_joules"] = m.energy->gpu_joules;
  }
  line["time"] = utc_text(time);
  line["routed"] = m.routed;
  line["dropped"] = m.dropped;
  for (const auto& [domain, epochs] : m.epochs) line["epochs"][domain] = epochs;
  if (experts) line["experts"] = {{"routed", experts->routed}, {"dropped", experts->dropped}};
  if (!validation.empty()) {
    const auto score_json = [](const DomainScore& s) {
      return Json{{"loss", s.loss()}, {"bits_per_byte", s.bits_per_byte()}, {"windows", s.windows}};
    };
    Json& all = line["validation"] = score_json(total_of(validation));
    for (const DomainScore& s : validation) all["domains"][s.name] = score_json(s);
  }
  return line;
}

void MetricsFile::write(const StepMetrics& m, const ExpertCounts* experts, const std::vector<DomainScore>& validation) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  totals_.add(m.step, m.step_seconds, validation.empty() ? std::nullopt : std::optional(total_of(validation).loss()));
  const Json line = metrics_line(m, experts, validation, now);
  const std::string text = json_text(line, -1);
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0)
    fail("cannot write {}: {}", path_.string(), std::strerror(errno));
  sinks_->write(line, now);
}

std::string progress_text(const StepMetrics& m, Index total_steps, double elapsed, double per_step) {
  std::string text = fmt::format("step {:>{}}/{}  loss {:.4f}  {} tokens/s", m.step, std::to_string(total_steps).size(),
                                 total_steps, m.loss, short_count_text(m.tokens_per_second));
  if (m.mtp_loss) text += fmt::format("  mtp loss {:.4f}", *m.mtp_loss);
  if (m.indexer_loss) text += fmt::format("  indexer loss {:.4f}", *m.indexer_loss);
  if (m.routed > 0)
    text += fmt::format("  dropped {:.1f} %", 100.0 * static_cast<double>(m.dropped) / static_cast<double>(m.routed));
  if (m.step < total_steps && per_step > 0)
    text += fmt::format("  {} left", duration_text(per_step * static_cast<double>(total_steps - m.step)));
  // A terminal of 80 columns cuts off the end of the rewritten line.
  return text + fmt::format("  {} elapsed  lr {:.3g}  gradient norm {:.3g}", duration_text(elapsed), m.lr, m.grad_norm);
}

std::string validation_text(Index step, Index total_steps, const std::vector<DomainScore>& scores) {
  std::string text = fmt::format("step {:>{}}/{}  validation loss {:.4f}", step, std::to_string(total_steps).size(),
                                 total_steps, total_of(scores).loss());
  if (scores.size() > 1)
    for (const DomainScore& s : scores) text += fmt::format("  {} {}", s.name, number_text(s.loss(), 4));
  return text;
}

ProgressLine::ProgressLine(Index total_steps, Index every)
    : total_(total_steps), every_(std::max<Index>(every, 1)), terminal_(terminal_of(STDERR_FILENO)) {
  const int output = terminal_of(STDOUT_FILENO);
  same_terminal_ = terminal_ >= 0 && output >= 0 && same_device(terminal_, output);
  if (output >= 0) close(output);
}

ProgressLine::~ProgressLine() {
  clear();
  if (terminal_ >= 0) close(terminal_);
}

void ProgressLine::step(const StepMetrics& m) {
  // The first step also warms up the machine, so it is left out of the mean. The mean is over all
  // steps, later over about 20. A single step gives no estimate.
  const bool first = steps_seen_++ == 0;
  const double weight = std::max(0.05, 1.0 / static_cast<double>(std::max<Index>(steps_seen_ - 1, 1)));
  if (!first) per_step_ += weight * (m.step_seconds - per_step_);
  const std::string text = progress_text(m, total_, elapsed(), steps_seen_ > 2 ? per_step_ + pauses_ : 0);
  if (first || m.step % every_ == 0 || m.step == total_) {
    clear();
    note(text);
  } else if (terminal_ >= 0)
    show(text);
}

void ProgressLine::show(const std::string& line) {
  shown_line_ = fit_width(line, columns_of(terminal_) - 1);
  print(stderr, fmt::format("\r{}\x1b[K", shown_line_));
}

// If both streams end on one terminal, use one stream: mpirun forwards two streams in any order.
void ProgressLine::note(const std::string& text) {
  const std::string rewritten_line = shown_line_;
  clear();
  print(same_terminal_ ? stderr : stdout, text + '\n');
  log_console(text + '\n');
  if (!rewritten_line.empty()) show(rewritten_line);
}

double ProgressLine::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void ProgressLine::clear() {
  if (!shown_line_.empty()) print(stderr, "\r\x1b[K");
  shown_line_.clear();
}

}  // namespace sy
