#include "host/report.h"

#include <cstdio>
#include <cstdlib>

#include "cuda_runtime.h"
#include "host/memory.h"

namespace sy::cuda_host {

namespace {

void print_and_abort(const std::string& mistake) {
  fmt::print(stderr, "cuda_host: {}\n", mistake);
  std::fflush(stderr);
  std::abort();
}
Handler handler = print_and_abort;

}  // namespace

Handler set_handler(Handler h) {
  return std::exchange(handler, h ? h : print_and_abort);
}

Counters counters() {
  return counter_values;
}

std::string text(const Where& where) {
  return fmt::format("{}:{} ({})", where.file_name(), where.line(), where.function_name());
}

void report(const std::string& mistake) {
  handler(launch_state.number == 0 ? mistake
                                   : fmt::format("{}, block ({}, {}), thread {}: {}", text(launch_state.operation),
                                                 blockIdx.x, blockIdx.y, threadIdx.x, mistake));
  std::abort();
}

}  // namespace sy::cuda_host
