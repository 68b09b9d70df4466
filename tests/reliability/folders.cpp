// Inputs and results of the commands of the campaign.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "src/io/checkpoint.h"
#include "src/io/checkpoint_internal.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/reliability/campaign.h"

namespace sy::campaign {

const fs::path& work_folder() {
  static const fs::path folder = [] {
    // A file system in memory, if there is one: the trials are about calls, not about disks.
    const char* const chosen = std::getenv("TMPDIR");
    std::string name = std::string(chosen                            ? chosen
                                   : ::access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                                                     : "/tmp") +
                       "/switchyard-campaign-XXXXXX";
    if (!::mkdtemp(name.data())) fail("cannot make {}", name);
    fs::current_path(name);
    return fs::path(name);
  }();
  return folder;
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void replace_folder(const fs::path& from, const fs::path& to) {
  fs::remove_all(to);
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder));
  std::sort(files.begin(), files.end());
  return files;
}

void make_inputs() {
  fs::create_directories(work_folder() / "text");
  for (int i = 1; i <= 60; ++i)
    write_text(fmt::format("text/{}", i),
               fmt::format("token {} is sent to expert {} and then to expert {}\n", i, i * 5 % 7, i * 3 % 8));
  must_run({"prepare", "--domain", "english=text", "--tokenizer", "bytes", "--output", "data", "--valid-fraction",
            "0.2", "--quiet"});
  write_text("config.ini", R"([model]
layers = 2
d_model = 16
heads = 2
seq_len = 16
[moe]
experts = 4
d_ff = 16
[data]
path = data
[train]
steps = 4
warmup = 1
schedule = constant
global_batch = 4
micro_batch = 2
validate_every = 2
[run]
backend = cpu
checkpoint_every = 1
keep = 2
log_every = 1
)");
}

std::vector<std::string> train_args(const std::vector<std::string>& more, const fs::path& run) {
  std::vector<std::string> args = {"train", "config.ini", "--run.dir=" + (work_folder() / run).string()};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

namespace {

// Members of JSON that differ between two equal calls.
const std::set<std::string> unequal_members = {
    "step_seconds", "save_seconds", "tokens_per_second", "tflops_per_second_per_rank",
    "mfu",          "time",         "provenance",        "date"};

Json comparable(const Json& json) {
  if (json.is_array()) {
    Json result = Json::array();
    for (const Json& element : json) result.push_back(comparable(element));
    return result;
  }
  if (!json.is_object()) return json;
  Json result = Json::object();
  for (const auto& [name, value] : json.members())
    if (!unequal_members.contains(name)) result.append(name, comparable(value));
  return result;
}

std::string lines_result(const fs::path& path) {
  std::string text;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return text;
  read_lines(path, [&](const TextLine& line) {
    const auto json = Json::try_parse(line.text);
    text += json ? comparable(*json).dump() + "\n" : std::string(line.text) + "\n";
  });
  return text;
}

fs::path newest(const fs::path& run) {
  std::error_code ignored;
  if (!fs::is_directory(checkpoints_of(run), ignored)) return {};
  const std::vector<Index> steps = steps_in(checkpoints_of(run));
  return steps.empty() ? fs::path() : checkpoints_of(run) / step_name(*std::ranges::max_element(steps));
}

}  // namespace

std::string weights_result(const fs::path& run) {
  const fs::path step = newest(run);
  if (step.empty()) return "";
  std::string text = step.filename().string() + "\n";
  for (const fs::path& file : files_below(step))
    if (file.string().starts_with("shard"))
      text += fmt::format("{} {}\n", file.string(), to_hex(sha256_file(step / file)));
  return text;
}

std::string training_result(const fs::path& run) {
  std::string text = weights_result(run);
  if (text.empty()) return text;
  const TrainState state = read_state(newest(run));
  text += fmt::format("{} {} {} {} {} {} {}\n{}", state.step, state.tokens, state.samples, state.seed, state.vocab,
                      state.dataset_digest, state.layout, state.config);
  for (const auto* counts : {&state.experts.routed, &state.experts.dropped})
    text += fmt::format("{}\n", fmt::join(*counts, " "));
  text += fmt::format("{}\n", fmt::join(state.experts.steps, " "));
  return text + lines_result(run / "metrics.jsonl");
}

namespace {

std::string file_result(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.ends_with(".jsonl")) return lines_result(path);
  const auto json = name.ends_with(".json") ? Json::try_parse(read_file(path)) : std::nullopt;
  return json ? comparable(*json).dump() : to_hex(sha256_file(path));
}

}  // namespace

std::string files_result(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return file_result(path);
  if (!fs::is_directory(path, ignored)) return "";
  std::string text;
  for (const fs::path& file : files_below(path))
    if (!file.string().ends_with(".lock")) text += file.string() + " " + file_result(path / file) + "\n";
  return text;
}

}  // namespace sy::campaign
