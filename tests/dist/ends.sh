#!/usr/bin/env bash
# An error of one rank ends all of them, at once, with its exit code and one message. The first argument is test_ends.
source "$2/tests/cli/lib/lib.sh"
for ranks in 2 3; do
  expect_exit 2 timeout 60 "$root/launch/mpirun.sh" $ranks "$1"
  [[ $(grep '^switchyard: ' <<<"$err") == "switchyard: rank $((ranks - 1)): it fails alone" ]] || die "another message"
done
# What a rank has printed is not lost when others leave with an exit code that makes mpirun end the rest.
expect_exit 1 timeout 60 "$root/launch/mpirun.sh" 3 "$1" slow
expect_output "all that it found"
expect_ok timeout 100 "$1" busy
# An mpirun that is to end is asked until it has.
expect_ok timeout 60 "$1" slowly

# Ranks that do not do the same end with a message that names both sides.
export SWITCHYARD_COMPARE=1
differ() {
  expect_exit 1 timeout 60 "$root/launch/mpirun.sh" "$1" "$ends" differ "$2"
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
# In a part of the ranks, which are named as in the world.
differ 3 group "rank 1 is about to do an all-reduce of 8 bytes, the sum of f32 $layer, and rank 2 an all-reduce of 12 bytes"
# A rank that is in a collective of other ranks cannot be compared: nobody goes on, and who waits for what is told.
export SWITCHYARD_TIMEOUT=2
host=$(uname -n)
differ 3 elsewhere " s $layer for others that do an all-reduce of 16 bytes, the sum of f32 $layer"
unset SWITCHYARD_COMPARE
# By messages alone: what another group's collective left in shared memory is noticed at once.
export SWITCHYARD_WINDOW=0
differ 3 elsewhere "rank 0 on $host has waited "
[[ $err == *"rank 2 on $host has waited "*" for a barrier with rank 1"* ]] || die "not a word of what rank 2 does"
[[ $err != *"does not answer"* ]] || die "a rank that waits answers"
unset SWITCHYARD_WINDOW
# A rank that is stopped, and one that is gone.
for ranks in 2 3; do
  differ $ranks stopped "rank $((ranks - 1)) on $host does not answer: it was stopped"
  call timeout 60 "$root/launch/mpirun.sh" $ranks "$ends" differ killed
  [[ $code -ne 0 && $code -ne 124 ]] || die "exit code $code with a killed rank"
  [[ $err == *"rank $((ranks - 1)) with PID "*" on node $host exited on signal 9"* ]] || die "mpirun does not name the killed rank: $err"
done
# What a rank does for itself may take long.
SWITCHYARD_TIMEOUT=1 expect_ok timeout 60 "$root/launch/mpirun.sh" 3 "$ends" late 4
expect_exit 2 env SWITCHYARD_TIMEOUT=soon "$root/launch/mpirun.sh" 2 "$ends" late 0
[[ $(grep '^switchyard: ' <<<"$err") == "switchyard: SWITCHYARD_TIMEOUT = 'soon'"* ]] || die "another message"
