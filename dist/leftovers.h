// Files that Open MPI leaves on this machine if its mpirun is killed: 4 MiB of shared memory for each rank (/dev/shm/vader_segment.*)
// and the folder of the job (ompi.HOST.UID/pid.N in the folder for temporary files).
#pragma once

#include <filesystem>
#include <string>

namespace sy {

// Writes a record of a job into its own folder, until the end of the scope: the launcher, and the files in /dev/shm that this
// process has mapped. The collector of a later job believes nothing else. Does nothing if `job` is empty or is not a folder of this user.
class JobRecord {
 public:
  explicit JobRecord(const std::filesystem::path& job);
  ~JobRecord();
  JobRecord(const JobRecord&) = delete;
  JobRecord& operator=(const JobRecord&) = delete;

 private:
  std::filesystem::path file_;
};

// Removes what dead jobs of this user have left, and returns how many there were. A job is dead if its record names this boot, this
// namespace of processes, and a launcher that is gone, and if no process maps one of the files of the record. All others stay.
int collect_leftovers(const std::filesystem::path& jobs);

// The folder of this job, as Open MPI's launcher tells it; empty if there is none.
std::filesystem::path job_folder();

}  // namespace sy
