// Records that the program wrote, and that it reads again.
#include <algorithm>
#include <cmath>

#include "src/analyse/experts.h"
#include "src/data/run_tokenizer.h"
#include "src/experiments/outcome.h"
#include "src/experiments/runs.h"
#include "src/experiments/scale.h"
#include "src/experiments/scale_check.h"
#include "src/experiments/step_breakdown.h"
#include "src/io/norm_history.h"
#include "src/io/validation_record.h"
#include "src/provenance/provenance.h"
#include "src/train/metrics.h"
#include "tests/fuzz/helpers.h"

namespace sy::fuzz {

namespace {

constexpr std::string_view run_settings = "[train]\nsteps = 20\nvalidate_every = 5\n";

// The list of runs survives any content of a file.
void inspect_any_run(const Scratch& scratch) {
  try {
    runs_text({{inspect_run(scratch.path())}, {}}, scratch.path());
  } catch (const InputError& e) {
    require(false, std::string("the list of runs never fails: ") + e.what());
  }
}

void read_metrics_file(Input input) {
  static Scratch scratch;
  scratch.write("config.ini", run_settings);
  scratch.write("metrics.jsonl", view_of(input));
  const Outcome outcome = read_outcome(scratch.path(), 20);
  outcome.loss();
  outcome.dropped();
  outcome.tokens_per_second();
  if (!outcome.missing.empty()) outcome.missing.text();
  last_step(scratch.path());
  inspect_any_run(scratch);
}

void read_run_config(Input input) {
  static Scratch scratch;
  scratch.write("config.ini", view_of(input));
  scratch.write("metrics.jsonl", "{\"step\":1,\"loss\":5.5,\"tokens_per_second\":98772}\n");
  inspect_any_run(scratch);
}

void read_trace(Input input) {
  try {
    const std::optional<StepTime> time = rank_breakdown(std::string(view_of(input)));
    if (time) mean_breakdown({*time, *time});
  } catch (const JsonError& e) {
    bad_input("{}", e.what());  // as its caller does, which names the file
  }
}

// Compares with an earlier result of `switchyard scale`.
void read_scale_result(Input input) {
  static Scratch scratch;
  static const ScaleResult now = [] {
    ScaleResult result{
        .options = {}, .points = {}, .environment = {"host", "avx2", "1", "0.1.0 abc", "launch/mpirun.sh"}};
    result.options.config = "model.ini";
    result.config = parse_config("[model]\nlayers = 2\n[train]\nglobal_batch = 8\n", "model.ini");
    ScalePoint point{Layout{}, 8, 8, false, {}};
    point.step_seconds = {2.5, 2.6};
    point.tokens = 1000;
    result.points = {point};
    return result;
  }();
  const Json earlier = read_scale_json(scratch.write("earlier.json", view_of(input)));
  Attempts attempts;
  attempts([&] { check_comparable(earlier, now, "earlier.json"); });
  attempts([&] { comparison_text(compare_scale(earlier, now, "earlier.json", 0.1)); });
  attempts.finish();
}

void read_evaluation_file(Input input) {
  static Scratch scratch;
  const Evaluation evaluation = read_evaluation(scratch.write("evaluation.json", view_of(input)));
  for (const std::int64_t block : evaluation.layers) select_block(evaluation, block);
}

void read_provenance_record(Input input) {
  const Json record = parse_record(std::string(view_of(input)));
  if (record.is_null()) bad_input("no record");
  provenance_entries(record);
  provenance_differences(record, public_record(record));
  provenance_line(record);
  csv_with_provenance("a,b\n1,2\n", record_for(record, ProvenanceDetail::full));
}

void read_validations(Input input) {
  ValidationRecord record = parse_validation_record(std::string(view_of(input)), "x");
  require(parse_validation_record(to_text(record), "x") == record, "a record is read as it was written");
  record.add(record.lowest_step, 1, 3);
}

void read_norms(Input input) {
  NormHistory history = parse_norm_history(std::string(view_of(input)), "x");
  require(parse_norm_history(to_text(history), "x") == history, "a history is read as it was written");
  history.limit(4);
  history.add(1);
}

void read_tokenizer_record(Input input) {
  to_text(parse_tokenizers(std::string(view_of(input))));
}

}  // namespace

std::vector<Target> record_targets() {
  return {
      {"metrics", "metrics.jsonl of a run", read_metrics_file},
      {"run_config", "config.ini of a run, for the list of runs", read_run_config},
      {"trace", "the trace of a rank", read_trace},
      {"scale_result", "NAME.json of `scale`, for --check", read_scale_result},
      {"evaluation", "the result of `evaluate`", read_evaluation_file},
      {"provenance", "a record of program, machines and call", read_provenance_record},
      {"validation_record", "the validations in a checkpoint", read_validations},
      {"norm_history", "the gradient norms in a checkpoint", read_norms},
      {"tokenizer_record", "the tokenizers in a checkpoint", read_tokenizer_record},
  };
}

}  // namespace sy::fuzz
