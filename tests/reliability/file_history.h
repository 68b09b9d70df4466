// A history of the changes of files, and the files that a power loss leaves.
//
// A file or folder is a node. Names belong to folders. A change of data is on the disk after a sync
// of its file, and a change of a name after a sync of its folder. Other changes may be lost, one by
// one: POSIX promises no order.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/reliability/campaign.h"

namespace sy::campaign {

class FileHistory {
 public:
  // root: folder whose changes count. It is empty at the beginning.
  explicit FileHistory(fs::path root);
  // Adds a change. Paths outside of the root are ignored.
  void add(const FileChange& change);
  Index size() const { return std::ssize(changes_); }
  // Writes the files that a power loss after the first `count` changes leaves.
  // The root must be empty. keeps(i): whether change i is on the disk although it was not synced.
  void restore(Index count, const std::function<bool(Index)>& keeps) const;
  // Steps of the checkpoints that must be there after the first `count` changes: their names were
  // synced, or the program has printed that they are saved.
  std::vector<Index> committed(Index count) const;

  // Adds the changes of a file that start_record() has begun.
  void add_recorded(const fs::path& file);

 private:
  enum class Kind { write, truncate, link, unlink, sync };
  // A change of one node, or one of two that are applied together (`joined` with the one before).
  struct Change {
    Kind kind;
    Index node;        // that is changed or synced
    std::string name;  // of link and unlink
    Index target = 0;  // of link
    Index offset = 0;  // of write; size of truncate
    std::string data = {};
    bool joined = false;
  };
  struct Node {
    bool is_folder = false;
    std::map<std::string, Index> names;
    std::string data;
  };
  // Returns the node of a path as it is now; -1 if there is none.
  Index find(const fs::path& path) const;
  Index add_node(bool is_folder);
  void push(Change change);
  static void apply(std::vector<Node>& nodes, const Change& change);
  std::vector<Index> sync_times() const;  // first change that puts change i on the disk

  fs::path root_;
  std::vector<Node> nodes_;  // as they are now
  std::vector<Change> changes_;
};

// Makes this process append its changes of files on the armed paths to a file. Several processes
// may append to the same file: the order is that of the changes.
void start_record(const fs::path& file);

}  // namespace sy::campaign
