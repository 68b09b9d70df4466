#!/usr/bin/env bash
# A real Slurm cluster on this machine, with two nodes that are both this machine.
# Tests srun, mpirun in a job, preemption and requeueing, and a job array over layouts. Arguments as
# of tests/cli. Exit code 77 with the reason if Slurm cannot start.
source "$2/tests/cli/lib/lib.sh"
for program in slurmctld slurmd munged srun sbatch scontrol; do
  PATH=$PATH:/usr/sbin command -v $program >/dev/null || skip "there is no $program: apt-get install slurm-wlm munge"
done
PATH=$PATH:/usr/sbin
[[ $(id -u) -eq 0 ]] || skip "slurmd starts processes of other users: run this as root"

# ---- the cluster, with all files in one folder ----
chmod 755 "$work"
mkdir -p slurm/state slurm/{one,two}/tmp
daemons=()
cluster() {  # starts a daemon; down() ends it by its PID
  "$@" >>slurm/log 2>&1 &
  daemons+=($!)
}
down() {
  local code=$?
  set +e  # clean up everything, also after errors
  [[ $code -eq 0 || $code -eq 77 ]] || for log in "$work"/slurm/{log,one.log,two.log}; do tail -n 20 "$log" >&2; done
  scancel --full --state=RUNNING >/dev/null 2>&1 || true
  scancel --state=PENDING >/dev/null 2>&1 || true
  for _ in $(seq 100); do [[ -n $(squeue --noheader 2>/dev/null) ]] || break; sleep 0.1; done
  kill "${daemons[@]}" 2>/dev/null || true
  for _ in $(seq 100); do kill -0 "${daemons[@]}" 2>/dev/null || break; sleep 0.1; done
  kill -KILL "${daemons[@]}" 2>/dev/null || true
  cd / && rm -rf "$work"
}
trap down EXIT
head -c 128 /dev/urandom >slurm/key && chmod 400 slurm/key
cluster munged --foreground --force --key-file="$work/slurm/key" --socket="$work/slurm/munge" --pid-file="$work/slurm/munge.pid" \
  --seed-file="$work/slurm/seed" --log-file="$work/slurm/munge.log"
port=$((20000 + $$ % 20000))
cat >slurm/slurm.conf <<CONF
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$work/slurm/munge
StateSaveLocation=$work/slurm/state
SlurmdSpoolDir=$work/slurm/%n
SlurmdLogFile=$work/slurm/%n.log
TmpFS=$work/slurm/%n/tmp
SlurmctldPidFile=$work/slurm/slurmctld.pid
SlurmdPidFile=$work/slurm/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
SwitchType=switch/none
NodeName=one NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4 RealMemory=1000
NodeName=two NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4 RealMemory=1000
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
CONF
printf 'CgroupAutomount=no\n' >slurm/cgroup.conf
export SLURM_CONF=$work/slurm/slurm.conf
[[ $mpi == openmpi ]] || skip "this test starts ranks by PMIx, which Debian's MPICH lacks"
[[ $(srun --mpi=list 2>&1) == *pmix* ]] || skip "this Slurm has no PMIx: srun --mpi=list does not name it"
for _ in $(seq 100); do [[ -S slurm/munge ]] && break; sleep 0.1; done
cluster slurmctld -D
cluster slurmd -D -N one
cluster slurmd -D -N two
for _ in $(seq 300); do
  [[ $(sinfo --noheader --states=idle --format=%D 2>/dev/null) == 2 ]] && break
  kill -0 "${daemons[@]}" 2>/dev/null || skip "a daemon of Slurm has ended: $(tail -5 slurm/log)"
  sleep 0.2
done
[[ $(sinfo --noheader --states=idle --format=%D 2>/dev/null) == 2 ]] || skip "the nodes are not idle after a minute: $(sinfo 2>&1) $(tail -5 slurm/log)"

# ---- data and configuration ----
make_data 60
small_config <<'INI'
[train]
steps = 20
global_batch = 8
micro_batch = 2
[run]
backend = cpu
checkpoint_every = 10
INI
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# No shared memory of Open MPI: its name contains the host name, which both nodes have in common.
export OMPI_MCA_btl=self,tcp
losses() { sed -E 's/.*"step":([0-9]+).*"loss":([0-9.e-]+),.*/\1 \2/' "$1/metrics.jsonl"; }
same_losses() {  # within rounding
  paste <(losses "$1") <(losses "$2") |
    awk '$1 != $3 || $2 - $4 > 1e-5 || $4 - $2 > 1e-5 { exit 1 } END { if (NR != 20) exit 1 }' || die "the losses of $1 and $2 differ"
}
state() { scontrol show job "$1" | sed -nE 's/.*JobState=([A-Z]+).*/\1/p'; }
wait_until() {  # SECONDS WHAT COMMAND...
  local until=$((SECONDS + $1))
  until "${@:3}"; do
    ((SECONDS < until)) || die "no $2 within $1 s: $(scontrol show job 2>&1) $(cat job-*.out 2>/dev/null)"
    sleep 0.2
  done
}
ended() { [[ -z $(squeue --noheader --jobs="$1" 2>/dev/null) ]]; }
expect_ok "$switchyard" train config.ini --run.dir=alone --quiet

# srun starts the ranks on both nodes, and returns their exit code.
expect_ok timeout 120 srun --mpi=pmix --nodes=2 --ntasks=4 "$switchyard" train config.ini --run.dir=srun --parallel.ep=2 --quiet
same_losses alone srun
expect_error "model.layer" timeout 60 srun --mpi=pmix --nodes=2 --ntasks=2 "$switchyard" train config.ini --model.layer=3

# Programs in a step of one task (as in a shell of srun --pty) run alone, one after another, with
# and without PMIx. Several tasks without PMI are an error with one message.
for mpi in none pmix; do
  # shellcheck disable=SC2016
  expect_ok timeout 120 srun --mpi=$mpi --ntasks=1 bash -c '"$0" version && "$0" inspect --config config.ini && "$0" version' "$switchyard"
  [[ $(grep -c '^switchyard [0-9]' .out) -eq 2 ]] || die "not both programs ran with --mpi=$mpi"
done
expect_error "--mpi=pmix" timeout 60 srun --mpi=none --nodes=2 --ntasks=4 "$switchyard" version

# mpirun in a job starts the ranks on both nodes.
cat >job.sh <<JOB
#!/bin/bash
mpirun --bind-to none --map-by node "$switchyard" train config.ini --run.dir=mpirun --parallel.ep=2 --quiet
JOB
expect_ok timeout 120 sbatch --wait --nodes=2 --ntasks=4 --output=job-%j.out job.sh
same_losses alone mpirun

# scale in a batch job: each run is a step of the job.
cat >scale.sh <<JOB
#!/bin/bash
"$switchyard" scale config.ini --ranks 1,4 --layouts tp1,ep2 --steps 3 --warm-up 1 --repeats 1 --own-routing-only --output scaled \\
  --launcher "srun --mpi=pmix --ntasks={ranks}"
JOB
expect_ok timeout 180 sbatch --wait --nodes=2 --ntasks=4 --output=job-%j.out scale.sh
expect_file scaled/config.json
[[ $(tail -n +2 scaled/config.csv | cut -d, -f1 | sort -u | paste -sd,) == 1,4 ]] || die "other ranks: $(cat scaled/config.csv)"

# The batch template with a time limit. USR1 comes before the limit; the run then writes a
# checkpoint and exits with code 3. The job is requeued, and resumes.
export SWITCHYARD=$switchyard SWITCHYARD_ROOT=$work SWITCHYARD_LAUNCH=$root/launch
job=$(sbatch --parsable --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --time=4 --signal=USR1@170 --output=job-%j.out \
  "$root/launch/slurm.sbatch" config.ini --run.dir=preempted --train.steps=1000000)
log=job-$job.out
wait_until 60 "first step" test -s preempted/metrics.jsonl
wait_until 200 "stop by USR1" grep -q "as SIGUSR1 asked; continue with --run.resume=true" "$log"
stopped=$(sed -nE 's/.*stopped at step ([0-9]+) as SIGUSR1.*/\1/p' "$log" | tail -1)
expect_file "preempted/checkpoints/step-$(printf %08d "$stopped")/manifest.json"
wait_until 60 "requeue" eval '[[ $(state $job) == PENDING || $(grep -c "^resumed from" $log) -gt 0 ]]'
[[ $(scontrol show job "$job") == *"Restarts=1"* ]] || die "the job is not requeued: $(scontrol show job "$job")"
# Returns whether the job has resumed, however often it is requeued.
goes_on() {
  # Slurm starts a requeued job after two minutes, or by a request. A node refuses a job, which then
  # fails, that starts in the second in which its processes ended.
  if [[ $(state "$job") == PENDING ]]; then
    sleep 3
    scontrol update jobid="$job" StartTime=now 2>/dev/null || true
  fi
  [[ $(wc -l <preempted/metrics.jsonl) -gt $stopped ]]
}
wait_until 300 "step after the resume" goes_on
grep -q "^resumed from .*(step $stopped)" "$log" || die "it does not go on from step $stopped"
scancel "$job"
wait_until 60 "end of the job" ended "$job"
sed -E 's/^\{"step":([0-9]+),.*\}$/\1/' preempted/metrics.jsonl | awk '$1 != NR { exit 1 }' || die "the steps are not in order"

# Without --cpus-per-task, each rank gets an equal share of the node's CPUs.
sed '/^#SBATCH --cpus-per-task/d' "$root/launch/slurm.sbatch" >shared.sbatch
expect_ok timeout 120 sbatch --wait --nodes=1 --ntasks-per-node=2 --time=5 --output=job-%j.out shared.sbatch config.ini --run.dir=shared \
  --parallel.ep=2 --train.steps=2
expect_file shared/checkpoints/step-00000002/manifest.json

# A job array with a layout for each task.
printf '%s\n' "--parallel.ep=1" "--parallel.ep=2" "--parallel.tp=2 --train.micro_batch=4" >layouts
job=$(SWITCHYARD_SETTINGS=layouts sbatch --parsable --array=0-2 --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --time=5 \
  --output=job-%A_%a.out "$root/launch/slurm.sbatch" config.ini --run.dir=array)
wait_until 180 "end of the array" ended "$job"
for task in 0 1 2; do
  expect_file "array-$task/checkpoints/step-00000020/manifest.json"
  same_losses alone "array-$task"
done
grep -q '^tp = 2' array-2/config.ini || die "the third task has another layout"
