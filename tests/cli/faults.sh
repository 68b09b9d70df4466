#!/usr/bin/env bash
# Tests commands on a disk that is full, or on which one system call fails. Each must end with exit
# code 1 and one message. tests/faults/mpi_faults.cpp tests every call of the commands that write
# HDF5.
source "$2/tests/cli/lib/lib.sh"

faults=$(dirname "$switchyard")/tests/libfaults.so
[[ -f $faults ]] || die "$faults is not there: build the target faults"

# Runs a command in which the N-th call on paths with TEXT fails. `full` makes later calls fail,
# too.
with_fault() {  # TEXT N ERROR COMMAND...
  LD_PRELOAD=$faults FAULT_PATH=$1 FAULT_AT=$2 FAULT_ERROR=$3 "${@:4}"
}
full() {  # TEXT N COMMAND...
  FAULT_LASTS=1 with_fault "$1" "$2" ENOSPC "${@:3}"
}
expect_full() {  # TEXT N COMMAND...
  call full "$@"
  [[ $code -eq 1 ]] || die "exit code $code instead of 1 from: $*"
  [[ $err == *"No space left on device"* ]] || die "no word of a full disk from: $*"
  [[ $(grep -c '^switchyard: ' <<<"$err") -eq 1 ]] || die "not one message from: $*"
}

make_data 40 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 2
warmup = 1
global_batch = 4
micro_batch = 2
[run]
backend = cpu
checkpoint_every = 1
log_every = 1
INI
expect_ok "$switchyard" train config.ini --run.dir=trained --quiet
expect_ok "$switchyard" export trained model --quiet --family mixtral
cat >sweep.ini <<'INI'
[sweep]
base = config.ini
vary = train.lr=1e-3,1e-2
INI

for n in 1 2 3 4 5 8 12; do
  expect_full /new/ $n "$switchyard" prepare --domain english=text --tokenizer bytes --output "$work/new/data"
  rm -rf new
  expect_full /run/ $n "$switchyard" train config.ini --run.dir="$work/run/x" --quiet --log.csv=true --log.prometheus=true
  rm -rf run
  expect_full /run/ $n "$switchyard" import model "$work/run/x" --quiet
  rm -rf run
done
expect_full /run/ 3 ranks 2 train config.ini --run.dir="$work/run/x" --quiet
for n in 1 2 3; do
  expect_full /new $n "$switchyard" export trained "$work/new" --quiet --family mixtral
  expect_full /new $n "$switchyard" evaluate trained --tokens 1,2,3 --logits "$work/new.h5" --backend cpu --quiet
  for output in hdf5 csv html figures-csv; do
    expect_full /new $n "$switchyard" experts trained --placement ep=2 --$output "$work/new.out"
  done
  expect_full /new $n "$switchyard" experts trained --placement ep=2 --placement-file "$work/new.out"
  expect_full evaluation.json $n "$switchyard" evaluate trained --backend cpu --quiet
  expect_full /new $n "$switchyard" sweep sweep.ini --output "$work/new/sweep"
  rm -rf new
  expect_full /new $n "$switchyard" scale config.ini --ranks 1 --steps 2 --output "$work/new/scale"
  rm -rf new
done
[[ -z $(find . -name 'new.h5*' -o -name 'new.out*') ]] || die "something is left: $(find . -name 'new.*')"

# One write fails in the middle of the weights. The older checkpoint stays, and no other one counts
# as complete. (The HDF5 library once wrote small datasets on closing, and ignored the error.)
for n in 20 40; do
  expect_exit 1 with_fault step-00000002.tmp/shard $n EIO "$switchyard" train config.ini --run.dir=once --quiet
  [[ $err == *"shard-00000.h5: Input/output error"* ]] || die "no word of the shard and its error"
  [[ $(ls once/checkpoints) == step-00000001 ]] || die "not the first checkpoint alone"
  expect_ok "$switchyard" inspect once --verify
  rm -r once
done
