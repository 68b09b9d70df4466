#!/usr/bin/env bash
# launch/mpirun.sh [--hostfile FILE] RANKS COMMAND...: mpirun with what a single machine needs: it may run as root, may have more ranks than
# cores (waiting ranks then yield), and each rank computes with its share of the cores (OMP_NUM_THREADS, if set, wins).
# SIGUSR1 sent to it reaches every rank, and so does the first Ctrl-C, SIGTERM or SIGHUP, as SIGUSR1: training then writes a
# checkpoint and stops, for which mpirun itself would leave it a second. The next one ends mpirun and the ranks.
# With a host file ("node1 slots=4", a line a host, all alike), the ranks are those hosts': each computes with its share of the
# cores, slot by slot in the order in which the machine numbers them, so within a NUMA domain where it fits, and is tied to them
# where there is no GPU (NCCL's threads would be tied, too). Each rank takes the GPU of its number on its host. A batch system needs
# none of this: call mpirun or srun directly (launch/slurm.sbatch).
set -euo pipefail
usage() {
  cat >&2 <<END
usage: launch/mpirun.sh [--hostfile FILE] RANKS COMMAND [ARGUMENT...]
  RANKS            number of processes to start
  --hostfile FILE  starts them on the hosts of FILE, which has a line "HOST slots=N" for each
END
  exit 2
}
hostfile=
if [[ ${1:-} == --hostfile ]]; then
  [[ $# -ge 2 ]] || usage
  hostfile=$2
  [[ -r $hostfile ]] || { echo "launch/mpirun.sh: $hostfile cannot be read: give a file with a line \"HOST slots=N\" for each host" >&2; exit 2; }
  shift 2
fi
ranks=${1:-}
[[ $ranks =~ ^[1-9][0-9]*$ && $# -gt 1 ]] || usage
shift

# Prints the number of CPUs whose time the control groups grant, rounded up; empty means unlimited. The
# program reads the same (kernels/control_groups.cpp), but not how many ranks share it.
cpu_quota() {
  local controllers path mount quota period cpus least=
  while IFS=: read -r _ controllers path; do
    [[ -z $controllers || ",$controllers," == *,cpu,* ]] || continue
    mount=${SWITCHYARD_CGROUP_ROOT:-}/sys/fs/cgroup${controllers:+/cpu}
    while :; do
      quota='' period=''
      if [[ -r $mount$path/cpu.max ]]; then
        read -r quota period <"$mount$path/cpu.max" || true
      elif [[ -r $mount$path/cpu.cfs_quota_us && -r $mount$path/cpu.cfs_period_us ]]; then
        quota=$(<"$mount$path/cpu.cfs_quota_us") period=$(<"$mount$path/cpu.cfs_period_us")
      fi
      if [[ $quota =~ ^[1-9][0-9]*$ && $period =~ ^[1-9][0-9]*$ ]]; then
        cpus=$(((quota + period - 1) / period))
        least=$((${least:-cpus} < cpus ? least : cpus))
      fi
      [[ $path == /?* ]] || break
      path=${path%/*}
    done
  done < <(cat "${SWITCHYARD_CGROUP_ROOT:-}/proc/self/cgroup" 2>/dev/null)
  echo "$least"
}

# nproc answers OMP_NUM_THREADS where that is set; here it is the cores that count.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
quota=$(cpu_quota)
cores=$((${quota:-cores} < cores ? quota : cores))
here=$ranks  # ranks on a host
if [[ -n $hostfile ]]; then
  slots=$(sed -nE 's/#.*//; s/.*slots *= *([0-9]+).*/\1/p' "$hostfile" | sort -n | tail -1)
  here=$((${slots:-cores} < ranks ? ${slots:-cores} : ranks))
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores / here > 0 ? cores / here : 1))}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Without --bind-to none, mpirun ties each of two ranks to one core, and a rank's threads then share it.
options=(--oversubscribe --bind-to none)
if ((here * OMP_NUM_THREADS > cores)); then
  export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
elif [[ -n $hostfile && ! -e /dev/nvidiactl ]]; then
  options=(--map-by "slot:PE=$OMP_NUM_THREADS" --bind-to core)
  export OMP_PROC_BIND=close OMP_PLACES=cores
fi
if [[ -n $hostfile ]]; then
  options+=(--hostfile "$hostfile")
  for name in ${!OMP_@} ${!SWITCHYARD_@} ${!NCCL_@}; do options+=(-x "$name"); done  # mpirun hands on its own settings alone
fi
# In a process group of its own a terminal's Ctrl-C does not reach mpirun; with this script it ends, however that ends.
set -m
setpriv --pdeathsig KILL mpirun "${options[@]}" -np "$ranks" "$@" &
mpirun=$!
# A request that comes before mpirun has its ranks, or they a handler, would be lost or end them. So in the first seconds it
# waits until as many of mpirun's children as there are ranks catch SIGUSR1, bit 9 of the mask; those on other hosts it cannot see.
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
