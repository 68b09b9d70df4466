// Removal of the files that Open MPI leaves on this machine if its mpirun is killed.
// They are 4 MiB of shared memory per rank (/dev/shm/vader_segment.*), and the job's folder.
// The job's folder is ompi.HOST.UID/pid.N in the folder for temporary files.
#pragma once

#include <filesystem>

namespace sy {

// Writes a record of a job to the job's folder. collect_leftovers() reads it.
// It names the parent process (the launcher) and the shared-memory segments that are mapped now.
// Call it after MPI_Init, in one process per machine. The launcher deletes the folder when the job
// ends; only a killed launcher leaves it.
// No-op if `job` is empty, is not a folder of this user, or holds a record already.
void record_job(const std::filesystem::path& job);

// Removes the segments and folders of this user's dead jobs. Returns the number of removed jobs.
// jobs: folder of the job folders pid.N (ompi.HOST.UID). Must belong to this user; otherwise no-op.
// A job without a complete record stays, and so does a job of another boot or PID namespace.
// Otherwise a job is dead if its launcher is gone and no process maps a segment of its record.
int collect_leftovers(const std::filesystem::path& jobs);

// Returns the folder of this job that Open MPI's launcher names; empty if there is none.
std::filesystem::path job_folder();

}  // namespace sy
