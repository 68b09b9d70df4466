#!/usr/bin/env bash
# Tests which checkpoint a run resumes from: the newest valid one with finite values, a chosen one,
# or one of another run. Foreign files next to checkpoints are ignored. Few open files suffice to
# read many shards.
source "$2/tests/cli/lib/lib.sh"

make_data 200 --valid-fraction 0.1
cat >config.ini <<'INI'
[model]
layers = 2
d_model = 32
heads = 4
kv_heads = 2
seq_len = 16
[moe]
experts = 4
d_ff = 32
bias_update_rate = 0.01
[train]
steps = 8
global_batch = 4
micro_batch = 1
[data]
path = data
[run]
dir = run
backend = cpu
checkpoint_every = 2
keep = 0
INI
step() { printf 'run/checkpoints/step-%08d' "$1"; }
expect_ok "$switchyard" train config.ini

# A copy under the name of another step is refused.
cp -r "$(step 8)" "$(step 50)"
expect_exit 1 "$switchyard" inspect run --verify
expect_output "holds step 8: rename it to step-00000008, or remove it"
expect_error "holds step 8: rename it" "$switchyard" diff "$(step 8)" "$(step 50)"
expect_ok "$switchyard" inspect run
expect_output "step        8 "
expect_ok "$switchyard" train config.ini --train.steps=9 --run.resume=true
expect_output "(step 8)"
[[ $err == *"step-00000050 is passed over: "*"holds step 8"* ]] || die "no warning of the folder's name"
rm -r "$(step 50)"

# A warning names foreign files once; they are ignored.
touch run/checkpoints/.DS_Store "$(step 9)/notes.txt"
expect_ok "$switchyard" train config.ini --train.steps=10 --run.resume=true
expect_output "(step 9)"
[[ $(grep -c 'is ignored: .DS_Store' "$work/.err") -eq 1 ]] || die "no warning of a foreign file"
[[ $(grep -c 'is ignored: notes.txt' "$work/.err") -eq 1 ]] || die "no warning of a foreign file"
# Each assignment is in the counts of one line, although each start ended with such a line.
counted=$(grep -oE '"experts":\{"routed":[^a-z]*' run/metrics.jsonl | grep -oE '[0-9]+' | awk '{ sum += $1 } END { print sum }')
routed=$(sed -E 's/"experts":\{[^}]*\}//' run/metrics.jsonl | grep -oE '"routed":[0-9]+' | awk -F: '{ sum += $2 } END { print sum }')
[[ $routed -gt 0 && $counted == "$routed" ]] || die "the lines count $counted assignments of $routed"
expect_ok "$switchyard" inspect run --verify
rm run/checkpoints/.DS_Store "$(step 9)/notes.txt"
mkdir -p fresh/checkpoints
touch fresh/checkpoints/.DS_Store
expect_ok "$switchyard" train config.ini --train.steps=1 --run.dir=fresh --run.resume=true

# If the checkpoints are away, a run does not begin anew over its metrics.
mv run/checkpoints away
metrics=$(cksum <run/metrics.jsonl)
expect_error "run has trained 10 steps, with a checkpoint every 2 steps, but run/checkpoints holds none: restore" \
  "$switchyard" train config.ini --run.resume=true
mkdir run/checkpoints
expect_error "run/checkpoints holds none: restore" ranks 2 train config.ini --run.resume=true
rmdir run/checkpoints
ln -s "$work/nowhere" run/checkpoints
expect_error "run/checkpoints is not a folder, or it links to a missing one: restore the folder, or choose another run.dir" "$switchyard" train config.ini --run.resume=true
rm run/checkpoints
mv away run/checkpoints
[[ $(cksum <run/metrics.jsonl) == "$metrics" ]] || die "the metrics have changed"

# An evaluation does not overwrite the target of a link at its temporary file.
echo precious >victim
ln -s ../victim run/evaluation.json.tmp
expect_ok "$switchyard" evaluate run
expect_file run/evaluation.json
[[ $(cat victim) == precious ]] || die "a link was followed"

# If files cannot be opened, the commands fail, and do not report equality or NaN. A few open files
# are enough.
expect_ok ranks 4 train config.ini --run.dir=four --parallel.ep=2 --train.steps=2 --train.seed=5
cat >few-files <<'SH'
for open in /proc/self/fd/*; do  # what this test has inherited counts too
  ((${open##*/} > 2)) && eval "exec ${open##*/}>&-"
done
ulimit -n "$0"
exec "$@"
SH
few_files() { bash -c "$(cat few-files)" "$@"; }  # LIMIT COMMAND...
expect_error "Too many open files" few_files 5 "$switchyard" diff run four
expect_error "Too many open files" few_files 4 "$switchyard" inspect four --stats
expect_exit 1 few_files 16 "$switchyard" diff run four
expect_output "tensors differ"

# A chosen step is resumed. Newer checkpoints are set aside, so that the next resume continues from
# the chosen step.
expect_error "run.resume_step = 3: run/checkpoints holds the steps 2, 4, 6, 8, 9, 10: choose one of them" \
  "$switchyard" train config.ini --run.resume=true --run.resume_step=3
expect_error "needs run.resume = true" "$switchyard" train config.ini --run.resume_step=4
cp -r "$(step 6)" six
expect_ok ranks 2 train config.ini --run.resume=true --run.resume_step=4 --train.steps=6 --parallel.tp=2
expect_output "(step 4)"
expect_file "$(step 6).abandoned/manifest.json" "$(step 10).abandoned/manifest.json"
expect_no_file "$(step 10)"
expect_ok "$switchyard" train config.ini --run.resume=true --train.steps=7
expect_output "(step 6)"
expect_ok "$switchyard" inspect "$(step 6).abandoned"
expect_output "step        6 "

# Weights that are not finite are not saved. With eps = 0, tokens that never occurred cause 0 / 0.
expect_exit 1 "$switchyard" train config.ini --run.resume=true --train.steps=8 --train.eps=0 --run.checkpoint_every=1
[[ $(grep -c 'not finite at step 8: the training has diverged, and nothing was saved' "$work/.err") -eq 1 ]] ||
  die "no word of weights that are not finite"
expect_no_file "$(step 8)" "$(step 8).tmp"
expect_exit 1 ranks 2 train config.ini --run.resume=true --train.steps=8 --train.eps=0 --parallel.ep=2
[[ $(grep -c '^switchyard: .*not finite at step 8' "$work/.err") -eq 1 ]] || die "not exactly one error on two ranks"
expect_ok "$switchyard" train config.ini --run.resume=true --train.steps=8
expect_output "(step 7)"

# A new run starts from the weights of another run, on another layout. It takes nothing else from
# it.
expect_ok ranks 2 train config.ini --run.dir=tuned --run.init_from=six --parallel.ep=2 --train.steps=1 --train.lr=0 --train.min_lr=0 \
  --moe.bias_update_rate=1e-12
expect_output "starts from the weights of six"
[[ $(wc -l <tuned/metrics.jsonl) -eq 1 ]] || die "not one step"
expect_exit 1 "$switchyard" diff six tuned
[[ $out != *"/params/"* && $out == *"/optimizer/"* ]] || die "not the weights alone"
# An existing run is resumed, and run.init_from is ignored.
expect_ok ranks 2 train config.ini --run.dir=tuned --run.init_from=gone --run.resume=true --train.steps=2
expect_output "(step 1)"
expect_error "it has layers.0.attention.k.weight [2, 8, 32], this model has [4, 8, 32]" \
  "$switchyard" train config.ini --run.dir=wider --run.init_from=six --model.kv_heads=4
expect_ok "$switchyard" train config.ini --run.dir=other --run.init_from=six --train.steps=1 --moe.top_k=1
[[ $err == *"trained with other settings: moe.top_k: 1 here, 2 there"* ]] || die "no warning of other settings"
expect_error "none is no folder" "$switchyard" train config.ini --run.dir=nowhere --run.init_from=none
expect_no_file nowhere/config.ini

# With a layout that the program chooses, a run on as many ranks keeps it, bit for bit.
auto=(config.ini --model.d_model=64 --model.heads=8 --model.kv_heads=8 --moe.experts=8 --moe.d_ff=256 --train.global_batch=16
  --train.steps=4 --parallel.tp=auto --parallel.ep=auto --parallel.etp=auto)
expect_ok ranks 2 train "${auto[@]}" --run.dir=auto
cp -r auto again
rm -r again/checkpoints/step-00000004
expect_ok ranks 2 train "${auto[@]}" --run.dir=again --run.resume=true
expect_ok "$switchyard" diff auto again
# A dry run for more ranks than it has finds the layout of that many ranks on one machine.
layout() { sed -nE 's/^auto +//p' "$work/.out"; }
expect_ok ranks 4 train "${auto[@]}" --run.dir=none --dry-run
of_four=$(layout)
expect_ok "$switchyard" train "${auto[@]}" --run.dir=none --dry-run --ranks 4
[[ -n $of_four && $(layout) == "$of_four" ]] || die "the dry run chose $(layout) instead of $of_four"
