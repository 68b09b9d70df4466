// tests/mpich.sh preloads this library. A rank that waits in MPICH polls UCX and never leaves its
// core, so tests with more ranks than cores take twenty times as long. The library replaces a
// function of UCX: after 20 polls in a row without a message, each further poll sleeps first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <time.h>

unsigned ucp_worker_progress(void* worker) {
  static unsigned (*progress)(void*);
  static int polls;  // in a row without a message
  if (progress == NULL) progress = (unsigned (*)(void*))dlsym(RTLD_NEXT, "ucp_worker_progress");
  const unsigned messages = progress(worker);
  if (messages > 0) {
    polls = 0;
  } else if (polls < 20) {
    ++polls;
  } else {
    const int error = errno;
    nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    errno = error;
  }
  return messages;
}
