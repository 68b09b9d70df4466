// Text of progress lines.
#include <gtest/gtest.h>

#include "src/cli/progress.h"

namespace sy {
namespace {

TEST(Progress, ShowsAmountDoneRateAndTimeLeft) {
  EXPECT_EQ(progress_text("reading", 0, 0, "bytes", 0, 0), "reading");
  EXPECT_EQ(progress_text("reading", 2500000, 0, "bytes", 3, 0), "reading: 2.5 MB");
  EXPECT_EQ(progress_text("encoding a", 4000000, 8000000, "bytes", 2, 0),
            "encoding a: 50% of 8.0 MB, 2.0 MB/s, 2 s left");
  // The rate is that of the current phase.
  EXPECT_EQ(progress_text("encoding b", 6000000, 8000000, "bytes", 2, 4000000),
            "encoding b: 75% of 8.0 MB, 1.0 MB/s, 2 s left");
  EXPECT_EQ(progress_text("training the tokenizer", 0, 0, "rounds", 9, 0), "training the tokenizer");
  EXPECT_EQ(progress_text("planning for 8 ranks", 3, 12, "layouts", 3, 0),
            "planning for 8 ranks: 3 of 12 layouts, 9 s left");
  EXPECT_EQ(progress_text("planning for 8 ranks", 12, 12, "layouts", 3, 0), "planning for 8 ranks: 12 of 12 layouts");
  // It is too early for an estimate.
  EXPECT_EQ(progress_text("measuring", 1, 30, "speeds", 0.1, 0), "measuring: 1 of 30 speeds");
}

}  // namespace
}  // namespace sy
