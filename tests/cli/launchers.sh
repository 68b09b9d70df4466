#!/usr/bin/env bash
# Tests launch/mpirun.sh and launch/slurm.sbatch: usage, threads by quota, calls of srun and
# scontrol. The arguments are those of all tests in tests/cli. tests/cluster/slurm.sh runs the
# template with a real Slurm.
source "$2/tests/cli/lib/lib.sh"
mpirun=$root/launch/mpirun.sh
template=$root/launch/slurm.sbatch

# Without a number of ranks or without a command, mpirun.sh prints its usage.
touch hosts
for arguments in "" "--hostfile" "--hostfile hosts" "2" "--hostfile hosts 2" "0 true" "x true"; do
  # shellcheck disable=SC2086
  expect_exit 2 "$mpirun" $arguments
  [[ $err == "usage: launch/mpirun.sh [--hostfile FILE] RANKS COMMAND "* ]] || die "no usage of mpirun.sh $arguments: $err"
done
expect_exit 2 "$mpirun" --hostfile nowhere 2 true
[[ $err == *"nowhere cannot be read"* ]] || die "another message: $err"

# The launcher must be there.
expect_exit 2 env SWITCHYARD_MPIEXEC=nowhere "$mpirun" 2 true
[[ $err == "launch/mpirun.sh: there is no nowhere: install Open MPI or MPICH"* ]] || die "another message: $err"

# Each launcher gets options of its own, and the hosts of the host file.
printf '# all\neast slots=2  # this\n\n  west slots=2\n' >hosts
mkdir fake
for name in HYDRA OpenRTE; do
  printf '#!/bin/sh\n[ "$1" = --version ] && echo %s || echo "$*"\n' $name >fake/$name
  chmod +x fake/$name
done
launched() { env -u SWITCHYARD_COMPARE OMP_NUM_THREADS=1 SWITCHYARD_MPIEXEC="$work/fake/$1" "$mpirun" "${@:2}"; }
expect_ok launched HYDRA 2 true x
[[ $out == "-bind-to none -np 2 true x" ]] || die "other options: $out"
expect_ok launched HYDRA --hostfile hosts 4 true
[[ $out == "-bind-to "*" -hosts east:2,west:2 -np 4 true" ]] || die "other options: $out"
expect_ok launched OpenRTE 2 true
[[ $out == "--oversubscribe --bind-to none -np 2 true" ]] || die "other options: $out"
expect_ok launched OpenRTE --hostfile hosts 4 true
[[ $out == *" --hostfile hosts "*"-x OMP_NUM_THREADS "*" -np 4 true" ]] || die "other options: $out"

# If MPI does not connect the ranks, the first one prints the error.
expect_error "MPI does not connect" env PMI_RANK=0 PMI_SIZE=4 "$switchyard" version
expect_exit 2 env PMI_RANK=3 PMI_SIZE=4 "$switchyard" version
[[ -z $out$err ]] || die "every rank prints it: $out $err"

# A CPU quota limits the threads: in cgroups of version 1, and of version 2 on any level of the
# path.
threads() { env -u OMP_NUM_THREADS SWITCHYARD_CGROUP_ROOT="$work/root" "$mpirun" 1 sh -c 'echo $OMP_NUM_THREADS'; }
cores=$(env -u OMP_NUM_THREADS nproc)
mkdir -p root/proc/self root/sys/fs/cgroup/{job/step,cpu/job/step}
[[ $(threads) == "$cores" ]] || die "$(threads) threads without a control group"
echo "0::/job/step" >root/proc/self/cgroup
[[ $(threads) == "$cores" ]] || die "$(threads) threads without a quota"
echo "max 100000" >root/sys/fs/cgroup/job/step/cpu.max
[[ $(threads) == "$cores" ]] || die "$(threads) threads with an unlimited quota"
echo "50000 100000" >root/sys/fs/cgroup/job/cpu.max
[[ $(threads) == 1 ]] || die "$(threads) threads with half a CPU"
echo "3:cpu,cpuacct:/job/step" >root/proc/self/cgroup
[[ $(threads) == "$cores" ]] || die "$(threads) threads, the quota being of version 2"
echo 100000 >root/sys/fs/cgroup/cpu/job/cpu.cfs_period_us
echo -1 >root/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us
[[ $(threads) == "$cores" ]] || die "$(threads) threads with an unlimited quota of version 1"
echo 100000 >root/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us
[[ $(threads) == 1 ]] || die "$(threads) threads with a quota of one CPU"

# An input error is one line of the program, and no line of mpirun. Other output of mpirun remains,
# and so does the exit code.
small_config </dev/null
for n in 1 2; do
  expect_exit 2 "$mpirun" $n "$switchyard" train config.ini --run.dir=x
  [[ $(wc -l <.err) -eq 1 && $err == "switchyard: "* ]] || die "more than the error"
done
block() { grep -c "non-zero" .err || true; }
if [[ $mpi == openmpi ]]; then  # that of MPICH prints no such lines
  expect_exit 2 "$mpirun" 2 bash -c 'echo "switchyard: warning: only this" >&2; exec "$0" train config.ini 2>/dev/null' "$switchyard"
  [[ $(block) -gt 0 ]] || die "lines of mpirun are hidden without an error of the program"
  expect_exit 1 "$mpirun" 1 bash -c 'echo "switchyard: an error" >&2; exit 1'
  [[ $(block) -gt 0 ]] || die "lines of mpirun about exit code 1 are hidden"
  call "$mpirun" 1 bash -c 'echo "switchyard: an error" >&2; kill -9 $$'
  [[ $code -eq 137 && $err == *"Primary job"* ]] || die "exit code $code of a killed rank, or no message"
else
  call "$mpirun" 1 bash -c 'echo "switchyard: an error" >&2; kill -9 $$'
  [[ $code -eq 1 && $out == *"BAD TERMINATION"* ]] || die "exit code $code of a killed rank, or no message"
fi
expect_ok "$mpirun" 1 bash -c 'printf "switchyard: an error\n---------------------------\nPrimary job  term" >&2'
[[ $err == $'switchyard: an error\n---------------------------\nPrimary job  term' ]] || die "text of the program is lost: $err"
expect_ok bash -c '"$0" 1 true 2>&-' "$mpirun"

# A request to stop that comes before mpirun starts reaches the ranks.
cat >slow_launcher <<'SH'
#!/bin/bash
if [[ $1 == --version ]]; then touch asked; sleep 2; exit; fi
trap 'kill -USR1 $!' USR1
bash -c 'trap "exit 3" USR1; while :; do sleep 0.1; done' &
while kill -0 $! 2>/dev/null; do wait $!; done
wait $!
SH
chmod +x slow_launcher
SWITCHYARD_MPIEXEC=$work/slow_launcher "$mpirun" 1 true &
early=$!
for _ in $(seq 100); do [[ ! -e asked ]] || break; sleep 0.1; done
kill -TERM "$early"
code=0
wait "$early" || code=$?
[[ $code -eq 3 ]] || die "exit code $code after an early request to stop"

# A request after the end of mpirun does not change the exit code. A process that the job has left
# behind holds its standard error.
cat >leaving_launcher <<'SH'
#!/bin/sh
[ "$1" != --version ] || exit 0
sleep 1.5 &
touch left
SH
chmod +x leaving_launcher
for signal in TERM USR1; do
  rm -f left
  SWITCHYARD_MPIEXEC=$work/leaving_launcher "$mpirun" 1 true &
  ended=$!
  for _ in $(seq 100); do [[ ! -e left ]] || break; sleep 0.1; done
  sleep 0.3
  kill -$signal "$ended" 2>/dev/null || true  # a slow machine may be too late
  code=0
  wait "$ended" || code=$?
  [[ $code -eq 0 ]] || die "exit code $code after a late $signal"
done

# On a terminal, mpirun.sh lets the program rewrite the line of the latest step, as mpirun does.
if command -v script >/dev/null; then
  make_data 60
  printf '%q ' "$mpirun" 2 "$switchyard" train config.ini --run.dir=terminal --train.steps=6 --train.micro_batch=1 --train.global_batch=2 \
    --run.backend=cpu --run.log_every=100 >command.txt
  expect_ok script -qec "bash command.txt" /dev/null
  [[ $out == *$'\rstep 3/6 '* ]] || die "no line is rewritten on the terminal"
else
  echo "no script(1), so no terminal: the test of the rewritten line is left out" >&2
fi

# Runs the template with an srun that prints its arguments and exits with $CODE.
mkdir bin
cat >bin/srun <<'SH'
#!/bin/sh
echo "srun $*"
echo "threads $OMP_NUM_THREADS of $SRUN_CPUS_PER_TASK"
[ -z "$CANCEL" ] || { trap '' TERM; kill -TERM $PPID; sleep 1; }
exit "$CODE"
SH
cat >bin/squeue <<'SH'
#!/bin/sh
[ "$*" = "-h -j 7 -o %e" ] && echo "$END"
SH
cat >bin/scontrol <<'SH'
#!/bin/sh
echo "scontrol $*"
SH
chmod +x bin/*
batch() { # VARIABLE=VALUE...
  env -u SLURM_CPUS_PER_TASK -u SRUN_CPUS_PER_TASK PATH="$work/bin:$PATH" SLURM_SUBMIT_DIR="$work" SLURM_JOB_ID=7 CODE=0 \
    SWITCHYARD="$switchyard" SWITCHYARD_LAUNCH="$root/launch" "$@" bash "$template" config.ini --run.dir=x
}
expect_ok batch SLURM_CPUS_PER_TASK=3
expect_output "srun --mpi=pmix"
expect_output "$switchyard train config.ini --run.dir=x --run.resume=true"
expect_output "--distribution=block:block"
expect_output "threads 3 of 3"
[[ $out != *scontrol* ]] || die "a complete run is queued again"

# Without --cpus-per-task, a rank gets an equal share of the node's CPUs.
expect_ok batch SLURM_CPUS_ON_NODE=16 SLURM_TASKS_PER_NODE="4(x2)"
expect_output "threads 4 of 4"
expect_ok batch
expect_output "threads 1 of 1"
expect_ok batch SLURM_CPUS_ON_NODE=16 SLURM_TASKS_PER_NODE=2 SLURM_CPUS_PER_GPU=8 SLURM_GPUS_ON_NODE=2
grep -qx "threads 8 of " .out || die "srun is given both --cpus-per-gpu and --cpus-per-task: $out"
expect_output "--gpu-bind=none"

# A job that was stopped on request is queued again, but only a limited number of times.
expect_exit 3 batch CODE=3
expect_output "scontrol requeue 7"
expect_exit 3 batch CODE=3 SLURM_RESTART_COUNT=19
expect_output "scontrol requeue 7"
expect_exit 3 batch CODE=3 SLURM_RESTART_COUNT=20
[[ $out != *scontrol* && $err == *SWITCHYARD_REQUEUES* ]] || die "queued again: $out $err"
expect_exit 3 batch CODE=3 SLURM_RESTART_COUNT=20 SWITCHYARD_REQUEUES=21
expect_output "scontrol requeue 7"
# A job that is cancelled, so that the script gets a signal, is not queued again.
expect_exit 3 batch CODE=3 CANCEL=1
[[ $out != *scontrol* ]] || die "a cancelled job is queued again: $out"
# A failed one starts again in the job, but not twice in the same way.
expect_exit 1 batch CODE=1
[[ $out != *scontrol* ]] || die "a failed run is queued again"
[[ $(grep -c "^srun " .out) -eq 2 && $err == *"failed twice in the same way"* ]] || die "other attempts: $out $err"

# Slurm signals the ranks once, so those that start again get the time limit of the job.
expect_exit 1 batch CODE=1 END="$(date -d "+2 hours" +%FT%T)"
[[ $(sed -nE 's/^srun .* train (.*)config.ini .*/\1/p' .out | paste -sd'|') =~ ^"|--run.max_hours="(2.000|1.99[0-9])" "$ ]] || die "other limits: $out"
expect_exit 1 batch CODE=1 END=NONE
[[ $out != *max_hours* ]] || die "a limit of an unlimited job: $out"
# A job that is queued again goes on from its newest checkpoint, if it has started the training.
mkdir -p x
echo '{"first_step":1,"job":"7"}' >x/provenance.jsonl
expect_ok batch SLURM_RESTART_COUNT=1
expect_output "train config.ini --run.dir=x --run.resume_step=-1 --run.resume=true"
expect_ok batch
[[ $out != *resume_step* ]] || die "the first start of a job goes back to another step: $out"
expect_ok batch SLURM_RESTART_COUNT=1 SLURM_JOB_ID=70
[[ $out != *resume_step* ]] || die "a start before the first one goes back to another step: $out"
rm -r x
# So does each start after a first one from run.resume_step, although run.resume is not set.
mkdir x-0
echo '{"first_step":1,"job":"7"}' >x-0/provenance.jsonl
echo --run.resume_step=3 >layouts
expect_ok batch SLURM_RESTART_COUNT=1 SWITCHYARD_SETTINGS=layouts SLURM_ARRAY_TASK_ID=0
expect_output "--run.resume_step=3 --run.dir=x-0 --run.resume_step=-1 --run.resume=true"
[[ $err == *"job 7 has trained x-0 before: it goes on from the newest checkpoint"* ]] || die "no word of it: $err"
rm -r x-0

# A task of a job array has the settings of its line, whose newline may be missing. A task without a
# line is an error.
printf -- '--parallel.ep=2\n\n--parallel.tp=2 --train.lr=1' >layouts
expect_ok batch SWITCHYARD_SETTINGS=layouts SLURM_ARRAY_TASK_ID=0
expect_output "train config.ini --run.dir=x --parallel.ep=2 --run.dir=x-0 --run.resume=true"
expect_ok batch SWITCHYARD_SETTINGS=layouts SLURM_ARRAY_TASK_ID=1
expect_output "train config.ini --run.dir=x --run.dir=x-1 --run.resume=true"
expect_ok batch SWITCHYARD_SETTINGS=layouts SLURM_ARRAY_TASK_ID=2
expect_output "--parallel.tp=2 --train.lr=1 --run.dir=x-2 --run.resume=true"
expect_exit 2 batch SWITCHYARD_SETTINGS=layouts SLURM_ARRAY_TASK_ID=3
[[ -z $out && $err == "slurm.sbatch: layouts has 3 lines, none of them for task 3"* ]] || die "another message: $out $err"

# The only task of a Slurm step may be a shell, so that programs in it run alone. If MPI connects
# none of several tasks, the first task prints what to do.
task() { # TASKS NUMBER COMMAND...
  env SLURM_JOB_ID=5 SLURM_JOBID=5 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NODELIST=a SLURM_STEP_NUM_TASKS="$1" SLURM_PROCID="$2" \
    timeout 60 "${@:3}"
}
expect_ok task 1 0 "$switchyard" version
expect_ok task 1 0 env PMIX_NAMESPACE=slurm.pmix.5.0 PMIX_RANK=0 "$switchyard" version
expect_ok task 1 0 env -u SLURM_JOB_ID -u SLURM_JOBID -u SLURM_NODELIST "$mpirun" 2 "$switchyard" version
[[ $(grep -c "^switchyard " .out) -eq 1 ]] || die "ranks of mpirun run alone"
expect_error "--mpi=pmix" task 4 0 "$switchyard" version
expect_error "--mpi=pmix" task 4 0 env PMIX_MCA_gds=hash "$switchyard" version
expect_exit 2 task 4 3 "$switchyard" version
[[ -z $out$err ]] || die "every task tells it"

# mpirun.sh ends even if a rank is stopped after the others have exited.
expect_exit 1 env SWITCHYARD_TIMEOUT=2 timeout 60 "$mpirun" 2 sh -c '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || kill -STOP $$'
[[ $err == *"1 of 2 ranks have not left 2 s after another one"* ]] || die "the straggler is not named: $err"

# A checkpoint of many gigabytes takes minutes.
seconds=$(sed -nE 's/^#SBATCH --signal=USR1@([0-9]+)$/\1/p' "$template")
((seconds >= 600)) || die "USR1 comes ${seconds:-0} s before the end"

if command -v shellcheck >/dev/null; then
  expect_ok shellcheck --severity=warning "$root"/launch/*.sh "$template"
else
  echo "there is no shellcheck: the launchers are not checked by it"
fi
