#include "tests/reliability/writers.h"

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <sstream>

#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/reliability/ranks.h"
#include "tests/src/golden_model.h"

namespace sy::campaign {
namespace {

std::function<void()> removing(const std::vector<fs::path>& paths) {
  return [paths] {
    for (const fs::path& path : paths) fs::remove_all(path);
  };
}

// A training that begins in the folder `start`; empty: in no folder.
Writer training(const char* name, const fs::path& start, const std::vector<std::string>& settings) {
  const fs::path run = work_folder() / "run";
  std::vector<std::string> resumed = train_args(settings);
  resumed.push_back("--run.resume=true");
  Writer writer{name, resumed, resumed, run.string(), nullptr, [run] { return training_result(run); }};
  writer.reset = [run, start] {
    fs::remove_all(run);
    if (!start.empty()) replace_folder(start, run);
  };
  return writer;
}

// A command that makes `made` anew.
Writer making(const char* name, const std::vector<std::string>& args, const fs::path& made,
              std::function<std::string()> result = nullptr) {
  Writer writer{name, args, args, made.string(), removing({made}), std::move(result)};
  if (!writer.result) writer.result = [made] { return files_result(made); };
  return writer;
}

// A command that makes files in the folder `output`, which also has finished trainings.
Writer tabling(const char* name, const std::vector<std::string>& args, const fs::path& output,
               const std::vector<std::string>& tables) {
  Writer writer = making(name, args, output, [=] {
    std::string result;
    for (const std::string& table : tables) result += files_result(output / table);
    return result;
  });
  std::vector<fs::path> made;
  for (const std::string& table : tables) made.push_back(output / table);
  for (const fs::path& file : files_below(output))
    if (file.filename() == "environment.json") made.push_back(output / file);
  writer.reset = removing(made);
  return writer;
}

Writer preparing(const fs::path& data) {
  return making("prepare",
                {"prepare", "--domain", "english=text", "--tokenizer", "bytes", "--output", data.string(), "--quiet"},
                data, [data] {
                  // A kill after dataset.ini is there leaves these two beside a whole data set.
                  std::string result;
                  std::error_code ignored;
                  if (!fs::exists(data, ignored)) return result;
                  for (const fs::path& file : files_below(data))
                    if (file != "prepare.replaced" && *file.begin() != "prepare.tmp" && file.extension() != ".lock")
                      result += file.string() + " " + files_result(data / file) + "\n";
                  return result;
                });
}

Writer importing(const fs::path& run) {
  return making("import", {"import", "model", run.string(), "--quiet"}, run, [run] {
    const std::string result = training_result(run);
    return result.empty() ? "" : result + files_result(run / "huggingface") + files_result(run / "config.ini");
  });
}

Writer exporting(const fs::path& model) {
  return making("export", {"export", "imported", model.string(), "--quiet"}, model, [model] {
    std::string result;
    std::error_code ignored;
    // A kill between the last rename and the end leaves a lock file in a whole folder.
    if (!fs::exists(model / "config.json", ignored)) return result;
    for (const fs::path& file : files_below(model))
      if (file != "provenance.json" && file.extension() != ".lock") result += files_result(model / file) + "\n";
    return result;
  });
}

// A command that trains in folders below `output`, and then makes tables there.
// result_of: result of the training in a folder.
Writer starting(const char* name, std::vector<std::string> args, const fs::path& output,
                const std::vector<std::string>& tables, std::function<std::string(const fs::path&)> result_of) {
  args.insert(args.end(), {"--output", output.string()});
  Writer writer = making(name, args, output, [=] {
    std::string result;
    std::error_code ignored;
    for (const std::string& table : tables)
      if (!fs::exists(output / table, ignored)) return result;
    for (const fs::path& file : files_below(output))
      if (file.filename() == "config.ini")
        result += file.parent_path().string() + "\n" + result_of(output / file.parent_path());
    return result;
  });
  writer.starts_trainings = true;
  return writer;
}

// `sweep` and `scale`, which train anew. Speeds are in their tables, so most tables differ.
std::vector<Writer> starters(const fs::path& folder) {
  write_text("sweep.ini", "[sweep]\nbase = config.ini\nvary = train.lr=1e-3,1e-2\n");
  const fs::path swept = folder / "swept";
  Writer sweep = starting("sweep", {"sweep", "sweep.ini", "--train.steps=2", "--train.validate_every=1"}, swept,
                          {"sweep.md", "sweep.json", "sweep.svg"}, training_result);
  sweep.result = [swept, of_runs = sweep.result] {
    const std::string runs = of_runs();
    // A warning about a cut line of metrics.jsonl is right.
    static const std::regex warnings(R"("warnings":\[[^\]]*\],)");
    return runs.empty() ? "" : runs + std::regex_replace(files_result(swept / "sweep.json"), warnings, "");
  };
  // It deletes the checkpoints of trainings that have ended.
  Writer scale = starting(
      "scale",
      {"scale", "config.ini", "--ranks", "1", "--warm-up", "0", "--steps", "1", "--repeats", "1", "--own-routing-only"},
      folder / "scaled", {"config.json", "config.csv", "config.html"},
      [](const fs::path& run) { return files_result(run / "metrics.jsonl"); });
  return {sweep, scale};
}

void make_model() {
  write_model("model", Json::parse(read_file(GOLDEN "/families.json")).at(std::size_t{0}));
  must_run({"import", "model", "imported", "--quiet"});
}

// Runs the command without a fault, and keeps its result.
CommandResult run_undisturbed(Writer& writer, const CommandOptions& options = {}) {
  writer.reset();
  const CommandResult result = must_run(writer.args, options);
  const std::string made = writer.result();
  if (made.empty()) fail("{}: no result: the campaign does not see it", writer.name);
  if (!writer.undisturbed.empty() && made != writer.undisturbed)
    fail("{}: two undisturbed calls have unequal results", writer.name);
  writer.undisturbed = made;
  return result;
}

void check_calls(const Writer& writer) {
  if (writer.calls < 3) fail("{}: {} calls: the campaign does not see it", writer.name, writer.calls);
}

}  // namespace

std::vector<Writer> make_writers(bool removals) {
  make_inputs();
  const fs::path work = work_folder(), run = work / "run";
  const std::vector<std::string> sinks = {"--log.csv=true", "--log.prometheus=true", "--log.tensorboard=true"};

  // A finished run, and one of two ranks that has two steps left.
  must_run(train_args({}, "trained"));
  const CommandResult two = run_process({SOURCE_FOLDER "/launch/mpirun.sh", "2", program_path().string(), "train",
                                         "config.ini", "--run.dir=" + run.string(), "--train.steps=2", "--quiet"});
  if (two.code != 0) fail("a training of two ranks failed: {}", text_of(two));
  fs::rename(run, work / "two-ranks");
  make_model();
  write_text("sweep.ini", "[sweep]\nbase = config.ini\nvary = train.lr=1e-3,1e-2\n");
  const std::vector<std::string> sweep = {"sweep", "sweep.ini", "--output", (work / "swept").string()};
  const std::vector<std::string> scale = {"scale", "config.ini", "--ranks", "1",        "--steps",
                                          "2",     "--repeats",  "1",       "--output", (work / "scaled").string()};
  must_run(sweep);
  must_run(scale);

  std::vector<Writer> writers;
  writers.push_back(training("train", "", {}));
  writers.push_back(training("train with all logs", "", sinks));
  writers.push_back(training("train, synchronous", "", {"--run.async_checkpoint=false"}));
  writers.push_back(training("resume of two ranks", work / "two-ranks", {}));
  writers.push_back(preparing(work / "new-data"));
  writers.push_back(importing(work / "new-import"));
  writers.push_back(exporting(work / "new-model"));
  writers.push_back(making("evaluate --logits",
                           {"evaluate", "trained", "--tokens", "1,2,3", "--logits", (work / "new.h5").string(),
                            "--backend", "cpu", "--quiet"},
                           work / "new.h5"));
  writers.push_back(
      making("experts --placement-file",
             {"experts", "trained", "--placement", "ep=2", "--placement-file", (work / "new.out").string()},
             work / "new.out"));
  for (const char* kind : {"hdf5", "csv", "html", "figures-csv"})
    writers.push_back(making(
        kind, {"experts", "trained", "--placement", "ep=2", std::string("--") + kind, (work / "new.out").string()},
        work / "new.out"));
  // A copy of its own, because `experts` shows the evaluation of a run.
  const fs::path evaluation = work / "evaluated" / "evaluation.json";
  fs::copy(work / "trained", work / "evaluated", fs::copy_options::recursive);
  writers.push_back(making("evaluate", {"evaluate", "evaluated", "--backend", "cpu", "--quiet"}, evaluation));
  // Their trainings have ended: the commands write the state and the tables.
  writers.push_back(tabling("sweep", sweep, work / "swept", {"sweep.md", "sweep.json", "sweep.svg"}));
  writers.push_back(tabling("scale", scale, work / "scaled", {"config.json", "config.csv", "config.html"}));

  for (Writer& writer : writers) {
    Fault none;
    none.path = writer.path.c_str();
    none.removals = removals;
    writer.calls = run_undisturbed(writer, {.fault = &none}).calls;
    check_calls(writer);
    run_undisturbed(writer);  // to know that the result does not change by itself
  }
  return writers;
}

std::vector<Writer> make_starters() {
  make_inputs();
  std::vector<Writer> writers;
  for (Writer& command : starters(work_folder())) {
    Fault none;
    none.path = command.path.c_str();
    none.removals = true;
    command.calls = run_undisturbed(command, {.fault = &none}).calls;
    writers.push_back(command);
    for (const fs::path& file : files_below(command.path)) {
      if (file.filename() != "config.ini") continue;
      Writer training = command;
      training.name += ", " + file.parent_path().string();
      training.path = (fs::path(command.path) / file.parent_path() / "").string();
      training.rank = 0;
      run_undisturbed(training, {.prepare = [&] {
                        ::setenv("CAMPAIGN_COUNTS", "counts", 1);
                        ::setenv("CAMPAIGN_KILL", ("0 0 0 " + training.path).c_str(), 1);
                      }});
      std::istringstream in(read_file("counts.0"));
      for (Index number = 0; in >> number;) training.calls = number;
      writers.push_back(training);
    }
  }
  for (const Writer& writer : writers) check_calls(writer);
  return writers;
}

std::vector<Writer> make_trainings_below(const fs::path& root) {
  make_inputs();
  const fs::path run = root / "run";
  std::vector<Writer> writers;
  // With keep = 1, the checkpoint before is deleted as soon as the new one is on the disk.
  for (const char* const setting : {"--run.async_checkpoint=true", "--run.async_checkpoint=false", "--run.keep=1"})
    writers.push_back(making(setting, train_args({setting, "--run.resume=true", "--log.csv=true"}, run), root,
                             [run] { return training_result(run); }));
  for (Writer& writer : writers) writer.is_training = true;
  return writers;
}

std::vector<Writer> make_commands_below(const fs::path& root) {
  make_inputs();
  make_model();
  const fs::path folder = root / "new";  // its name may be lost, too
  std::vector<Writer> writers = {preparing(folder / "data"), importing(folder / "run"), exporting(folder / "model")};
  for (Writer& writer : starters(folder)) writers.push_back(std::move(writer));
  return writers;
}

CommandResult run_killed(const Writer& writer, const Fault& fault) {
  CommandOptions options;
  if (writer.rank < 0)
    options.fault = &fault;
  else
    options.prepare = [&] {
      ::setenv(
          "CAMPAIGN_KILL",
          fmt::format("{} {} {} {}", writer.rank, fault.at, fault.error == kill_halfway ? 1 : 0, fault.path).c_str(),
          1);
    };
  CommandResult result = run_command(writer.args, options);
  if (writer.starts_trainings && !wait_for_ranks()) result.hung = true;
  return result;
}

Index count_points(const std::vector<Writer>& writers, Index kinds) {
  Index points = 0;
  for (const Writer& writer : writers) points += writer.calls * kinds;
  return points;
}

Point point_of(const std::vector<Writer>& writers, Index kinds, Index trial) {
  Index index = shuffled(trial, count_points(writers, kinds));
  for (const Writer& writer : writers) {
    if (index < writer.calls * kinds) return {&writer, index / kinds + 1, index % kinds};
    index -= writer.calls * kinds;
  }
  fail("no such point");
}

// The texts from a line before their first difference on.
static std::string difference_of(const std::string& made, const std::string& expected) {
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(made, expected).in1 - made.begin());
  const std::size_t begin = at < 100 ? 0 : at - 100;
  return fmt::format("'{}', not '{}'\n", made.substr(begin, 300), expected.substr(begin, 300));
}

Outcome outcome_again(const Writer& writer, std::string& details) {
  const CommandResult again = run_command(writer.again);
  details += "again: " + text_of(again);
  if (again.hung) return Outcome::hung;
  if (again.signal != 0) return Outcome::crashed;
  const std::string made = writer.result();
  const bool equal = made == writer.undisturbed;
  if (!equal) details += "the results differ: " + difference_of(made, writer.undisturbed);
  if (again.code == 0) return equal ? Outcome::survived : Outcome::wrong;
  // The first command may have made the whole output, which a command does not replace.
  return equal && outcome_of(again) == Outcome::reported ? Outcome::survived : Outcome::unclear;
}

TrialResult outcome_of_failure(const Writer& writer, const CommandResult& first, const std::string& fault) {
  TrialResult result{outcome_of(first), fault + ": " + text_of(first)};
  if (is_failure(result.outcome)) return result;
  if (result.outcome == Outcome::survived && writer.result() != writer.undisturbed) {
    result.outcome = has_warning(first.err) ? Outcome::reported : Outcome::wrong;
    if (is_failure(result.outcome)) return result;
  }
  Outcome again = outcome_again(writer, result.details);
  if (is_failure(again) && result.outcome == Outcome::reported && first.code == 0) {
    // It has made another output, with a warning, and does not replace it.
    writer.reset();
    again = outcome_again(writer, result.details);
  }
  if (is_failure(again)) result.outcome = again;
  return result;
}

}  // namespace sy::campaign
