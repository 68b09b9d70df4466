#!/usr/bin/env bash
# Tests hangs: if a rank is stopped or killed, all ranks and mpirun end. A job that was suspended as
# a whole continues. An optional third argument is the backend.
source "$2/tests/cli/lib/lib.sh"
backend=${3:-cpu}
seconds=4
export SWITCHYARD_TIMEOUT=$seconds OMP_NUM_THREADS=1
host=$(uname -n)

make_text text 60
expect_ok "$switchyard" prepare --domain english=text --tokenizer bytes --output data
small_config <<INI
[train]
steps = 1000000
global_batch = 6
micro_batch = 1
schedule = constant
[run]
backend = $backend
log_every = 1
INI
sed -i 's/^experts = 4/experts = 6/' config.ini
# If ranks share a GPU, NCCL must treat them as ranks on different machines.
cat >rank.sh <<'SH'
#!/usr/bin/env bash
NCCL_HOSTID=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} exec "$@"
SH
chmod +x rank.sh

# Prints the process of a rank of a run.
pid_of() {  # RUN RANK
  local process
  for process in /proc/[0-9]*; do  # skips processes that end meanwhile
    grep -zqxF -e "--run.dir=$work/$1" "$process/cmdline" 2>/dev/null || continue
    grep -zqxE "(OMPI_COMM_WORLD|PMI)_RANK=$2" "$process/environ" 2>/dev/null || continue
    echo "${process#/proc/}"
    return
  done
  die "rank $2 of $1 is not there"
}
lines() { if [[ -f $1/metrics.jsonl ]]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }
steps_from() {  # RUN STEP; waits until the run has made a few more steps
  for _ in $(seq 1200); do (($(lines "$1") >= $2 + 3)) && return; sleep 0.1; done
  die "$1 does not train: $(cat "$1.err")"
}
# Trains on three ranks until the first steps are done. ${ranks[@]} are the processes.
launch() {  # RUN
  "$root/launch/mpirun.sh" 3 ./rank.sh "$switchyard" train config.ini --run.dir="$work/$1" --parallel.ep=3 >"$1.out" 2>"$1.err" &
  job=$!
  steps_from "$1" 0
  ranks=()
  for rank in 0 1 2; do ranks+=("$(pid_of "$1" $rank)"); done
  # No rank survives this test.
  trap 'kill -KILL "${ranks[@]}" $(jobs -p) 2>/dev/null || true; cd /; rm -rf "$work"' EXIT
}
# Waits until mpirun and the processes end, at most SECONDS. $code is the exit code of mpirun.
ended_within() {  # RUN SECONDS
  SECONDS=0 code=0
  while kill -0 "$job" 2>/dev/null && ((SECONDS < $2)); do sleep 0.1; done
  ! kill -0 "$job" 2>/dev/null || die "mpirun of $1 goes on: $(cat "$1.err")"
  wait "$job" || code=$?
  local pid
  for pid in "${ranks[@]}"; do
    while [[ -d /proc/$pid ]] && ((SECONDS < $2)); do sleep 0.1; done
    [[ ! -d /proc/$pid ]] || die "process $pid of $1 goes on"
  done
  err=$(cat "$1.err") out=$(cat "$1.out")
}
limit=$((2 * seconds + 15))  # on busy machines, too
says() { grep -qE "$1" <<<"$err" || die "not a word of '$1' in: $err"; }

launch stopped
kill -STOP "${ranks[1]}"
ended_within stopped $limit
[[ $code -eq 1 ]] || die "exit code $code"
says "^switchyard: rank [02] on $host has waited [0-9.]+ s in .*step [0-9]+ for an? [a-z-]+ with ranks? "
says "^  rank 1 on $host does not answer: it was stopped or killed"
says "^  no rank has made progress for $seconds\.0 s: .*SWITCHYARD_TIMEOUT"
[[ $err != *"rank 0 on $host does not answer"* && $err != *"rank 2 on $host does not answer"* ]] || die "blames others: $err"

# mpirun names the killed rank and ends the other ranks.
launch killed
kill -KILL "${ranks[2]}"
ended_within killed $limit
[[ $code -ne 0 ]] || die "exit code 0"
names_killed_rank 2 || die "mpirun does not name the killed rank: $err"

# If the launcher does not end the other ranks, they end themselves and print their phase. Only Open
# MPI has a variable for it.
if [[ $mpi == openmpi ]]; then
  export OMPI_MCA_orte_enable_recovery=1
  launch outlived
  unset OMPI_MCA_orte_enable_recovery
  kill -KILL "${ranks[2]}"
  ended_within outlived $limit
  says "^switchyard: rank [01] on $host has waited [0-9.]+ s in .*step [0-9]+ for an? [a-z-]+ with ranks? "
  says "^  rank 2 on $host does not answer: it was stopped or killed"
  [[ $err != *"rank 0 on $host does not answer"* && $err != *"rank 1 on $host does not answer"* ]] || die "blames others: $err"
fi

launch suspended
kill -STOP "${ranks[@]}"
sleep $((2 * seconds))
steps=$(lines suspended)
kill -CONT "${ranks[@]}"
steps_from suspended "$steps"
kill -USR1 "$job"
ended_within suspended 120
[[ $code -eq 3 ]] || die "exit code $code of a run that was asked to stop: $err"
