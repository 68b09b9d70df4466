// Rows `damage` and `text`: files that are damaged or mixed up. Every reader of a run and of a data
// set reads them.
#include "tests/reliability/damage.h"

#include <algorithm>

#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/src/golden_model.h"

namespace sy::campaign {
namespace {

// ---- damages ----

std::string changed(const fs::path& file, const std::function<void(std::string&)>& change) {
  std::string content = read_file(file);
  change(content);
  write_text(file, content);
  return "";
}
Index index_in(const std::string& content, Draw& draw) {
  return draw.below(std::max<Index>(std::ssize(content), 1));
}

std::string flip_bit(const fs::path& file, const fs::path&, Draw& draw) {
  Index at = 0, bit = draw.below(8);
  changed(file, [&](std::string& content) {
    at = index_in(content, draw);
    if (!content.empty())
      content[static_cast<std::size_t>(at)] = static_cast<char>(content[static_cast<std::size_t>(at)] ^ (1 << bit));
  });
  return fmt::format("bit {} of byte {} flipped", bit, at);
}
std::string zero_range(const fs::path& file, const fs::path&, Draw& draw) {
  Index at = 0, bytes = 1 + draw.below(600);
  changed(file, [&](std::string& content) {
    at = index_in(content, draw);
    for (Index i = at; i < std::min(at + bytes, std::ssize(content)); ++i) content[static_cast<std::size_t>(i)] = 0;
  });
  return fmt::format("{} bytes from {} on set to 0", bytes, at);
}
std::string truncate(const fs::path& file, const fs::path&, Draw& draw) {
  Index at = 0;
  changed(file, [&](std::string& content) {
    at = index_in(content, draw);
    content.resize(static_cast<std::size_t>(at));
  });
  return fmt::format("cut to {} bytes", at);
}
std::string append(const fs::path& file, const fs::path&, Draw& draw) {
  const Index bytes = 1 + draw.below(100);
  changed(file, [&](std::string& content) { content.append(static_cast<std::size_t>(bytes), 'x'); });
  return fmt::format("{} bytes appended", bytes);
}
std::string remove_it(const fs::path& file, const fs::path&, Draw&) {
  fs::remove(file);
  return "removed";
}
std::string exchange(const fs::path& file, const fs::path& other, Draw& draw) {
  if (other.empty()) return remove_it(file, other, draw);
  fs::copy_file(other, file, fs::copy_options::overwrite_existing);
  return "replaced by " + other.string();
}

const std::vector<Damage> byte_damages = {flip_bit, flip_bit, flip_bit,  zero_range,
                                          truncate, append,   remove_it, exchange};

// ---- the row ----

constexpr const char* canary_text = "a file outside of the run\n";

fs::path whole(const fs::path& folder) {
  return folder.string() + ".whole";
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c < ' ' && c != '\n') || c == 0x7f; });
}

class Damages final : public Row {
 public:
  Damages(const char* name, std::vector<Group> groups) : name_(name), folders_(std::move(groups)) {}
  Index points() const override { return 0; }
  TrialResult run(Index trial) override {
    Draw draw(name_, trial);
    return folders_.trial(draw, [&]() -> const Damage& {
      return byte_damages[static_cast<std::size_t>(draw.below(std::ssize(byte_damages)))];
    });
  }

 private:
  const char* name_;
  DamagedFolders folders_;
};

}  // namespace

DamagedFolders::DamagedFolders(std::vector<Group> groups) : groups_(std::move(groups)) {
  fs::create_directory(canary().parent_path());
  for (Group& group : groups_) {
    replace_folder(group.folder, whole(group.folder));
    for (Reader& reader : group.readers) {
      const Reading undisturbed = reading(group, reader, false);
      readings_.emplace(&reader,
                        std::pair(undisturbed, group.newest.empty() ? undisturbed : reading(group, reader, true)));
    }
  }
}

TrialResult DamagedFolders::trial(Draw& draw, const std::function<const Damage&()>& draw_damage) {
  // A group is drawn as often as it has files and readers.
  Index weights = 0;
  for (const Group& g : groups_) weights += std::ssize(g.files) * std::ssize(g.readers);
  Index index = draw.below(weights);
  const Group* group = groups_.data();
  for (; index >= std::ssize(group->files) * std::ssize(group->readers); ++group)
    index -= std::ssize(group->files) * std::ssize(group->readers);
  const fs::path& file = group->files[static_cast<std::size_t>(index) % group->files.size()];
  const Reader& reader = group->readers[static_cast<std::size_t>(index) / group->files.size()];
  write_text(canary(), canary_text);
  // A file of the same name from another checkpoint.
  std::vector<fs::path> others;
  for (const fs::path& other : group->files)
    if (other != file && other.extension() == file.extension()) others.push_back(whole(group->folder) / other);
  const fs::path other = others.empty() ? fs::path() : others[static_cast<std::size_t>(draw.below(std::ssize(others)))];
  const Damage& damage = draw_damage();
  const std::string what = damage(group->folder / file, other, draw);
  fs::remove_all(reader.made);
  const CommandResult read = run_command(reader.args, {.limit = 60});
  TrialResult result{judge(reader, read), fmt::format("{}: {}, then '{}': {}", (group->folder / file).string(), what,
                                                      fmt::join(reader.args, " "), text_of(read))};
  // A name of a file must not control a terminal.
  if (!is_failure(result.outcome) && has_control_characters(read.err)) {
    result.outcome = Outcome::unclear;
    result.details += "the message has control characters\n";
  }
  if (read_file(canary()) != canary_text) {
    result.outcome = Outcome::wrong;
    result.details += "the file outside was changed\n";
  }
  replace_folder(whole(group->folder), group->folder);
  return result;
}

// Runs a reader without a fault, or without the newest checkpoint.
Reading DamagedFolders::reading(const Group& group, const Reader& reader, bool without_newest) const {
  fs::remove_all(reader.made);
  if (without_newest) fs::remove_all(group.folder / group.newest);
  const CommandResult read = run_command(reader.args);
  if (read.code != 0 && !(without_newest && reader.finds)) fail("{}", text_of(read));
  Reading result{read.out, read.err, reader.result ? reader.result() : ""};
  replace_folder(whole(group.folder), group.folder);
  return result;
}

Outcome DamagedFolders::judge(const Reader& reader, const CommandResult& read) const {
  if (reader.finds && read.code == 1 && errors_in(read.err) == 0) return Outcome::reported;
  const Outcome outcome = outcome_of(read);
  if (outcome != Outcome::survived) return outcome;
  const auto& [undisturbed, older] = readings_.at(&reader);
  const Reading now{read.out, read.err, reader.result ? reader.result() : ""};
  const auto equals = [&](const Reading& right) {
    return now.result == right.result && (!reader.prints || now.out == right.out);
  };
  const bool warned = now.err != undisturbed.err && has_warning(now.err);
  // Even with a warning, a result must be that of the older checkpoint.
  if (!equals(undisturbed) && !(warned && equals(older))) return Outcome::wrong;
  return warned ? Outcome::reported : Outcome::survived;
}

fs::path canary() {
  return work_folder() / "outside" / "canary";
}

// ---- files and readers ----

namespace {

std::vector<fs::path> files_with(const fs::path& folder, const std::function<bool(const std::string&)>& counts) {
  std::vector<fs::path> files;
  for (const fs::path& file : files_below(folder))
    if (counts(file.string())) files.push_back(file);
  if (files.empty()) fail("{} has no such files", folder.string());
  return files;
}
bool is_of_checkpoint(const std::string& file) {
  return file.starts_with("checkpoints/");
}
bool is_digested_copy(const std::string& file) {
  return file.starts_with("huggingface/") || is_of_checkpoint(file);
}

}  // namespace

void make_folders_to_read() {
  make_inputs();
  must_run(train_args({"--log.csv=true", "--log.prometheus=true"}, "trained"));
  must_run({"evaluate", "trained", "--backend", "cpu", "--quiet"});
  replace_folder("trained", "twin");
  write_model("model", Json::parse(read_file(GOLDEN "/families.json")).at(std::size_t{0}));
  must_run({"import", "model", "imported", "--quiet"});
}

Reader resuming(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"--run.resume=true", "--train.steps=6"});
  Reader reader{train_args(settings, "trained")};
  reader.prints = false;
  reader.result = [] { return weights_result("trained"); };
  return reader;
}
Reader making(std::vector<std::string> args, const fs::path& made) {
  args.push_back(made.string());
  Reader reader{std::move(args)};
  reader.made = made;
  reader.prints = false;
  reader.result = [made] {
    std::string result;
    for (const fs::path& file : files_below(made))
      if (file != "provenance.json") result += files_result(made / file) + "\n";
    return result;
  };
  return reader;
}

Reader evaluating() {
  return {{"evaluate", "trained", "--backend", "cpu", "--quiet", "--max-windows", "4"}};
}
Reader importing() {
  Reader reader{{"import", "model", "new", "--quiet"}};
  reader.made = "new";
  reader.prints = false;
  reader.result = [] { return weights_result("new"); };
  return reader;
}

std::vector<Reader> checkpoint_readers() {
  Reader verify{{"inspect", "trained", "--verify"}}, diff{{"diff", "trained", "twin"}};
  verify.finds = diff.finds = true;
  return {verify,
          diff,
          {{"inspect", "trained"}},
          evaluating(),
          {{"generate", "trained", "--prompt", "token", "--tokens", "4", "--backend", "cpu"}},
          {{"experts", "trained"}},
          making({"export", "trained", "--quiet", "--family", "mixtral"}, "exported"),
          resuming()};
}

std::unique_ptr<Row> make_damage() {
  make_folders_to_read();
  Reader verify{{"inspect", "data", "--verify"}};
  verify.finds = true;
  std::vector<Group> groups = {
      {"trained", files_with("trained", is_of_checkpoint), checkpoint_readers(), newest_checkpoint},
      {"imported", files_with("imported", is_digested_copy), {making({"export", "imported", "--quiet"}, "exported")}},
      {"data", files_below("data"), {verify, evaluating()}}};
  Reader train{train_args({"--train.steps=1"}, "new")};
  train.made = "new";
  train.prints = false;
  train.result = [] { return weights_result("new"); };
  groups.back().readers.push_back(train);
  return std::make_unique<Damages>("damage", std::move(groups));
}

std::unique_ptr<Row> make_text_damage() {
  make_folders_to_read();
  const auto counts = [](const std::string& file) { return !is_of_checkpoint(file); };
  std::vector<Group> groups = {{"trained", files_with("trained", counts), {resuming(), resuming({"--log.csv=true"})}}};
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"runs", "."}, {"evaluate", "trained", "--backend", "cpu", "--max-windows", "4"}}) {
    Reader reader{args};
    reader.prints = false;  // a changed number in a text is not noticed
    groups.front().readers.push_back(reader);
  }
  return std::make_unique<Damages>("text", std::move(groups));
}

}  // namespace sy::campaign
