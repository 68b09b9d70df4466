// A thread that writes files for another one.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>

namespace sy {

// Runs one function at a time, on a thread of its own or in wait().
// The thread blocks all signals, so that the handlers of the process run on other threads.
class WriterThread {
 public:
  // Starts `work` on a thread, or leaves it to wait() if own_thread is false. Call wait() for the
  // previous work first. Throws Failure if no thread can start; the work is then dropped.
  void start(std::function<void()> work, bool own_thread);
  // True if wait() would return or throw without waiting.
  bool done() const { return !work_ || done_; }
  bool failed() const { return done() && error_ != nullptr; }
  // Waits for the work, and throws its exception. Runs the work if it has no thread of its own.
  void wait();

 private:
  void run() noexcept;

  std::function<void()> work_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
  std::jthread thread_;  // joined at the end; a function without a thread does not run then
};

}  // namespace sy
