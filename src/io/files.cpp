#include "src/io/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace sy {

namespace fs = std::filesystem;

WriteFault write_fault;

namespace {

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

  void sync() {
    if (::fsync(fd_) != 0) fail("cannot write {} to the disk: {}", path_.string(), std::strerror(errno));
  }
  // A network file system may report a failed write only here.
  void close() {
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) fail("cannot write {}: {}", path_.string(), std::strerror(errno));
  }

 private:
  fs::path path_;
  int fd_;
};

void sync_path(const fs::path& path, int flags) {
  write_point("sync", path);
  Descriptor file(path, flags);
  if (file.get() < 0) fail("cannot open {} to write it to the disk: {}", path.string(), std::strerror(errno));
  file.sync();
  file.close();
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
}

}  // namespace

void cannot_write(int error, const std::string& message) {
  for (const int machine : {ENOSPC, EDQUOT, EFBIG, EIO, ENOMEM, EMFILE, ENFILE})
    if (error == machine) throw Failure(message);
  throw InputError(message);
}

fs::path own_program() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored);
}

std::vector<fs::path> own_folders() {
  const fs::path program = own_program().parent_path(), folder = program.parent_path();
  return {folder, folder / "share" / "switchyard", program};
}

std::string read_file(const fs::path& path) {
  std::string content;
  read_pieces(path, [&](std::string_view piece) { content += piece; });
  return content;
}

void read_pieces(const fs::path& path, const std::function<void(std::string_view)>& take) {
  Descriptor file(path, O_RDONLY);
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t n = file.get() < 0 ? -1 : ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && file.get() >= 0 && errno == EINTR) continue;
    if (n < 0) bad_input("cannot read {}: {}", path.string(), std::strerror(errno));
    if (n == 0) return;
    take({buffer.data(), static_cast<std::size_t>(n)});
  }
}

void write_file(const fs::path& path, std::string_view content) {
  fs::path fresh = path.string() + ".tmp";
  write_point("write", fresh);
  // What has that name already is not ours, or another process is writing it: neither is followed nor touched.
  constexpr int most_names = 100;
  std::optional<Descriptor> made;
  for (int n = 1; n <= most_names && (!made || made->get() < 0); ++n) {
    fresh = fmt::format("{}.tmp{}", path.string(), n > 1 ? std::to_string(n) : "");
    made.emplace(fresh, O_WRONLY | O_CREAT | O_EXCL);
    if (made->get() < 0 && errno != EEXIST) break;
  }
  Descriptor& file = *made;
  if (file.get() < 0) fail("cannot create {}: {}", fresh.string(), std::strerror(errno));
  try {
    while (!content.empty()) {
      const ssize_t n = ::write(file.get(), content.data(), content.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("cannot write {}: {}", fresh.string(), std::strerror(errno));
      content.remove_prefix(static_cast<std::size_t>(n));
    }
    write_point("sync", fresh);
    file.sync();
    file.close();
    rename_file(fresh, path);
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
}

void sync_file(const fs::path& path) {
  sync_path(path, O_RDONLY);
}
void sync_folder(const fs::path& path) {
  sync_path(path, O_RDONLY | O_DIRECTORY);
}

void make_folders(const fs::path& path) {
  write_point("mkdir", path);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("cannot make the folder {}: {}", path.string(), error.message());
}

void rename_file(const fs::path& from, const fs::path& to) {
  write_point("rename", to);
  rename_path(from, to);
  sync_folder(to.has_parent_path() ? to.parent_path() : ".");
}

void rename_folder(const fs::path& from, const fs::path& to) {
  write_point("rename", to);
  std::error_code error;
  if (!fs::exists(to, error)) return rename_path(from, to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS)
    fail("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
  // Most network file systems cannot exchange: for a moment `to` is absent, and the old one lies under
  // `aside`.
  const fs::path aside = from.string() + ".old";
  rename_path(to, aside);
  try {
    rename_path(from, to);
  } catch (const Failure&) {
    rename_path(aside, to);
    throw;
  }
  rename_path(aside, from);
}

void remove_tree(const fs::path& path) {
  write_point("remove", path);
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail("cannot remove {}: {}", path.string(), error.message());
}

}  // namespace sy
