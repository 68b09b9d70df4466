#include "src/system/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "kernels/check.h"

namespace sy {

namespace fs = std::filesystem;

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
  // A network file system may report a failed write only when the file is closed.
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

constexpr std::string_view unfinished_mark = ".tmp-";
constexpr std::size_t unfinished_digits = 16;

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a FIFO" : S_ISSOCK(mode) ? "a socket" : "a device";
}

// Calls `call`, a read, again while it is interrupted.
template <class Call>
std::size_t read_once(const fs::path& path, Call call) {
  for (;;) {
    const ssize_t n = call();
    if (n >= 0) {
      ++file_activity().chunks;
      return static_cast<std::size_t>(n);
    }
    if (errno != EINTR) bad_input("cannot read {}: {}", path.string(), std::strerror(errno));
  }
}

// Returns a buffer for the reads of a file: of the file's size, within bounds. A file of /proc has
// size 0, and a file may grow.
std::vector<char> buffer_for(const InputFile& file) {
  return std::vector<char>(static_cast<std::size_t>(std::clamp<Index>(file.size() + 1, 1 << 12, 1 << 20)));
}

}  // namespace

fs::file_type file_type(const fs::path& path, Links links) {
  std::error_code error;
  const fs::file_type type =
      (links == Links::follow ? fs::status(path, error) : fs::symlink_status(path, error)).type();
  if (type == fs::file_type::none) bad_input("cannot look up {}: {}", path.string(), error.message());
  return type;
}

bool file_exists(const fs::path& path, Links links) {
  return file_type(path, links) != fs::file_type::not_found;
}

bool is_file(const fs::path& path, Links links) {
  return file_type(path, links) == fs::file_type::regular;
}

bool is_folder(const fs::path& path, Links links) {
  return file_type(path, links) == fs::file_type::directory;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
    entries.push_back(i->path());
  if (error) bad_input("cannot read the folder {}: {}", folder.string(), error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void throw_write_error(int error, const std::string& message) {
  for (const int number : {ENOSPC, EDQUOT, EFBIG, EIO, ENOMEM, EMFILE, ENFILE})
    if (error == number) throw Failure(message);
  throw InputError(message);
}

fs::path program_path() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored);
}

std::vector<fs::path> resource_folders() {
  const fs::path program = program_path().parent_path(), folder = program.parent_path();
  return {folder, folder / "share" / "switchyard", program};
}

// O_NONBLOCK: opening a FIFO must not wait for a writer.
InputFile::InputFile(const fs::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const int error_number = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    bad_input("cannot read {}: {}", path.string(), std::strerror(error_number));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    bad_input("cannot read {}: it is {}, not a regular file: give a file", path.string(), kind_of(status.st_mode));
  }
  size_ = status.st_size;
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

std::size_t InputFile::read_some(std::span<char> out) {
  return read_once(path_, [&] { return ::read(descriptor_, out.data(), out.size()); });
}

std::size_t InputFile::read_at(Index offset, std::span<char> out) const {
  return read_once(path_, [&] { return ::pread(descriptor_, out.data(), out.size(), offset); });
}

bool is_plain_name(std::string_view name) {
  const auto is_special = [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' ' || c == 0x7f; };
  return !name.empty() && name != "." && name != ".." && std::none_of(name.begin(), name.end(), is_special);
}

std::string read_file(const fs::path& path, Index max_bytes) {
  InputFile file(path);
  const auto check_size = [&](Index bytes) {
    if (bytes > max_bytes)
      bad_input("cannot read {}: it has more than {} bytes, which no such file has", path.string(), max_bytes);
  };
  check_size(file.size());
  std::string content;
  std::vector<char> buffer = buffer_for(file);
  while (const std::size_t n = file.read_some(buffer)) {
    content.append(buffer.data(), n);
    check_size(std::ssize(content));
  }
  return content;
}

void read_chunks(const fs::path& path, const std::function<void(std::string_view)>& consume) {
  InputFile file(path);
  std::vector<char> buffer = buffer_for(file);
  while (const std::size_t n = file.read_some(buffer)) consume({buffer.data(), n});
}

void read_lines(const fs::path& path, const std::function<void(const TextLine&)>& consume) {
  std::string text;
  TextLine line;
  Index bytes = 0;  // bytes of the current line
  const auto end_line = [&](bool whole) {
    ++line.number;
    line.end += bytes + whole;
    line.text = bytes > max_line_bytes ? std::string_view() : std::string_view(text);
    line.whole = whole;
    consume(line);
    text.clear();
    bytes = 0;
  };
  read_chunks(path, [&](std::string_view chunk) {
    while (!chunk.empty()) {
      const std::size_t end = std::min(chunk.find('\n'), chunk.size());
      bytes += static_cast<Index>(end);
      if (bytes <= max_line_bytes) text += chunk.substr(0, end);
      if (end < chunk.size()) end_line(true);
      chunk.remove_prefix(std::min(end + 1, chunk.size()));
    }
  });
  if (bytes > 0) end_line(false);
}

std::FILE* open_for_writing(const fs::path& path, const char* mode) {
  const bool append = *mode == 'a';
  const auto refuse = [&](const char* reason) {
    bad_input("{} {}: nothing is written there: put a copy in its place, or remove it", path.string(), reason);
  };
  const int file =
      ::open(path.c_str(),
             O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (append ? O_APPEND : 0), 0666);
  if (file < 0 && errno == ELOOP) refuse("is a link");
  if (file < 0 && errno == ENXIO) refuse("is no regular file");  // a FIFO without a reader
  if (const int error_number = errno; file < 0)
    throw_write_error(error_number, fmt::format("cannot write {}: {}", path.string(), std::strerror(error_number)));
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  if (known && S_ISREG(status.st_mode) && status.st_nlink <= 1 && (append || ::ftruncate(file, 0) == 0))
    if (std::FILE* stream = ::fdopen(file, mode)) return stream;
  const int error_number = errno;
  ::close(file);
  if (known && !S_ISREG(status.st_mode)) refuse("is no regular file");
  if (known && status.st_nlink > 1) refuse("is a second name of another file (a hard link)");
  throw_write_error(error_number, fmt::format("cannot write {}: {}", path.string(), std::strerror(error_number)));
}

bool is_unfinished(std::string_view name, std::string_view of) {
  const std::string start = fmt::format("{}{}", of, unfinished_mark);
  return name.starts_with(start) && name.size() == start.size() + unfinished_digits &&
         name.find_first_not_of("0123456789abcdef", start.size()) == name.npos;
}

void remove_unfinished(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(path.parent_path(), error), end; !error && it != end; it.increment(error))
    if (is_unfinished(it->path().filename().string(), path.filename().string()) && it->is_regular_file(error))
      paths.push_back(it->path());
  for (const fs::path& file : paths) ::unlink(file.c_str());
}

void write_file(const fs::path& path, std::string_view content) {
  write_point("write", path.string() + ".tmp");
  // A random name belongs to this process alone. No file of another process is followed or changed,
  // and the files of killed processes are not in the way.
  std::random_device random_source;
  const std::uint64_t number = std::uint64_t{random_source()} << 32 | random_source();
  const fs::path fresh = fmt::format("{}{}{:016x}", path.string(), unfinished_mark, number);
  Descriptor file(fresh, O_WRONLY | O_CREAT | O_EXCL);
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
  const fs::file_type type = fs::status(to, error).type();
  if (type == fs::file_type::not_found) return rename_path(from, to);
  if (type == fs::file_type::none) fail("cannot look up {}: {}", to.string(), error.message());
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS)
    fail("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
  // Most network file systems cannot exchange names. `to` is briefly absent; its old folder is then
  // at `aside`.
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
