#!/usr/bin/env bash
# Tests checkpoints of real runs: reading by other programs, other folders and other layouts,
# damage, and comparison.
source "$2/tests/cli/lib/lib.sh"

mkdir text
for i in $(seq 1 300); do echo "wagon $i goes to track $((i * 7 % 31)) by the points of $((i % 5))" >"text/$i"; done
expect_ok "$switchyard" prepare --domain yard=text --tokenizer bytes --valid-fraction 0.1 --output data
cat >config.ini <<'INI'
[model]
layers = 2
d_model = 32
heads = 4
kv_heads = 2
d_ff = 48
seq_len = 32
[moe]
experts = 4
top_k = 2
[train]
steps = 8
global_batch = 4
micro_batch = 1
[data]
path = data
[run]
backend = cpu
log_every = 2
checkpoint_every = 4
keep = 2
INI
checkpoint=checkpoints/step-00000008

expect_ok ranks 2 train config.ini --run.dir=two --parallel.ep=2
expect_ok "$switchyard" inspect two --verify
expect_output "step-00000008: OK"
expect_output "step-00000004: OK"

# Any HDF5 program reads whole tensors, from any folder, and also after the checkpoint has moved.
mkdir elsewhere
cp -r "two/$checkpoint" elsewhere/moved
call h5ls -r elsewhere/moved/index.h5
expect_output "/experts/routed          Dataset {4, 2, 4}"
cd /
call h5dump -d /params/layers.1.moe.experts.down.weight "$work/elsewhere/moved/index.h5"
cd "$work"
[[ $code -eq 0 && $out != *nan* ]] || die "whole tensors read as NaN"
rm elsewhere/moved/shard-00001.h5
call h5dump -d /params/layers.1.moe.experts.down.weight elsewhere/moved/index.h5
expect_output "(2,0,0): nan"  # the second rank's experts
[[ $out != *"(1,0,0): nan"* ]] || die "the first rank's experts are lost too"

# A resume from the middle checkpoint, on the same layout and on another one.
for layout in "2 ep=2" "1 ep=1"; do
  read -r number ep <<<"$layout"
  rm -rf again
  cp -r two again
  rm -r "again/$checkpoint"
  expect_ok ranks "$number" train config.ini --run.dir=again "--parallel.$ep" --run.resume=true
  [[ $number == 2 ]] || continue
  expect_ok "$switchyard" diff two again
  expect_output "bitwise equal"
done

expect_exit 1 "$switchyard" diff "two/checkpoints/step-00000004" "two/$checkpoint"
expect_output "/params/embedding.weight"
expect_error "no folder" "$switchyard" diff two none

# If the newest checkpoint is damaged, the one before it is used, with a warning.
printf x | dd of="two/$checkpoint/shard-00001.h5" bs=1 seek=5000 conv=notrunc status=none
expect_exit 1 "$switchyard" inspect two --verify
expect_output "shard-00001.h5 is damaged"
expect_ok "$switchyard" inspect two
expect_output "step        4 "
[[ $err == *warning*step-00000008* ]] || die "no warning of the damaged checkpoint"
expect_error "shard-00001.h5 is damaged" "$switchyard" inspect "two/$checkpoint"
expect_error "shard-00001.h5 is damaged" "$switchyard" diff "two/$checkpoint" again
expect_ok ranks 2 train config.ini --run.dir=two --parallel.ep=2 --run.resume=true
[[ $err$out == *step-00000008* ]] || die "no warning of the damaged checkpoint"
expect_ok "$switchyard" inspect "two/$checkpoint" --verify

expect_ok "$switchyard" inspect two --json --stats --all
expect_output '"step": 8'
