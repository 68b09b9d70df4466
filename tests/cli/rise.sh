#!/usr/bin/env bash
# Tests diverging trainings: the newest checkpoint before the loss rose stays, for any run.keep,
# also after resumes.
source "$2/tests/cli/lib/lib.sh"

make_data 100
small_config <<'INI'
[train]
steps = 24
global_batch = 4
micro_batch = 2
warmup = 1
lr = 0.003
[run]
dir = run
backend = cpu
checkpoint_every = 2
keep = 2
INI
step() { printf 'run/checkpoints/step-%08d' "$1"; }
saved() { (cd run/checkpoints && echo step-*); }
expect_ok "$switchyard" train config.ini --quiet
[[ $(saved) == "step-00000022 step-00000024" ]] || die "$(saved) is there"

# The update of step 25 is the first one that is too large. The loss of step 25 is computed before
# it.
expect_ok ranks 2 train config.ini --quiet --run.resume=true --train.steps=28 --train.lr=30
expect_file "$(step 24)/manifest.json"
[[ $(saved) == "step-00000024 step-00000026 step-00000028" ]] || die "$(saved) is there"
[[ $(grep -c 'the loss has risen since step 2[67] .*step-00000024 is the newest .*--run.resume_step=24 ' "$work/.err") -eq 1 ]] ||
  die "not one warning that names the checkpoint"
expect_ok "$switchyard" train config.ini --quiet --run.resume=true --train.steps=32 --train.lr=30
[[ $(saved) == "step-00000024 step-00000030 step-00000032" ]] || die "after a resume $(saved) is there"
cp -r run again

# If the losses are missing, the oldest checkpoint stays.
rm run/metrics.jsonl
expect_ok "$switchyard" train config.ini --quiet --run.resume=true --train.steps=36 --train.lr=30
[[ $(saved) == "step-00000024 step-00000034 step-00000036" ]] || die "without metrics.jsonl $(saved) is there"
[[ $err == *"metrics.jsonl lacks steps 1 to 32: "* ]] || die "no word of the missing steps"
[[ $(grep -c 'step-00000024, the oldest checkpoint, is not deleted' "$work/.err") -eq 1 ]] || die "not one warning of the oldest"

# Values that are not finite end the run, and the error names the checkpoint to go back to.
cp -r again worse
expect_exit 1 "$switchyard" train config.ini --quiet --run.dir=worse --run.resume=true --train.steps=50 --train.lr=1e15
[[ $err == *" finite"*"worse/checkpoints/step-00000024 is the newest before the loss rose: "*"--run.resume_step=24"* ]] ||
  die "no word of the checkpoint"

# After going back, the run continues normally, and checkpoints from after the rise are deleted.
rm -r run
mv again run
expect_ok "$switchyard" train config.ini --quiet --run.resume=true --run.resume_step=24 --train.steps=26
[[ $err != *"the loss has risen"* ]] || die "a rise after going back"
[[ $(saved) == "step-00000024 step-00000026 "* ]] || die "after going back $(saved) is there"
