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
# After exit code 2 of the ranks, bad input, mpirun prints eleven lines of its own. This filter of
# mpirun's standard error drops these lines, and no other text, if an error of the program stands
# before them. It passes on all else at once. At the end this script writes the exit code to it: a
# zero byte, the argument, and the code.
filter='
  my $rule = qr/^-{20,}$/;
  my @block = ($rule, qr/^Primary job +terminated normally, but \d+ process(es)? returned$/,
               qr/^a non-zero exit code\. Per user-direction, the job has been aborted\.$/, $rule, $rule,
               qr/^mpirun detected that one or more processes exited with non-zero status, thus causing$/,
               qr/^the job to be terminated\. The first process to do so was:$/, qr/^$/,
               qr/^  Process name: \[\[\d+,\d+\],\d+\]$/, qr/^  Exit code: +2$/, $rule, qr/(?!)/);
  my ($text, $code, $is_said, $in_line, @held) = ("", -1, 0, 0);
  $| = 1;
  sub release { print splice @held; }
  while (1) {
    vec(my $ready, 0, 1) = 1;
    # A line of dashes alone may be of the program: the next one of mpirun comes with it.
    if (select($ready, undef, undef, @held == 1 || length $text ? 1 : undef) == 0) {
      release();
      $in_line = 1 if length $text;
      print $text;
      $text = "";
      next;
    }
    my $bytes = sysread STDIN, $text, 65536, length $text;
    next if !defined $bytes;
    last if $bytes == 0;
    $code = $1 if $text =~ s/\x{00}$ARGV[0] (\d+)\z//;
    while ($text =~ s/^([^\n]*\n)//) {
      my $line = $1;
      release() if $in_line || $line !~ $block[@held];
      if ($is_said && !$in_line && $line =~ $block[@held]) {
        push @held, $line;
      } else {
        $is_said ||= $line =~ /(^|\r|\e\[K)switchyard: (?!warning: )/;
        print $line;
      }
      $in_line = 0;
    }
    if (length $text && ($in_line || !$is_said)) {
      print $text;
      ($text, $in_line) = ("", 1);
    }
  }
  release() unless $code == 2 && (@held == 4 || @held == 11);
  print $text;'
filtered='' filter_process=''
if [[ -e /proc/self/fd/2 ]] && command -v perl >/dev/null; then
  exec {filtered}> >(trap '' INT TERM HUP USR1; exec perl -e "$filter" $$ >&2)
  filter_process=$!
  export SWITCHYARD_CONSOLE_PROCESS=$$  # its standard error is where that of mpirun ends
fi
# In a process group of its own a terminal's Ctrl-C does not reach mpirun; with this script it ends, however that ends.
set -m
if [[ -n $filtered ]]; then
  setpriv --pdeathsig KILL mpirun "${options[@]}" -np "$ranks" "$@" 2>&"$filtered" {filtered}>&- &
  mpirun=$!
else
  setpriv --pdeathsig KILL mpirun "${options[@]}" -np "$ranks" "$@" &
  mpirun=$!
fi
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
# Ends mpirun if some of its ranks have left and others remain for longer than SWITCHYARD_TIMEOUT. A
# rank that is stopped in its last moments within MPI_Finalize is seen by no other rank.
end_stragglers() {
  local limit=${SWITCHYARD_TIMEOUT:-600} begin='' children
  limit=${limit%%.*}
  [[ $limit =~ ^[0-9]+$ ]] || limit=600
  while sleep "$((limit < 20 ? 1 : 5))" && kill -0 "$mpirun" 2>/dev/null; do
    children=$(cat "/proc/$mpirun/task/"*/children 2>/dev/null | wc -w)
    if ((children == 0 || children >= ranks)); then
      begin=''
    elif ((SECONDS - ${begin:=$SECONDS} > limit)); then
      echo "launch/mpirun.sh: $children of $ranks ranks have not left $limit s after another one: they were stopped, or wait for each other: ending them" >&2
      kill -TERM "$mpirun"
      return
    fi
  done
}
watcher=
if [[ -z $hostfile && $ranks -gt 1 ]]; then
  end_stragglers &
  watcher=$!
fi
while kill -0 "$mpirun" 2>/dev/null; do wait "$mpirun" || true; done  # a signal ends the waiting, too
code=0
wait "$mpirun" || code=$?
if [[ -n $watcher ]]; then
  kill -KILL -- "-$watcher" 2>/dev/null || true  # its group has its `sleep`, too
  wait "$watcher" 2>/dev/null || true
fi
if [[ -n $filtered ]]; then
  trap '' PIPE
  printf '\0%s %s' $$ "$code" >&"$filtered" || true
  exec {filtered}>&-
  # All output of mpirun is out before this script ends; but a process that mpirun left may keep
  # the filter.
  for ((i = 0; i < 100; i++)); do
    kill -0 "$filter_process" 2>/dev/null || break
    sleep 0.02
  done
fi
exit "$code"
