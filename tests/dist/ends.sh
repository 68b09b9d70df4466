#!/usr/bin/env bash
# An error of one rank ends all ranks at once, with its exit code and one message.
# The first argument is test_ends.
source "$2/tests/cli/lib/lib.sh"
for ranks in 2 3; do
  expect_exit 2 timeout 60 "$root/launch/mpirun.sh" $ranks "$1"
  [[ $(grep '^switchyard: ' <<<"$err") == "switchyard: rank $((ranks - 1)): it fails alone" ]] || die "another message"
done
# Output of a rank is not lost when others leave with an exit code that makes mpirun end all ranks.
expect_exit 1 timeout 60 "$root/launch/mpirun.sh" 3 "$1" slow
expect_output "all that it found"
expect_ok timeout 100 "$1" busy
# A rank repeats SIGTERM until mpirun has ended.
expect_ok timeout 60 "$1" slowly

# Ranks that make different calls end with a message that names both calls.
export SWITCHYARD_COMPARE=1
differ() {
  call timeout 60 "$root/launch/mpirun.sh" "$1" "$ends" differ "$2"
  # A busy machine may take longer than SWITCHYARD_TIMEOUT to start MPI.
  [[ $err != *" for the start of MPI on all ranks"* ]] ||
    SWITCHYARD_TIMEOUT=20 call timeout 100 "$root/launch/mpirun.sh" "$1" "$ends" differ "$2"
  [[ $code -eq 1 ]] || die "$2 on $1 ranks: exit code $code: $err"
  [[ $err == *"$3"* ]] || die "$2 on $1 ranks: no '$3' in: $err"
}
ends=$1
layer="in the forward pass of layer 2"
for ranks in 2 3; do
  last=$((ranks - 1))
  expect_exit 0 "$root/launch/mpirun.sh" $ranks "$ends" differ nothing
  reduce="rank 0 is about to do an all-reduce of 16 bytes, the sum of f32 $layer, and rank $last"
  differ $ranks operation "$reduce an all-gather of 16 bytes from each $layer: every rank must"
  differ $ranks size "$reduce an all-reduce of 20 bytes, the sum of f32 $layer: every rank must"
  differ $ranks layer "$reduce an all-reduce of 16 bytes, the sum of f32 in the backward pass of layer 2: every"
  differ $ranks barrier "$reduce a barrier $layer: every rank must"
  differ $ranks counts "rank 0 is about to send 1 rows to rank $last, which expects 2, in an all-to-all of rows of 8 bytes"
done
# Messages of a subgroup name the ranks in the world.
differ 3 group "rank 1 is about to do an all-reduce of 8 bytes, the sum of f32 $layer, and rank 2 an all-reduce of 12 bytes"
# Calls in different groups cannot be compared: the ranks hang, and the watchdog names their calls.
export SWITCHYARD_TIMEOUT=2
host=$(uname -n)
differ 3 elsewhere " s $layer for others that do an all-reduce of 16 bytes, the sum of f32 $layer"
unset SWITCHYARD_COMPARE
# Without shared memory. (With it, the data of another group's collective is an error at once.)
export SWITCHYARD_WINDOW=0
differ 3 elsewhere "rank 0 on $host has waited "
[[ $err == *"rank 2 on $host has waited "*" for a barrier with rank 1"* ]] || die "no report of the wait of rank 2"
[[ $err != *"does not answer"* ]] || die "a rank that waits answers"
unset SWITCHYARD_WINDOW
# A stopped rank, and a killed one.
for ranks in 2 3; do
  differ $ranks stopped "rank $((ranks - 1)) on $host does not answer: it was stopped"
  call timeout 60 "$root/launch/mpirun.sh" $ranks "$ends" differ killed
  [[ $code -ne 0 && $code -ne 124 ]] || die "exit code $code with a killed rank"
  names_killed_rank $((ranks - 1)) || die "mpirun does not name the killed rank: $err"
done
# Local work of a rank may take longer than the timeout.
SWITCHYARD_TIMEOUT=2 expect_ok timeout 60 "$root/launch/mpirun.sh" 3 "$ends" late 5
expect_exit 2 env SWITCHYARD_TIMEOUT=soon "$root/launch/mpirun.sh" 2 "$ends" late 0
[[ $(grep '^switchyard: ' <<<"$err") == "switchyard: SWITCHYARD_TIMEOUT = 'soon'"* ]] || die "another message"

# The job ends if a rank is stopped while MPI starts or ends, or leaves early, or exits in MPI_Init.
export SWITCHYARD_TIMEOUT=2
stops() {  # FUNCTION WORDS
  ENDS_STOP=$1 call timeout 60 "$root/launch/mpirun.sh" 3 "$ends" differ nothing
  # mpirun itself may crash (139, in PMIx_server_finalize of Open MPI 4.1.4)
  # if a rank exits within MPI_Finalize.
  [[ $code -eq 1 || ($1 == MPI_Finalize && $code -eq 139) ]] || die "exit code $code after a stop in $1: $err"
  [[ $err == *"switchyard: rank "[01]" on $host has waited "*" for $2"* ]] || die "stopped at $1: no 'for $2' in: $err"
}
stops MPI_Init_thread "the start of MPI on all ranks"
stops MPI_Win_allocate_shared "the start of the other ranks of this machine"
stops MPI_Win_free "the end of the other ranks"
stops MPI_Finalize "the end of the other ranks"
[[ $err == *"rank 2 on $host does not answer"* ]] || die "the stopped rank is not named: $err"
call timeout 60 "$root/launch/mpirun.sh" 3 "$ends" leaves
[[ $code -eq 1 || $code -eq 2 ]] || die "exit code $code where a rank leaves early"
[[ $err == *"for the end of the other ranks"* && $err == *" for a barrier"* ]] || die "a rank leaves early: $err"
unset SWITCHYARD_TIMEOUT

# The next start collects the leftovers of Open MPI's killed mpirun; those of another program stay.
if [[ $mpi == openmpi ]]; then
  temporary=$work/temporary
  mkdir "$temporary"
  ENDS_STOP=MPI_Win_free TMPDIR=$temporary "${bare_mpirun[@]}" 2 "$ends" differ nothing >/dev/null 2>&1 &
  killed=$!
  for _ in $(seq 300); do compgen -G "$temporary/ompi.*/pid.*/switchyard-job" >.record && break; sleep 0.1; done
  [[ -s .record ]] || die "no record of the job"
  segments=$(sed -n 's|.* \(/dev/shm/vader_segment\..*\)|\1|p' "$(cat .record)")
  [[ $(wc -w <<<"$segments") -eq 2 ]] || die "the record is: $(cat "$(cat .record)")"
  ranks=$(pgrep -P $killed)
  kill -KILL $killed $ranks
  wait $killed 2>/dev/null || true
  for rank in $ranks; do while kill -0 "$rank" 2>/dev/null; do sleep 0.1; done; done
  mkdir "$(dirname "$(dirname "$(cat .record)")")/pid.1"
  for segment in $segments; do [[ -e $segment ]] || die "mpirun has collected $segment itself"; done
  TMPDIR=$temporary expect_ok timeout 60 "$root/launch/mpirun.sh" 2 "$ends" differ nothing
  for segment in $segments; do [[ ! -e $segment ]] || die "$segment is left"; done
  [[ $(cd "$temporary"/ompi.* && echo pid.*) == pid.1 ]] || die "left are: $(ls "$temporary"/ompi.*)"
fi

# Endless local work of a rank ends at its limit; 0 means unlimited.
SWITCHYARD_LOCAL_TIMEOUT=2 expect_exit 1 timeout 60 "$root/launch/mpirun.sh" 3 "$ends" busy-rank
own="switchyard: rank 2 on $host has computed, read or written in the forward pass of layer 2 for 2.0 s"
[[ $err == *"$own"* ]] || die "no '$own' in: $err"
SWITCHYARD_LOCAL_TIMEOUT=0 SWITCHYARD_TIMEOUT=2 expect_ok timeout 60 "$root/launch/mpirun.sh" 2 "$ends" late 3
expect_exit 2 env SWITCHYARD_LOCAL_TIMEOUT=-1 "$root/launch/mpirun.sh" 2 "$ends" late 0
[[ $(grep '^switchyard: ' <<<"$err") == "switchyard: SWITCHYARD_LOCAL_TIMEOUT = '-1'"* ]] || die "another message"
# If the address space of a rank is full, the job runs without shared memory, and no rank hangs. The
# UCX of MPICH needs address space then, too.
[[ $mpi == mpich ]] || ENDS_MEMORY=MPI_Comm_split_type SWITCHYARD_TIMEOUT=20 expect_ok timeout 60 "$root/launch/mpirun.sh" 3 "$ends" differ nothing
# No memory for a thread.
expect_exit 1 "$ends" threadless
[[ $err == "switchyard: a thread cannot be started"*"ulimit -v"* ]] || die "another message: $err"
