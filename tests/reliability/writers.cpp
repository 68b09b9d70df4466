#include "tests/reliability/writers.h"

#include "src/system/files.h"
#include "src/text/json.h"
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
  write_model("model", Json::parse(read_file(GOLDEN "/families.json")).at(std::size_t{0}));
  must_run({"import", "model", "imported", "--quiet"});
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
  const fs::path data = work / "new-data";
  writers.push_back(making(
      "prepare", {"prepare", "--domain", "english=text", "--tokenizer", "bytes", "--output", data.string(), "--quiet"},
      data, [data] {
        // A kill after dataset.ini is there leaves these two beside a whole data set.
        std::string result;
        std::error_code ignored;
        if (!fs::exists(data, ignored)) return result;
        for (const fs::path& file : files_below(data))
          if (file != "prepare.replaced" && *file.begin() != "prepare.tmp" && file.extension() != ".lock")
            result += file.string() + " " + files_result(data / file) + "\n";
        return result;
      }));
  const fs::path import = work / "new-import";
  writers.push_back(making("import", {"import", "model", import.string(), "--quiet"}, import, [import] {
    const std::string result = training_result(import);
    return result.empty() ? "" : result + files_result(import / "huggingface") + files_result(import / "config.ini");
  }));
  const fs::path model = work / "new-model";
  writers.push_back(making("export", {"export", "imported", model.string(), "--quiet"}, model, [model] {
    std::string result;
    std::error_code ignored;
    // A kill between the last rename and the end leaves a lock file in a whole folder.
    if (!fs::exists(model / "config.json", ignored)) return result;
    for (const fs::path& file : files_below(model))
      if (file != "provenance.json" && file.extension() != ".lock") result += files_result(model / file) + "\n";
    return result;
  }));
  writers.push_back(making("evaluate --logits",
                           {"evaluate", "trained", "--tokens", "1,2,3", "--logits", (work / "new.h5").string(),
                            "--backend", "cpu", "--quiet"},
                           work / "new.h5"));
  writers.push_back(
      making("experts --placement-file",
             {"experts", "trained", "--placement", "ep=2", "--placement-file", (work / "new.out").string()},
             work / "new.out"));
  for (const char* kind : {"hdf5", "csv", "html", "figures-csv"})
    writers.push_back(
        making(kind, {"experts", "trained", std::string("--") + kind, (work / "new.out").string()}, work / "new.out"));
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
    writer.reset();
    writer.calls = must_run(writer.args, {.fault = &none}).calls;
    writer.undisturbed = writer.result();
    if (writer.undisturbed.empty() || writer.calls < 3)
      fail("{}: no result, or {} calls: the campaign does not see it", writer.name, writer.calls);
    // The same again, to know that the result does not change by itself.
    writer.reset();
    must_run(writer.args);
    if (writer.result() != writer.undisturbed) fail("{}: two undisturbed calls have unequal results", writer.name);
  }
  return writers;
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

Outcome outcome_again(const Writer& writer, std::string& details) {
  const CommandResult again = run_command(writer.again);
  details += "again: " + text_of(again);
  if (again.hung) return Outcome::hung;
  if (again.signal != 0) return Outcome::crashed;
  const bool equal = writer.result() == writer.undisturbed;
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
  const Outcome again = outcome_again(writer, result.details);
  if (is_failure(again)) result.outcome = again;
  return result;
}

}  // namespace sy::campaign
