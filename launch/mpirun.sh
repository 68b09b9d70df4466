#!/usr/bin/env bash
# launch/mpirun.sh RANKS COMMAND...: mpirun with what a single machine needs: it may run as root, may have more ranks than
# cores (waiting ranks then yield), and each rank computes with its share of the cores (OMP_NUM_THREADS, if set, wins).
# SIGUSR1 sent to it reaches every rank. A machine with a host file or a batch system needs none of this: call mpirun or
# srun directly (launch/slurm.sbatch).
set -euo pipefail
usage="usage: launch/mpirun.sh RANKS COMMAND..."
ranks=${1:?$usage}
shift
[[ $ranks =~ ^[1-9][0-9]*$ && $# -gt 0 ]] || { echo "$usage" >&2; exit 2; }
# nproc answers OMP_NUM_THREADS where that is set; here it is the cores that count.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores / ranks > 0 ? cores / ranks : 1))}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if ((ranks * OMP_NUM_THREADS > cores)); then
  export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive
fi
# Without --bind-to none, mpirun ties each of two ranks to one core, and a rank's threads then share it.
exec mpirun --oversubscribe --bind-to none -np "$ranks" "$@"
