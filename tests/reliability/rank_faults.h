// Faults within a rank of a job: it ends or stops in a chosen window, or has another build's name.
// launch/mpirun.sh hands the environment on to the ranks.
//
//   CAMPAIGN_WINDOW="RANK WINDOW CALL ACTION"  the rank acts at the CALL-th passage of the window
//   CAMPAIGN_KILL="RANK CALL KIND FOLDER"      the rank is killed before (KIND 0) or halfway of (1)
//                                              its CALL-th change of files there; 0: no call
//   CAMPAIGN_RECORD="FILE FOLDER"            the changes of files there are added to FILE
//                                              (tests/reliability/file_history.h)
//   CAMPAIGN_COUNTS=FILE                       rank R writes to FILE.R its passages of each window,
//                                              and its number of these changes, if there are any
//   CAMPAIGN_BUILD=version|commit|options      this property of the program is another one
#pragma once

#include <array>
#include <cstddef>

namespace sy::campaign {

// Groups of functions that a rank calls. A call is two passages: before and after the function.
enum class Window {
  init,        // the start of the program, and MPI_Init_thread
  shared,      // MPI_Comm_split_type and MPI_Win_allocate_shared
  collective,  // functions of Comm that src/ calls
  message,     // other functions of MPI that move data
  save,        // changes of checkpoints: one passage after each
  end          // MPI_Win_free and MPI_Finalize
};
constexpr std::size_t num_windows = 6;
using WindowCounts = std::array<long, num_windows>;

enum class Action { kill, stop, exit_0, exit_3 };
constexpr const char* action_names[] = {"is killed", "is stopped", "exits with code 0", "exits with code 3"};
constexpr std::size_t num_actions = std::size(action_names);

// Reads the environment. It is a passage of Window::init. Without CAMPAIGN_* nothing happens.
void arm_rank_faults();
void write_window_counts();

}  // namespace sy::campaign
