#!/usr/bin/env bash
# Tests run.keep_best, run.keep_every and train.patience: which checkpoints stay, and when training
# stops. Covers resumed runs and several ranks.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 16
global_batch = 4
micro_batch = 2
warmup = 1
lr = 0.01
validate_every = 2
validate_windows = 4
[run]
backend = cpu
checkpoint_every = 8
keep = 1
INI
train() { "$switchyard" train config.ini --quiet "$@"; }
saved() { (cd "$1/checkpoints" && echo step-* | sed 's/step-0*\([0-9]\)/\1/g'); }
# Prints the N steps with the lowest validation losses, in ascending order. If losses are equal, the
# earliest step counts.
lowest() {  # RUN N
  sed -nE 's/^\{"step":([0-9]+),.*"validation":\{"loss":([^,]*),.*/\2 \1/p' "$1/metrics.jsonl" |
    sort -g -k1,1 -k2,2n | head -n "$2" | cut -d' ' -f2 | sort -n
}
keeps_only() {  # RUN N NEWEST
  [[ $(saved "$1") == "$( (lowest "$1" "$2"; echo "$3") | sort -nu | tr '\n' ' ' | sed 's/ $//')" ]] ||
    die "$(saved "$1") is there, and the best are $(lowest "$1" "$2")"
}

# The best checkpoints stay, although their steps are not multiples of checkpoint_every. The large
# learning rate makes losses rise and fall.
expect_ok ranks 2 train config.ini --quiet --run.dir=best --run.keep_best=2 --train.lr=0.3
keeps_only best 2 16
# A run in two halves, the second on another layout, keeps the same checkpoints.
expect_ok train --run.dir=halves --run.keep_best=2 --train.lr=0.3 --train.min_lr=0.3 --train.steps=8
cp -r halves early
expect_ok ranks 2 train config.ini --quiet --run.dir=halves --run.keep_best=2 --train.lr=0.3 --train.min_lr=0.3 --run.resume=true
keeps_only halves 2 16
# The resumed run reads the best losses from its checkpoint, not from metrics.jsonl.
sed -i 's/"validation":.*/"lost":1}/' early/metrics.jsonl
before=$(saved early)
expect_ok train --run.dir=early --run.keep_best=2 --train.lr=30 --train.min_lr=30 --run.resume=true --train.steps=9
for step in ${before% *}; do [[ " $(saved early) " == *" $step "* ]] || die "step $step of $before is gone: $(saved early)"; done

# The best checkpoint stays until a better one is on the disk. Here the save of step 3 is still in
# flight when step 4 becomes the best, and the process is killed before step 4 is renamed.
cat >slow.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int fsync(int file) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "step-00000003.tmp/shard")) sleep(3);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
int rename(const char* from, const char* to) {
  if (strstr(to, "step-00000004")) raise(SIGKILL);
  return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
}
C
cc -shared -fPIC -o slow.so slow.c -ldl
expect_exit 137 env LD_PRELOAD="$PWD/slow.so" "$switchyard" train config.ini --quiet --run.dir=killed --run.keep_best=1 \
  --run.checkpoint_every=3 --train.steps=6
mkdir earlier && head -n 4 killed/metrics.jsonl >earlier/metrics.jsonl
[[ $(lowest earlier 1) == 4 ]] || die "step $(lowest earlier 1) has the lowest loss"
[[ $(saved killed) == "2 3 4.tmp" ]] || die "$(saved killed) is there after a kill"
expect_ok train --run.dir=killed --run.keep_best=1 --run.resume=true --train.steps=6 --run.checkpoint_every=3
keeps_only killed 1 6

# With a learning rate of 0 no loss is lower than the first. The first checkpoint stays, and so do
# multiples of keep_every.
still=(--train.lr=0 --train.min_lr=0)
expect_ok train --run.dir=still "${still[@]}" --run.keep_best=1 --run.checkpoint_every=3 --run.keep_every=6 --train.steps=15
[[ $(saved still) == "2 6 12 15" ]] || die "$(saved still) is there"
[[ -z $err ]] || die "a warning"
expect_ok train --run.dir=warned "${still[@]}" --run.keep_every=5 --train.steps=1
[[ $err == *"run.keep_every = 5 is not a multiple of run.checkpoint_every = 8"* ]] || die "no warning of keep_every"

# Training stops after three validations without a lower loss than that of step 2. This holds on any
# number of ranks; there is a checkpoint, and the exit code is 0.
patient=("${still[@]}" --train.patience=3)
message="stopped early at step 8 of 16: 3 validations since step 2 have not lowered the loss of "
for n in 1 2; do
  expect_ok ranks $n train config.ini --quiet --run.dir=stop$n "${patient[@]}" --run.checkpoint_every=0 --run.keep_best=1
  expect_output "$message"
  expect_output "(train.patience = 3); stop$n/checkpoints/step-00000002 is the best checkpoint. Raise train.patience to go on"
  [[ $(saved stop$n) == "2 8" && $(wc -l <stop$n/metrics.jsonl) -eq 8 ]] || die "$(saved stop$n) after an early stop"
done
# Resumed from an earlier checkpoint, the run stops at the same step. Resumed after its end, it
# prints the same and trains nothing.
expect_ok train --run.dir=again "${patient[@]}" --run.checkpoint_every=4 --run.keep=0 --run.keep_best=1
[[ $(saved again) == "2 4 8" ]] || die "$(saved again) is there"
for more in --run.resume_step=4 --run.checkpoint_every=4; do
  expect_ok ranks 2 train config.ini --quiet --run.dir=again "${patient[@]}" --run.resume=true --run.keep_best=1 "$more"
  expect_output "$message"
  rm -rf again/checkpoints/*.abandoned
  [[ $(saved again) == "2 8" && $(wc -l <again/metrics.jsonl) -eq 8 ]] || die "$(saved again) after a resume"
done
# With more patience, training continues.
expect_ok train --run.dir=again "${still[@]}" --train.patience=4 --run.resume=true
expect_output "stopped early at step 10 of 16: 4 validations since step 2"
# Training does not stop while the loss falls.
expect_ok train --run.dir=falls --train.patience=1 --train.steps=4
[[ $out != *"stopped early"* && $(saved falls) == 4 ]] || die "stopped in spite of a falling loss"

expect_error "train.patience = 2 follows the validation loss: set train.validate_every" train --train.patience=2 \
  --train.validate_every=0 --run.dir=none
expect_error "run.keep_best = 1 follows the validation loss" train --run.keep_best=1 --train.validate_every=0 --run.dir=none
expect_error "run.keep_best = 1001: must be from 0 to 1000" train --run.keep_best=1001 --run.dir=none
