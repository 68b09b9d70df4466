// Folders with a damaged file, and the commands that read them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/reliability/campaign.h"

namespace sy::campaign {

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

// Damages a file, and returns a description. other: a file like it; empty if there is none.
using Damage = std::function<std::string(const fs::path& file, const fs::path& other, Draw& draw)>;

class DamagedFolders {
 public:
  // Runs each reader once without a fault. The groups are in the working folder.
  explicit DamagedFolders(std::vector<Group> groups);
  // Damages a random file, and runs a reader. draw_damage: called after the file is drawn.
  TrialResult trial(Draw& draw, const std::function<const Damage&()>& draw_damage);

 private:
  Reading reading(const Group& group, const Reader& reader, bool without_newest) const;
  Outcome judge(const Reader& reader, const CommandResult& read) const;

  std::vector<Group> groups_;
  // Without a fault, and without the newest checkpoint.
  std::map<const Reader*, std::pair<Reading, Reading>> readings_;
};

// A file outside of all folders that are read. No reader may change it.
fs::path canary();

// Makes a run trained/, its copy twin/, an imported run imported/ and its source model/.
void make_folders_to_read();
constexpr const char* newest_checkpoint = "checkpoints/step-00000004";  // of trained/
// Readers of the run trained/.
std::vector<Reader> checkpoint_readers();
// A resume of trained/ in place. Its weights are its result.
Reader resuming(std::vector<std::string> settings = {});
Reader evaluating();
// A command whose last argument is the output. Its result are the files there.
Reader making(std::vector<std::string> args, const fs::path& made);
// An import of model/.
Reader importing();

}  // namespace sy::campaign
