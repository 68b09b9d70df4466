#include "dist/mpi_info.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <utility>

#include "dist/launcher.h"

namespace sy {
namespace {

std::string cuda_aware() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1 ? "yes" : "no";
#else
  return "unknown";
#endif
}

std::string thread_level() {
  int started = 0, level = 0;
  MPI_Initialized(&started);
  if (!started) return {};
  MPI_Query_thread(&level);
  for (const auto& [value, name] : {std::pair{MPI_THREAD_SINGLE, "single"},
                                    {MPI_THREAD_FUNNELED, "funneled"},
                                    {MPI_THREAD_SERIALIZED, "serialized"}})
    if (level == value) return name;
  return "multiple";
}

// Returns the first line of MPI's version text. Some libraries append build details.
std::string library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text);
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace

MpiInfo mpi_info() {
  return {library(), thread_level(), cuda_aware(), std::max(0, launched_rank().size)};
}

}  // namespace sy
