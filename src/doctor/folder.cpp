#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "src/doctor/probes.h"
#include "src/system/files.h"

namespace sy {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Values of f_type from linux/magic.h and the sources of the file systems.
constexpr std::pair<std::uint32_t, std::string_view> file_systems[] = {
    {0x0000ef53, "ext4"}, {0x58465342, "xfs"},      {0x9123683e, "btrfs"}, {0x2fc12fc1, "zfs"},
    {0xf2f52010, "f2fs"}, {0x01021994, "tmpfs"},    {0x858458f6, "ramfs"}, {0x794c7630, "overlay"},
    {0x00006969, "nfs"},  {0x0bd00bd0, "lustre"},   {0x47504653, "gpfs"},  {0x19830326, "beegfs"},
    {0x00c36400, "ceph"}, {0x20030528, "orangefs"}, {0xaad7aaea, "panfs"}, {0x5346414f, "afs"},
    {0x0000517b, "smb"},  {0xff534d42, "smb"},      {0xfe534d42, "smb"},   {0x01021997, "9p"},
    {0x65735546, "fuse"}, {0x73717368, "squashfs"}, {0x00004d44, "vfat"},  {0x2011bab0, "exfat"},
    {0x5346544e, "ntfs"}, {0x00009fa0, "proc"},     {0x62656572, "sysfs"}, {0x52654973, "reiserfs"},
};

// Runs `work`. An Error becomes the folder's error.
template <class Work>
void attempt(FolderFacts& facts, const Work& work) {
  try {
    work();
  } catch (const Error& e) {
    if (facts.error.empty()) facts.error = e.what();
  }
}

// Returns bytes that a compressing file system cannot compress.
std::string incompressible_bytes(Index bytes) {
  std::string text(static_cast<std::size_t>(bytes), 0);
  std::uint64_t state = 1;
  for (char& c : text) {
    // Knuth's linear congruential generator.
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return text;
}

bool can_lock(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  const bool locked = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  ::close(file);
  return locked;
}

void inspect_folder(const fs::path& folder, FolderFacts& facts) {
  std::error_code error;
  fs::path whole = fs::absolute(folder, error).lexically_normal();
  // "/runs/" of "/runs/."
  if (!whole.has_filename() && whole.has_relative_path()) whole = whole.parent_path();
  facts.path = whole.string();
  struct statfs system {};
  struct statvfs space {};
  if (::statfs(folder.c_str(), &system) != 0 || ::statvfs(folder.c_str(), &space) != 0)
    fail("cannot look at {}: {}", facts.path, std::strerror(errno));
  facts.type = file_system_name(static_cast<std::uint32_t>(system.f_type));
  facts.free_bytes = static_cast<Index>(space.f_bavail * space.f_frsize);
  if (space.f_files > 0) facts.free_files = static_cast<Index>(space.f_favail);
}

// Writes files like a checkpoint's: a small one like its manifest, and a large one like a shard.
void measure_writing(const fs::path& probe, const std::string& name, FolderFacts& facts) {
  const fs::path small = probe / (name + ".small"), large = probe / (name + ".large");
  std::array<double, 3> seconds{};
  for (double& s : seconds) {
    const auto begin = Clock::now();
    write_file(small, name);
    s = seconds_since(begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 1, seconds.end());
  facts.locks = can_lock(small);
  constexpr Index bytes = Index{16} << 20;
  const std::string content = incompressible_bytes(bytes);
  const auto begin = Clock::now();
  write_file(large, content);
  facts.write_bandwidth = static_cast<double>(bytes) / std::max(seconds_since(begin), 1e-9);
  facts.write_seconds = seconds[1];
}

// Returns the seconds until the file has this content; -1 after `timeout`.
double wait_for(const fs::path& file, const std::string& content, std::chrono::milliseconds timeout) {
  const auto begin = Clock::now();
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    try {
      if (read_file(file) == content) return seconds_since(begin);
    } catch (const Error&) {
      // the file does not exist yet
    }
    if (Clock::now() - begin > timeout) return -1;
  }
}

}  // namespace

std::string file_system_name(std::uint32_t magic) {
  for (const auto& [number, name] : file_systems)
    if (number == magic) return std::string(name);
  return fmt::format("{:#x}", magic);
}

FolderFacts probe_folder(Comm& world, const fs::path& folder, bool measures, std::chrono::milliseconds timeout) {
  FolderFacts facts;
  const bool first = world.rank() == 0;
  fs::path probe;
  attempt(facts, [&] {
    inspect_folder(folder, facts);
    if (!first) return;
    std::string unique = (folder / ".switchyard-doctor-XXXXXX").string();
    if (!::mkdtemp(unique.data())) fail("cannot write in {}: {}", facts.path, std::strerror(errno));
    probe = unique;
    write_file(probe / "seen", probe.filename().string());
  });
  const bool made = !probe.empty();
  const std::string name = all_gather_texts(world, made ? probe.filename().string() : "-").front();
  if (!first) probe = folder / name;
  if (world.max(first && facts.error.empty()) > 0 && facts.error.empty()) {
    facts.seen_after = wait_for(probe / "seen", name, timeout);
    if (facts.seen_after >= 0 && measures)
      attempt(facts, [&] { measure_writing(probe, fmt::format("rank-{}", world.rank()), facts); });
  }
  world.barrier();  // no rank reads the files any more
  if (made) attempt(facts, [&] { remove_tree(probe); });
  return facts;
}

}  // namespace sy
