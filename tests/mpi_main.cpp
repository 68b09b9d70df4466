// Runs the tests under mpirun. Every rank runs every test, rank 0 alone reports, and all ranks
// agree on the result. A failed assertion on one rank aborts the job at once, because the other
// ranks would wait for it in a collective.
#define OMPI_SKIP_MPICXX 1
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>

#include "dist/runtime.h"
#include "kernels/device.h"
#include "kernels/environment.h"
#include "tests/mpi_world.h"

#ifdef SWITCHYARD_SANITIZED
// Open MPI unloads its components before the leak sanitizer looks. They stay loaded, so that the
// suppressions in tests/sanitizers/leaks.txt find their names.
extern "C" int dlclose(void*) noexcept {
  return 0;
}
#endif

namespace sy::test {

static Comm* shared_world = nullptr;
Comm& world() {
  return *shared_world;
}

namespace {

class AbortOnFailure : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fprintf(stderr, "rank %d: %s:%d: %s\n", world().rank(), result.file_name() ? result.file_name() : "?",
            result.line_number(), result.message());
    fflush(stderr);
    if (world().size() > 1) MPI_Abort(MPI_COMM_WORLD, 1);
  }
};

}  // namespace
}  // namespace sy::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (const std::string_view argument : std::vector<std::string_view>(argv + 1, argv + argc)) {
    if (argument.starts_with("--backend=")) sy::test::tested_device.backend = argument.substr(10);
    if (argument.starts_with("--dtype=")) sy::test::tested_device.dtype = argument.substr(8);
  }
  sy::set_library_defaults();
  sy::Runtime runtime(std::make_shared<sy::RankContext>(), &argc, &argv);
  sy::test::shared_world = &runtime.world();
  // NCCL refuses ranks that share a GPU unless their host ids differ.
  setenv("NCCL_HOSTID", std::to_string(runtime.world().rank()).c_str(), 0);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (runtime.world().rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new sy::test::AbortOnFailure);
  // ctest takes this exit code as skipped.
  if (sy::test::tested_device.backend == "cuda" && !sy::cuda_available()) return 77;
  return runtime.run([] { return RUN_ALL_TESTS(); });
}
