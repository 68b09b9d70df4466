#!/usr/bin/env bash
# launch/mpirun.sh [--hostfile FILE] RANKS COMMAND...: runs mpirun of Open MPI or MPICH with the
# settings of a single machine. SWITCHYARD_MPIEXEC names another launcher than mpirun. It must be
# that of the program's MPI library.
# It may run as root and with more ranks than cores (waiting ranks then yield). Each rank computes
# with its share of the cores, unless OMP_NUM_THREADS is set.
# SIGUSR1 sent to this script reaches every rank. The first Ctrl-C, SIGTERM or SIGHUP reaches them
# as SIGUSR1, so training writes a checkpoint and stops. mpirun itself would leave it one second.
# The next such signal ends mpirun and the ranks.
# With a host file ("node1 slots=4", a line for each host, all alike), the ranks run on those hosts.
# Each rank uses its share of the cores, slot by slot in the machine's numbering, so within a NUMA
# domain if it fits. Without a GPU it is bound to these cores; with one it is not, because NCCL's
# threads would be bound, too. Each rank takes the GPU of its number on its host.
# A batch system needs none of this: call mpirun or srun directly (launch/slurm.sbatch).
set -euo pipefail
usage() {
  cat >&2 <<END
usage: launch/mpirun.sh [--hostfile FILE] RANKS COMMAND [ARGUMENT...]
  RANKS            number of processes to start
  --hostfile FILE  starts them on the hosts of FILE, which has a line "HOST slots=N" for each
  They start by mpirun of Open MPI or MPICH, or by the launcher that SWITCHYARD_MPIEXEC names.
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
# A signal does not end this script before or after it starts mpirun: it is answered below.
early=()
trap 'early+=(stop)' INT TERM HUP
trap 'early+=(ask)' USR1
launcher=${SWITCHYARD_MPIEXEC:-mpirun}
command -v "$launcher" >/dev/null || {
  echo "launch/mpirun.sh: there is no $launcher: install Open MPI or MPICH, or let SWITCHYARD_MPIEXEC name the launcher of your MPI" >&2
  exit 2
}
hydra=  # set for the launcher of MPICH, and of Intel MPI
[[ $("$launcher" --version 2>&1) != *@(HYDRA|"Intel(R) MPI")* ]] || hydra=1

# Prints the number of CPUs whose time the control groups allow, rounded up; empty means unlimited.
# The program reads the same limits (kernels/control_groups.cpp), but does not know how many ranks
# share them.
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

# nproc prints OMP_NUM_THREADS if it is set. Here the number of cores matters.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
quota=$(cpu_quota)
cores=$((${quota:-cores} < cores ? quota : cores))
here=$ranks  # number of ranks on a host
if [[ -n $hostfile ]]; then
  slots=$(sed -nE 's/#.*//; s/.*slots *= *([0-9]+).*/\1/p' "$hostfile" | sort -n | tail -1)
  here=$((${slots:-cores} < ranks ? ${slots:-cores} : ranks))
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores / here > 0 ? cores / here : 1))}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Without --bind-to none, mpirun of Open MPI binds each of two ranks to one core, which all threads
# of the rank share.
options=(--oversubscribe --bind-to none)
[[ -z $hydra ]] || options=(-bind-to none)
if ((here * OMP_NUM_THREADS > cores)); then
  export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
elif [[ -n $hostfile && ! -e /dev/nvidiactl ]]; then
  options=(--map-by "slot:PE=$OMP_NUM_THREADS" --bind-to core)
  [[ -z $hydra ]] || options=(-bind-to "core:$OMP_NUM_THREADS")
  export OMP_PROC_BIND=close OMP_PLACES=cores
fi
if [[ -n $hostfile && -n $hydra ]]; then
  # Hydra's host files have lines "HOST:N". It forwards the whole environment.
  hosts=$(sed -nE 's/#.*//; s/^\s*(\S+)\s.*slots *= *([0-9]+).*/\1:\2/; s/^\s*(\S+).*/\1/p' "$hostfile" | paste -sd,)
  options+=(-hosts "$hosts")
elif [[ -n $hostfile ]]; then
  options+=(--hostfile "$hostfile")
  # Open MPI's mpirun forwards only its own settings.
  for name in ${!OMP_@} ${!SWITCHYARD_@} ${!NCCL_@}; do options+=(-x "$name"); done
fi
# After exit code 2 of the ranks (bad input), a filter of mpirun's standard error drops the lines of
# mpirun itself (mpirun-filter.pl). At the end this script writes the exit code to it.
filter=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/mpirun-filter.pl
filtered='' filter_process=''
if [[ -e /proc/self/fd/2 && -r $filter ]] && command -v perl >/dev/null; then
  exec {filtered}> >(trap '' INT TERM HUP USR1; exec perl "$filter" $$ >&2)
  filter_process=$!
  export SWITCHYARD_CONSOLE_PROCESS=$$  # its standard error shows where that of mpirun ends
fi
# In its own process group, mpirun does not get a terminal's Ctrl-C. setpriv ends it with this
# script, however the script ends.
set -m
if [[ -n $filtered ]]; then
  setpriv --pdeathsig KILL "$launcher" "${options[@]}" -np "$ranks" "$@" 2>&"$filtered" {filtered}>&- &
  mpirun=$!
else
  setpriv --pdeathsig KILL "$launcher" "${options[@]}" -np "$ranks" "$@" &
  mpirun=$!
fi
# Prints the processes of the ranks on this host: children of mpirun, or of Hydra's proxy.
rank_processes() {
  local parent parents=$mpirun
  [[ -z $hydra ]] || parents=$(cat "/proc/$mpirun/task/"*/children 2>/dev/null)
  for parent in $parents; do cat "/proc/$parent/task/"*/children 2>/dev/null || true; done
}
# Ends mpirun and the ranks. Hydra only forwards SIGTERM. It kills the ranks at the second SIGINT.
end_mpirun() {
  kill -TERM "$mpirun" 2>/dev/null || true  # it may have ended
  [[ -n $hydra ]] || return 0
  for _ in 1 2; do
    sleep 0.5
    kill -INT "$mpirun" 2>/dev/null || return 0
  done
}
# A request before mpirun has started its ranks would be lost, and one before they have a handler
# would end them. So during the first seconds this function counts the ranks that catch SIGUSR1
# (bit 9 of the mask). Ranks on other hosts are not visible.
listening() {
  local child caught count=0
  for child in $(rank_processes); do
    caught=$(sed -n 's/^SigCgt:\t*//p' "/proc/$child/status" 2>/dev/null)
    if ((0x0${caught:-0} & 0x200)); then count=$((count + 1)); fi
  done
  ((count >= ranks))
}
ask() {
  while ((SECONDS < 10)) && kill -0 "$mpirun" 2>/dev/null && ! listening; do sleep 0.05; done
  if [[ -n $hydra && -z $hostfile ]]; then
    # Hydra 4.0 may lose the exit code of a rank to which it forwards a signal.
    # shellcheck disable=SC2046 # numbers
    kill -USR1 $(rank_processes) 2>/dev/null || true
  else
    kill -USR1 "$mpirun" 2>/dev/null || true
  fi
}
asked=
stop() {
  if [[ -z $asked ]]; then
    asked=$SECONDS
    ask
  elif ((SECONDS > asked + 1)); then  # sooner it is the same request: `timeout` signals twice
    end_mpirun
  fi
}
trap stop INT TERM HUP
trap ask USR1
for answer in "${early[@]}"; do "$answer"; done
# Ends mpirun if some of its ranks have exited and others remain longer than SWITCHYARD_TIMEOUT. No
# other rank notices a rank that is stopped late in MPI_Finalize.
end_stragglers() {
  local limit=${SWITCHYARD_TIMEOUT:-600} begin='' children
  limit=${limit%%.*}
  [[ $limit =~ ^[0-9]+$ ]] || limit=600
  while sleep "$((limit < 20 ? 1 : 5))" && kill -0 "$mpirun" 2>/dev/null; do
    children=$(rank_processes | wc -w)
    if ((children == 0 || children >= ranks)); then
      begin=''
    elif ((SECONDS - ${begin:=$SECONDS} > limit)); then
      echo "launch/mpirun.sh: $children of $ranks ranks have not left $limit s after another one: they were stopped, or wait for each other: ending them" >&2
      end_mpirun
      return
    fi
  done
}
watcher=
if [[ -z $hostfile && $ranks -gt 1 ]]; then
  end_stragglers &
  watcher=$!
fi
while kill -0 "$mpirun" 2>/dev/null; do wait "$mpirun" || true; done  # a signal ends `wait`, too
code=0
wait "$mpirun" || code=$?
if [[ -n $hydra ]]; then
  # Hydra's code is the bitwise OR of those of the ranks, and 9 for a rank that it killed after
  # another one had failed. It is 255 if Hydra failed itself.
  case $code in 9 | 11 | 255) code=1 ;; esac
fi
if [[ -n $watcher ]]; then
  kill -KILL -- "-$watcher" 2>/dev/null || true  # its group includes its `sleep`
  wait "$watcher" 2>/dev/null || true
fi
if [[ -n $filtered ]]; then
  trap '' PIPE
  printf '\0%s %s' $$ "$code" >&"$filtered" || true
  exec {filtered}>&-
  # Waits until the filter has printed all output of mpirun. A process that mpirun left behind may
  # keep the filter open, so the wait is limited.
  for ((i = 0; i < 100; i++)); do
    kill -0 "$filter_process" 2>/dev/null || break
    sleep 0.02
  done
fi
exit "$code"
