#!/usr/bin/env bash
# launch/mpirun.sh RANKS COMMAND...: mpirun with what a single machine needs: it may run as root, may have more ranks than
# cores (waiting ranks then yield), and each rank computes with its share of the cores (OMP_NUM_THREADS, if set, wins).
# SIGUSR1 sent to it reaches every rank, and so does the first Ctrl-C, SIGTERM or SIGHUP, as SIGUSR1: training then writes a
# checkpoint and stops, for which mpirun itself would leave it a second. The next one ends mpirun and the ranks. A machine
# with a host file or a batch system needs none of this: call mpirun or srun directly (launch/slurm.sbatch).
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
# In a process group of its own a terminal's Ctrl-C does not reach mpirun; with this script it ends, however that ends.
set -m
# Without --bind-to none, mpirun ties each of two ranks to one core, and a rank's threads then share it.
setpriv --pdeathsig KILL mpirun --oversubscribe --bind-to none -np "$ranks" "$@" &
mpirun=$!
# A request that comes before mpirun has its ranks, or they a handler, would be lost or end them. So in the first seconds it
# waits until as many of mpirun's children as there are ranks catch SIGUSR1, bit 9 of the mask.
listening() {
  local child caught count=0
  for child in $(cat "/proc/$mpirun/task/"*/children 2>/dev/null); do
    caught=$(sed -n 's/^SigCgt:\t*//p' "/proc/$child/status" 2>/dev/null)
    if ((0x0${caught:-0} & 0x200)); then count=$((count + 1)); fi
  done
  ((count >= ranks))
}
ask() {
  while ((SECONDS < 10)) && kill -0 "$mpirun" 2>/dev/null && ! listening; do sleep 0.05; done
  kill -USR1 "$mpirun"
}
asked=
stop() {
  if [[ -z $asked ]]; then
    asked=$SECONDS
    ask
  elif ((SECONDS > asked + 1)); then  # sooner it is the same request: `timeout` sends a process its signal twice
    kill -TERM "$mpirun"
  fi
}
trap stop INT TERM HUP
trap ask USR1
while kill -0 "$mpirun" 2>/dev/null; do wait "$mpirun" || true; done  # a signal ends the waiting, too
wait "$mpirun"
