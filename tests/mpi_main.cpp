// Runs the tests under mpirun: every rank runs every test; only rank 0 reports, and all agree on the verdict. A failed
// assertion on one rank must not leave the others waiting in a collective, so it ends the job at once.
#define OMPI_SKIP_MPICXX 1
#include <gtest/gtest.h>
#include <mpi.h>

#include "dist/runtime.h"
#include "tests/mpi_world.h"

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
  sy::Runtime runtime(&argc, &argv);
  sy::test::shared_world = &runtime.world();
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (runtime.world().rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new sy::test::AbortOnFailure);
  return runtime.run([] { return RUN_ALL_TESTS(); });
}
