#include "tests/reliability/file_history.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <sstream>

#include "kernels/check.h"
#include "src/io/manifest.h"
#include "src/system/files.h"

namespace sy::campaign {

FileHistory::FileHistory(fs::path root) : root_(std::move(root)) {
  nodes_.push_back({true, {}, {}});
}

Index FileHistory::find(const fs::path& path) const {
  const fs::path relative = fs::path(path).lexically_normal().lexically_relative(root_);
  if (relative.empty() || relative.begin()->string() == "..") return -1;
  Index node = 0;
  for (const fs::path& name : relative) {
    if (name == "." || name.empty()) continue;
    const auto& names = nodes_[static_cast<std::size_t>(node)].names;
    const auto found = names.find(name.string());
    if (found == names.end()) return -1;
    node = found->second;
  }
  return node;
}

Index FileHistory::add_node(bool is_folder) {
  nodes_.push_back({is_folder, {}, {}});
  return std::ssize(nodes_) - 1;
}

void FileHistory::push(Change change) {
  apply(nodes_, change);
  changes_.push_back(std::move(change));
}

void FileHistory::apply(std::vector<Node>& nodes, const Change& change) {
  Node& node = nodes[static_cast<std::size_t>(change.node)];
  const auto offset = static_cast<std::size_t>(change.offset);
  switch (change.kind) {
    case Kind::write:
      if (node.data.size() < offset + change.data.size()) node.data.resize(offset + change.data.size());
      node.data.replace(offset, change.data.size(), change.data);
      break;
    case Kind::truncate:
      node.data.resize(offset);
      break;
    case Kind::link:
      node.names[change.name] = change.target;
      break;
    case Kind::unlink:
      node.names.erase(change.name);
      break;
    case Kind::sync:
      break;
  }
}

void FileHistory::add(const FileChange& change) {
  const fs::path path = fs::absolute(change.path), to = *change.to ? fs::absolute(change.to) : fs::path();
  const Index folder = find(path.parent_path()), node = find(path);
  const std::string name = path.filename().string();
  switch (change.kind) {
    case FileChange::create:
    case FileChange::make_folder:
      if (node < 0 && folder >= 0) push({Kind::link, folder, name, add_node(change.kind == FileChange::make_folder)});
      break;
    case FileChange::write:
    case FileChange::append:
      if (node >= 0)
        push(
            {Kind::write, node, "", 0,
             change.kind == FileChange::write ? change.offset : std::ssize(nodes_[static_cast<std::size_t>(node)].data),
             std::string(static_cast<const char*>(change.data), change.bytes)});
      break;
    case FileChange::truncate:
      if (node >= 0) push({Kind::truncate, node, "", 0, change.offset});
      break;
    case FileChange::sync:
      if (node >= 0) push({Kind::sync, node, ""});
      break;
    case FileChange::remove:
      if (node >= 0) push({Kind::unlink, folder, name});
      break;
    case FileChange::rename:
    case FileChange::exchange: {
      const Index target = find(to), to_folder = find(to.parent_path());
      if (node < 0 || to_folder < 0) break;
      push({Kind::link, to_folder, to.filename().string(), node});
      if (change.kind == FileChange::rename)
        push({Kind::unlink, folder, name, 0, 0, "", true});
      else
        push({Kind::link, folder, name, target, 0, "", true});
      break;
    }
  }
}

std::vector<Index> FileHistory::sync_times() const {
  constexpr Index never = std::numeric_limits<Index>::max();
  std::vector<Index> times(changes_.size(), never);
  std::map<Index, Index> next_sync;  // of each node
  for (std::size_t i = changes_.size(); i-- > 0;) {
    const Change& change = changes_[i];
    if (change.kind == Kind::sync)
      next_sync[change.node] = static_cast<Index>(i);
    else if (const auto found = next_sync.find(change.node); found != next_sync.end())
      times[i] = found->second;
  }
  // A rename is on the disk as a whole.
  for (std::size_t i = 1; i < changes_.size(); ++i)
    if (changes_[i].joined) times[i] = times[i - 1];
  return times;
}

void FileHistory::restore(Index count, const std::function<bool(Index)>& keeps) const {
  std::vector<Node> nodes(nodes_.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].is_folder = nodes_[i].is_folder;
  const std::vector<Index> times = sync_times();
  bool is_on_disk = false;
  for (Index i = 0; i < count; ++i) {
    const Change& change = changes_[static_cast<std::size_t>(i)];
    if (!change.joined) is_on_disk = times[static_cast<std::size_t>(i)] < count || keeps(i);
    if (is_on_disk) apply(nodes, change);
  }
  // A folder may have two names if the sync of one lost the other: both are written.
  const std::function<void(Index, const fs::path&)> write = [&](Index index, const fs::path& path) {
    const Node& node = nodes[static_cast<std::size_t>(index)];
    if (!node.is_folder) return write_text(path, node.data);
    fs::create_directories(path);
    for (const auto& [name, child] : node.names) write(child, path / name);
  };
  write(0, root_);
}

std::vector<Index> FileHistory::committed(Index count) const {
  const std::vector<Index> times = sync_times();
  std::vector<Index> steps;
  for (Index i = 0; i < count; ++i) {
    const Change& change = changes_[static_cast<std::size_t>(i)];
    const std::optional<Index> step = change.kind == Kind::link ? step_of(change.name) : std::nullopt;
    if (step && times[static_cast<std::size_t>(i)] < count) steps.push_back(*step);
    // The lines of train.log are printed, too.
    const std::size_t name = change.data.find(step_name(0).substr(0, 5));
    if (change.kind == Kind::write && change.data.starts_with("saved ") && name != change.data.npos)
      if (const auto saved = step_of(change.data.substr(name, step_name(0).size()))) steps.push_back(*saved);
  }
  return steps;
}

namespace {

void put(std::string& text, Index number) {
  text += std::to_string(number) + " ";
}
void put(std::string& text, const std::string& bytes) {
  put(text, std::ssize(bytes));
  text += bytes;
}
Index number_from(std::istream& in) {
  Index number = 0;
  if (!(in >> number) || in.get() != ' ') fail("the record of file changes is damaged");
  return number;
}
std::string bytes_from(std::istream& in) {
  std::string bytes(static_cast<std::size_t>(number_from(in)), 0);
  in.read(bytes.data(), std::ssize(bytes));
  return bytes;
}

int record_file = -1;

// One write appends the whole change, so that changes of two processes do not mix.
void append_change(const FileChange& change) {
  std::string text;
  put(text, change.kind);
  put(text, fs::absolute(change.path).string());
  put(text, *change.to ? fs::absolute(change.to).string() : "");
  put(text, change.offset);
  put(text, std::string(static_cast<const char*>(change.data), change.bytes));
  if (::write(record_file, text.data(), text.size()) != std::ssize(text)) ::abort();
}

}  // namespace

void start_record(const fs::path& file) {
  record_file = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (record_file < 0) fail("cannot write {}", file.string());
  fault_record(append_change);
}

void FileHistory::add_recorded(const fs::path& file) {
  std::istringstream in(read_file(file));
  while (in.peek() != std::char_traits<char>::eof()) {
    const auto kind = static_cast<FileChange::Kind>(number_from(in));
    const std::string path = bytes_from(in), to = bytes_from(in);
    const Index offset = number_from(in);
    const std::string data = bytes_from(in);
    add({kind, path.c_str(), to.c_str(), offset, data.data(), data.size()});
  }
}

}  // namespace sy::campaign
