#include "dist/errors.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>
#include <tuple>

#include "dist/console.h"
#include "dist/launcher.h"

namespace sy {
namespace {

constexpr std::string_view no_memory_text = "not enough memory: use smaller values, or more ranks";

}  // namespace

std::pair<int, std::string> current_error() {
  try {
    throw;
  } catch (const Error& e) {
    return {e.exit_code(), e.what()};
  } catch (const std::filesystem::filesystem_error& e) {
    return {2, fmt::format("{}: {}: check the path and its permissions", e.path1().string(), e.code().message())};
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) return {1, e.what()};
    return {1,
            "a thread cannot be started (Resource temporarily unavailable): raise the limits on the address space "
            "(ulimit -v) and on processes (ulimit -u), or start fewer ranks"};
  } catch (const std::bad_alloc&) {
    return {1, std::string(no_memory_text)};
  } catch (const std::exception& e) {
    return {1, e.what()};
  }
}

void agree_on_errors(Comm& comm, const std::function<void()>& work) {
  int code = 0;
  std::string what;
  try {
    work();
  } catch (const std::exception&) {
    std::tie(code, what) = current_error();
  }
  const Index lowest = comm.size() - comm.max(code != 0 ? comm.size() - comm.rank() : 0);
  if (lowest == comm.size()) return;
  const int root = static_cast<int>(lowest);
  Index root_code = code;
  comm.broadcast(view_of(&root_code, {1}), root);
  throw CollectiveError(static_cast<int>(root_code), broadcast_text(comm, what, root));
}

std::string broadcast_text(Comm& comm, std::string text, int root) {
  Index size = std::ssize(text);
  comm.broadcast(view_of(&size, {1}), root);
  text.resize(size);
  comm.broadcast(view_of(reinterpret_cast<std::uint8_t*>(text.data()), {size}), root);
  return text;
}

int abort_job_on_error(Comm& world, const std::function<int()>& work) {
  try {
    return work();
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception&) {
    if (world.size() == 1) throw;
    const auto [code, what] = current_error();
    print_error(fmt::format("rank {}: {}", world.rank(), what));
    std::fflush(stdout);
    wait_for_launcher_to_read();
    const ScopedBlock block(world.rank_context().blocked, "the launcher to end all ranks");
    MPI_Abort(MPI_COMM_WORLD, code);
    throw;
  }
}

namespace {

std::terminate_handler handler_before = nullptr;

// Prints without memory of its own.
[[noreturn]] void end_after_uncaught_exception() {
  const auto end = [](std::initializer_list<std::string_view> texts) {
    if (has_printed_error()) _exit(1);  // memory became full while the program ended after an error
    for (const std::string_view text : texts) static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
    _exit(1);
  };
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    end({"switchyard: ", no_memory_text, "\n"});
  } catch (const NoMemory& e) {
    end({"switchyard: ", e.what(), "\n"});
  } catch (...) {
  }
  if (handler_before) handler_before();
  std::abort();
}

}  // namespace

void install_terminate_handler() {
  handler_before = std::set_terminate(end_after_uncaught_exception);
}

}  // namespace sy
