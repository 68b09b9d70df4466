// The texts at the start and at the end of a training.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/config.h"
#include "src/data/dataset.h"
#include "src/train/memory.h"
#include "src/train/metrics.h"

namespace sy {

// Returns the first line of a start in RUN/train.log: time, program, host, ranks and command line.
std::string start_text(const Config& config, int ranks);

// Returns how often the first n samples read the text of each domain.
DomainEpochs domain_epochs(const Dataset& dataset, const SampleStream& samples, Index n);

// Returns a warning for each domain whose text begins to repeat between `before` and `after`, the
// epochs before and after a step.
std::vector<std::string> repetition_warnings(Index step, const DomainEpochs& before, const DomainEpochs& after);

// Describes the coming training in five lines, or six if a rope table depends on the length.
// `last_samples` is the number of samples after its last step.
// `memory` is that of a rank. `device` is its name. `library_bytes` is device memory that libraries
// hold (DeviceReservation).
std::string training_summary(const Config& config, const Dataset& dataset, const SampleStream& samples,
                             Index last_samples, const Layout& layout, const MemoryPlan& memory,
                             const std::string& device, Index library_bytes);

// Returns warnings about valid but probably unintended settings, and about domains that are read
// more than once until `last_samples`.
std::vector<std::string> all_config_warnings(const Config& config, const Layout& layout, const Dataset& dataset,
                                             const SampleStream& samples, Index last_samples);

struct RunEnd {
  std::filesystem::path run;
  Index first_step = 1, last_step = 0;  // of this start
  double seconds = 0;                   // duration of this start
  RunTotals totals;
  bool can_evaluate = false, has_experts = false, can_generate = false, is_encoder = false;
  Index positions = 0;        // that the decoder has learned; 0: it can compute texts of any length
  bool reads_source = false;  // the prompt is the encoder's, and takes no positions of the decoder
};
// Returns the duration, the best validation, the checkpoint and useful next commands.
std::string end_text(const RunEnd& end);

}  // namespace sy
