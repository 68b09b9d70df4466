#!/usr/bin/env bash
# Tests the threads of a process: how long they spin while waiting, and how many a CPU quota allows.
source "$2/tests/cli/lib/lib.sh"
unset OMP_NUM_THREADS OMP_WAIT_POLICY GOMP_SPINCOUNT

# OpenMP prints the settings that it has read. If the program was executed again, it prints them
# twice, and the last ones count.
setting() { # NAME VARIABLE=VALUE...
  expect_ok env OMP_DISPLAY_ENV=verbose "${@:2}" "$switchyard" ${command:-version}
  [[ -n ${command:-} || $out == "switchyard "* ]] || die "another output: $out"
  sed -nE "s/^ *(\[host\] )?$1 *= *'(.*)'\$/\2/p" .err | tail -1
}
[[ $(setting OMP_NUM_THREADS OMP_NUM_THREADS=2) == 2 ]] || die "this OpenMP does not tell its settings: $err"
if grep -q GOMP_SPINCOUNT .err; then
  spins=$(setting GOMP_SPINCOUNT OMP_NUM_THREADS=2)
  ((spins > 0 && spins <= 20000)) || die "threads spin $spins times"
  fewer=$(command="generate --help" setting GOMP_SPINCOUNT OMP_NUM_THREADS=2)
  ((fewer > 0 && fewer <= spins / 10)) || die "threads of generate spin $fewer times"
  [[ $(setting GOMP_SPINCOUNT OMP_NUM_THREADS=2 GOMP_SPINCOUNT=77) == 77 ]] || die "the user's count is lost"
  [[ $(setting GOMP_SPINCOUNT OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive) == 0 ]] || die "the user's policy is lost"
  (($(setting GOMP_SPINCOUNT OMP_NUM_THREADS=2 OMP_WAIT_POLICY=active) > 1000000)) || die "the user's policy is lost"
  # The program starts correctly for any value of the variable that marks the second start.
  for value in "" "PATH HOME" "GOMP_SPINCOUNT"; do
    setting GOMP_SPINCOUNT OMP_NUM_THREADS=2 SWITCHYARD_THREAD_SETTINGS="$value" >/dev/null
  done
fi

# With a quota of half a CPU there is one thread, unless the user sets another number. doctor prints
# both.
mkdir -p root/proc/self root/sys/fs/cgroup/job
echo "0::/job" >root/proc/self/cgroup
echo "50000 100000" >root/sys/fs/cgroup/job/cpu.max
export SWITCHYARD_CGROUP_ROOT=$work/root
[[ $(setting OMP_NUM_THREADS OMP_WAIT_POLICY=passive) == 1 || $(nproc) == 1 ]] || die "more threads than the quota"
call "$switchyard" doctor
expect_output "quota     the time of 0.5 of the CPUs of $(uname -n), by a control group: 1 thread by default, 1 in use"
[[ $out != *"a control group grants"* ]] || die "a problem, although the quota is respected"
call "$switchyard" doctor --json
grep -q '"cpu_time": 0.5,' .out && grep -q '"cpu_quota": 1,' .out && grep -qE '"threads": 1,' .out || die "no quota, or more threads than one"
grep -qE '"load_average": [0-9.]+,' .out || die "no load average"
OMP_NUM_THREADS=2 expect_exit 1 "$switchyard" doctor
expect_output "problem: rank 0 on $(uname -n) computes with 2 threads, and a control group grants 0.5 CPUs of time: set OMP_NUM_THREADS=1"
unset SWITCHYARD_CGROUP_ROOT
call "$switchyard" doctor
grep -qE '^rank .* GFLOP/s +load ' .out || die "no load beside the speed"

# A training keeps its process number, the program's name and its open files.
OMP_NUM_THREADS=1 make_data 40
small_config <<'INI'
[train]
steps = 1000000
global_batch = 2
micro_batch = 2
[run]
backend = cpu
INI
exec 7<config.ini
OMP_NUM_THREADS=2 "$switchyard" train config.ini --run.dir=run --quiet >.train 2>&1 &
process=$!
for _ in $(seq 600); do [[ -s run/metrics.jsonl ]] && break; sleep 0.1; done
expect_file run/metrics.jsonl
[[ $(<"/proc/$process/comm") == "$(basename "$switchyard" | cut -c1-15)" ]] || die "the process is called $(<"/proc/$process/comm")"
[[ $(readlink "/proc/$process/fd/7") == "$work/config.ini" ]] || die "an open file is lost"
tr '\0' ' ' <"/proc/$process/cmdline" | grep -q "train config.ini --run.dir=run --quiet" || die "other arguments"
kill -USR1 $process
code=0
wait $process || code=$?
[[ $code -eq 3 ]] || die "exit code $code instead of 3"

# Under mpirun, a signal reaches the rank, too.
OMP_NUM_THREADS=2 "$root/launch/mpirun.sh" 1 "$switchyard" train config.ini --run.dir=rank --quiet >.train 2>&1 &
process=$!
for _ in $(seq 600); do [[ -s rank/metrics.jsonl ]] && break; sleep 0.1; done
expect_file rank/metrics.jsonl
kill -USR1 $process
code=0
wait $process || code=$?
[[ $code -eq 3 ]] || die "exit code $code instead of 3: $(cat .train)"

# Programs that it starts do not inherit the settings.
cat >launcher <<'SH'
#!/bin/sh
env >environment
exit 1
SH
chmod +x launcher
OMP_NUM_THREADS=2 call "$switchyard" sweep config.ini --vary train.seed=1 --train.steps=1 --launcher "$work/launcher" --output sweep
environment=$(find . -name environment | head -1)
expect_file "${environment:-environment}"
! grep -E '^(GOMP_SPINCOUNT|SWITCHYARD_THREAD_SETTINGS)=' "$environment" || die "they inherit the settings"
grep -q '^OMP_NUM_THREADS=2$' "$environment" || die "they do not inherit the user's settings"
