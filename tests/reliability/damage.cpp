// Rows `damage`, `text` and `foreign`: files that are damaged, mixed up, or no regular files. Every
// reader of a run and of a data set reads them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/reliability/campaign.h"
#include "tests/src/golden_model.h"

namespace sy::campaign {
namespace {

// A command that reads.
struct Reader {
  std::vector<std::string> args;
  bool finds = false;  // exit code 1 without an error: it has found a difference
  bool prints = true;  // its output belongs to its result
  fs::path made = {};  // removed before each call
  std::function<std::string()> result = nullptr;
};
// Output and result of a reader.
struct Reading {
  std::string out, err, result;
};
// Files, and the readers of them.
struct Group {
  fs::path folder;              // is restored after each trial
  std::vector<fs::path> files;  // relative
  std::vector<Reader> readers;
  fs::path newest = {};  // its newest checkpoint; a reader that warns may read the one before
};

// ---- damages ----

using Damage = std::function<std::string(const fs::path& file, const fs::path& other, Draw& draw)>;

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

constexpr const char* canary_text = "a file outside of the run\n";
fs::path canary() {
  return work_folder() / "outside" / "canary";
}
// Replaces the file by another kind of file.
Damage replaced(const char* name, const std::function<void(const fs::path&)>& make) {
  return [=](const fs::path& file, const fs::path&, Draw&) {
    fs::remove_all(file);
    make(file);
    return std::string("replaced by ") + name;
  };
}

const std::vector<Damage> byte_damages = {flip_bit, flip_bit, flip_bit,  zero_range,
                                          truncate, append,   remove_it, exchange};
const std::vector<Damage> foreign_kinds = {
    replaced("a FIFO", [](const fs::path& file) { ::mkfifo(file.c_str(), 0666); }),
    replaced("a folder", [](const fs::path& file) { fs::create_directory(file); }),
    replaced("a link to /dev/zero", [](const fs::path& file) { fs::create_symlink("/dev/zero", file); }),
    replaced("a link to /dev/full", [](const fs::path& file) { fs::create_symlink("/dev/full", file); }),
    replaced("a link to itself", [](const fs::path& file) { fs::create_symlink(file.filename(), file); }),
    replaced("a link to nothing", [](const fs::path& file) { fs::create_symlink("../nothing", file); }),
    replaced("a link to a file outside", [](const fs::path& file) { fs::create_symlink(canary(), file); }),
    replaced("a second name of a file outside", [](const fs::path& file) { fs::create_hard_link(canary(), file); })};

// ---- the row ----

class Damages final : public Row {
 public:
  Damages(const char* name, std::vector<Group> groups, std::vector<Damage> damages)
      : name_(name), groups_(std::move(groups)), damages_(std::move(damages)) {
    fs::create_directory("outside");
    for (Group& group : groups_) {
      replace_folder(group.folder, whole(group.folder));
      for (Reader& reader : group.readers) {
        const Reading undisturbed = reading(group, reader, false);
        readings_.emplace(&reader,
                          std::pair(undisturbed, group.newest.empty() ? undisturbed : reading(group, reader, true)));
      }
    }
  }
  Index points() const override { return 0; }

  TrialResult run(Index trial) override {
    Draw draw(name_, trial);
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
    const fs::path other =
        others.empty() ? fs::path() : others[static_cast<std::size_t>(draw.below(std::ssize(others)))];
    const Damage& damage = damages_[static_cast<std::size_t>(draw.below(std::ssize(damages_)))];
    const std::string what = damage(group->folder / file, other, draw);
    fs::remove_all(reader.made);
    const CommandResult read = run_command(reader.args, {.limit = 60});
    TrialResult result{judge(reader, read), fmt::format("{}: {}, then '{}': {}", (group->folder / file).string(), what,
                                                        fmt::join(reader.args, " "), text_of(read))};
    if (read_file(canary()) != canary_text) {
      result.outcome = Outcome::wrong;
      result.details += "the file outside was changed\n";
    }
    replace_folder(whole(group->folder), group->folder);
    return result;
  }

 private:
  static fs::path whole(const fs::path& folder) { return folder.string() + ".whole"; }

  // Runs a reader without a fault, or without the newest checkpoint.
  static Reading reading(const Group& group, const Reader& reader, bool without_newest) {
    fs::remove_all(reader.made);
    if (without_newest) fs::remove_all(group.folder / group.newest);
    const CommandResult read = run_command(reader.args);
    if (read.code != 0 && !(without_newest && reader.finds)) fail("{}", text_of(read));
    Reading result{read.out, read.err, reader.result ? reader.result() : ""};
    replace_folder(whole(group.folder), group.folder);
    return result;
  }

  Outcome judge(const Reader& reader, const CommandResult& read) const {
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

  const char* name_;
  std::vector<Group> groups_;
  std::vector<Damage> damages_;
  // Without a fault, and without the newest checkpoint.
  std::map<const Reader*, std::pair<Reading, Reading>> readings_;
};

// ---- files and readers ----

std::vector<fs::path> files_with(const fs::path& folder, const std::function<bool(const std::string&)>& counts) {
  std::vector<fs::path> files;
  for (const fs::path& file : files_below(folder))
    if (counts(file.string())) files.push_back(file);
  if (files.empty()) fail("{} has no such files", folder.string());
  return files;
}
constexpr const char* newest_checkpoint = "checkpoints/step-00000004";
bool is_of_checkpoint(const std::string& file) {
  return file.starts_with("checkpoints/");
}
bool is_digested_copy(const std::string& file) {
  return file.starts_with("huggingface/") || is_of_checkpoint(file);
}

void make_folders_to_read() {
  make_inputs();
  must_run(train_args({"--log.csv=true", "--log.prometheus=true"}, "trained"));
  must_run({"evaluate", "trained", "--backend", "cpu", "--quiet"});
  replace_folder("trained", "twin");
  write_model("model", Json::parse(read_file(GOLDEN "/families.json")).at(std::size_t{0}));
  must_run({"import", "model", "imported", "--quiet"});
}

// Resumes the run in place. Its weights are its result.
Reader resuming(std::vector<std::string> settings = {}) {
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

std::vector<Reader> checkpoint_readers() {
  Reader verify{{"inspect", "trained", "--verify"}}, diff{{"diff", "trained", "twin"}};
  verify.finds = diff.finds = true;
  return {verify,
          diff,
          {{"inspect", "trained"}},
          {{"evaluate", "trained", "--backend", "cpu", "--quiet", "--max-windows", "4"}},
          {{"generate", "trained", "--prompt", "token", "--tokens", "4", "--backend", "cpu"}},
          {{"experts", "trained"}},
          making({"export", "trained", "--quiet", "--family", "mixtral"}, "exported"),
          resuming()};
}

}  // namespace

std::unique_ptr<Row> make_damage() {
  make_folders_to_read();
  Reader verify{{"inspect", "data", "--verify"}};
  verify.finds = true;
  std::vector<Group> groups = {
      {"trained", files_with("trained", is_of_checkpoint), checkpoint_readers(), newest_checkpoint},
      {"imported", files_with("imported", is_digested_copy), {making({"export", "imported", "--quiet"}, "exported")}},
      {"data",
       files_below("data"),
       {verify, {{"evaluate", "trained", "--backend", "cpu", "--quiet", "--max-windows", "4"}}}}};
  Reader train{train_args({"--train.steps=1"}, "new")};
  train.made = "new";
  train.prints = false;
  train.result = [] { return weights_result("new"); };
  groups.back().readers.push_back(train);
  return std::make_unique<Damages>("damage", std::move(groups), byte_damages);
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
  return std::make_unique<Damages>("text", std::move(groups), byte_damages);
}

std::unique_ptr<Row> make_foreign_files() {
  make_folders_to_read();
  std::vector<Group> groups = {
      {"trained", files_below("trained"), checkpoint_readers(), newest_checkpoint},
      {"imported", files_below("imported"), {making({"export", "imported", "--quiet"}, "exported")}},
      {"data", files_below("data"), {{{"evaluate", "trained", "--backend", "cpu", "--quiet", "--max-windows", "4"}}}},
      {"model", files_below("model"), {}}};
  Reader import{{"import", "model", "new", "--quiet"}};
  import.made = "new";
  import.prints = false;
  import.result = [] { return weights_result("new");
};
groups.back().readers.push_back(import);
groups.front().readers.push_back(resuming({"--log.csv=true", "--log.prometheus=true"}));
return std::make_unique<Damages>("foreign", std::move(groups), foreign_kinds);
}  // namespace sy::campaign

}  // namespace sy::campaign
