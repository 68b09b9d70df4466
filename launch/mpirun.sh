#!/usr/bin/env bash
# launch/mpirun.sh RANKS COMMAND...: mpirun with what a single machine needs: it may run as root, may have more ranks than
# cores (waiting ranks then yield), and each rank computes with its share of the cores. A machine with a host file or a
# batch system needs none of this: call mpirun or srun directly (launch/slurm.sbatch).
set -euo pipefail
ranks=${1:?usage: launch/mpirun.sh RANKS COMMAND...}
shift
cores=$(nproc)
threads=$((cores / ranks > 0 ? cores / ranks : 1))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_mpi_yield_when_idle=$((ranks * OMP_NUM_THREADS > cores ? 1 : 0))
exec mpirun --oversubscribe --bind-to none -np "$ranks" "$@"
