// Runs the tests of one process. As the program does, it sets the defaults of libraries first.
#include <gtest/gtest.h>

#include "kernels/environment.h"

int main(int argc, char** argv) {
  sy::set_library_defaults();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
