#include "src/io/writer_thread.h"

#include <signal.h>

#include <system_error>
#include <utility>

#include "kernels/check.h"

namespace sy {

void WriterThread::start(std::function<void()> work, bool own_thread) {
  SY_ASSERT(!work_, "a writer has work");
  work_ = std::move(work);
  done_ = false;
  error_ = nullptr;
  if (!own_thread) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  try {
    thread_ = std::jthread([this] { run(); });
  } catch (const std::system_error& e) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    work_ = nullptr;
    fail(
        "cannot start a thread to write the checkpoint: {}: raise the limits on the address space (ulimit -v) and on "
        "processes (ulimit -u), or set run.async_checkpoint = false",
        e.code().message());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void WriterThread::run() noexcept {
  try {
    work_();
  } catch (...) {
    error_ = std::current_exception();
  }
  done_ = true;
}

void WriterThread::wait() {
  if (!work_) return;
  if (thread_.joinable())
    thread_.join();
  else
    run();
  work_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace sy
