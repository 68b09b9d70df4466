#!/usr/bin/env bash
# Tests train.batch_ramp, data.blend_schedule, train.rewarmup, train.target_loss, the decay of wsd,
# model.mup and log.mllog: resumed runs, other layouts, and what the program prints.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 12
global_batch = 4
micro_batch = 2
batch_ramp = 4:8, 9:12
warmup = 1
schedule = wsd
decay_steps = 6
decay_shape = 1-sqrt
decay_embeddings = false
lr = 0.01
[run]
backend = cpu
checkpoint_every = 3
keep = 0
INI
cat >>config.ini <<'INI'
[log]
mllog = true
INI
train() { "$switchyard" train config.ini --quiet "$@"; }
# Prints the values of a field of metrics.jsonl.
field() { sed -E "s/.*\"$2\":([^,}]*).*/\1/" "$1/metrics.jsonl"; }
same() {  # A B
  for name in loss lr tokens; do
    [[ $(field "$1" $name) == "$(field "$2" $name)" ]] || die "$name of $1 and $2 differ"
  done
}

# A run in three parts equals one in a single part, also where the batch has changed before the
# resumption. Two ranks read the same samples.
mup=(--model.mup=true --model.mup_base_width=8)
for kind in plain mup; do
  more=()
  [[ $kind == plain ]] || more=("${mup[@]}")
  expect_ok train --run.dir=whole-$kind "${more[@]}"
  for step in 6 9; do
    cp -r whole-$kind part-$kind-$step
    expect_ok train --run.dir=part-$kind-$step "${more[@]}" --run.resume=true --run.resume_step=$step
    same whole-$kind part-$kind-$step
    expect_ok "$switchyard" diff whole-$kind part-$kind-$step
  done
done
[[ $(field whole-plain tokens | tr '\n' ' ') == "64 128 192 320 448 576 704 832 1024 1216 1408 1600 " ]] ||
  die "tokens are $(field whole-plain tokens)"
expect_ok ranks 2 train config.ini --quiet --run.dir=two
[[ $(field two tokens) == "$(field whole-plain tokens)" ]] || die "two ranks have other tokens"
paste <(field two loss) <(field whole-plain loss) | awk '{ if ($1 - $2 > 1e-4 || $2 - $1 > 1e-4) exit 1 }' ||
  die "two ranks have other losses"
expect_error "a batch of train.batch_ramp = 6 is not divisible by 2 data-parallel ranks" ranks 2 train config.ini \
  --quiet --run.dir=none --train.batch_ramp=3:6
expect_ok "$switchyard" train config.ini --dry-run --run.dir=none
expect_output "a step takes 4, from step 4 on 8, from step 9 on 12"

# The learning rate rises again after a resumption with another train.rewarmup. A resumption within
# the rise goes on with it.
rise=(--train.rewarmup=5 --train.schedule=constant --train.decay_steps=0 --train.decay_shape=linear)
expect_ok train --run.dir=risen "${rise[@]:1}"
expect_ok train --run.dir=risen "${rise[@]}" --run.resume=true --run.resume_step=6
[[ $(field risen lr | tail -6 | tr '\n' ' ') == "0.002 0.004 0.006 0.008 0.01 0.01 " ]] ||
  die "the learning rates are $(field risen lr)"
cp -r risen again
expect_ok train --run.dir=again "${rise[@]}" --run.resume=true --run.resume_step=9
same risen again
expect_ok "$switchyard" diff risen again

# Training stops at the target, with a checkpoint. Resumed, it stops at once; with a lower target it
# goes on.
target=(--train.validate_every=2 --train.validate_windows=4 --run.checkpoint_every=0)
expect_ok train --run.dir=free "${target[@]}"
goal=$(sed -nE '/^\{"step":6,/s/.*"validation":\{"loss":([^,]*),.*/\1/p' free/metrics.jsonl)
goal=$(awk "BEGIN { print $goal + 0.001 }")
for n in 1 2; do
  expect_ok ranks $n train config.ini --quiet --run.dir=target$n "${target[@]}" --train.target_loss="$goal"
  expect_output "reached the target at step 6 of 12: the validation loss of step 6, "
  [[ $(wc -l <target$n/metrics.jsonl) -eq 6 ]] || die "trained after the target"
  [[ $(basename target$n/checkpoints/step-*) == step-00000006 ]] || die "no checkpoint of step 6"
done
expect_ok train --run.dir=target1 "${target[@]}" --train.target_loss="$goal" --run.resume=true
expect_output "Lower train.target_loss to go on"
[[ $(wc -l <target1/metrics.jsonl) -eq 6 ]] || die "trained after the target"
grep -q '"key":"run_stop".*"status":"success"' target1/mllog.txt || die "no run_stop in the log of MLPerf"
expect_ok "$switchyard" runs .
[[ $out =~ target1[^\n]*stopped\ early ]] || die "target1 has not stopped early"
expect_ok train --run.dir=target1 "${target[@]}" --train.target_loss=0.1 --run.resume=true
[[ $(wc -l <target1/metrics.jsonl) -eq 12 ]] || die "a lower target does not let it go on"
grep -q '"key":"run_stop".*"status":"aborted"' target1/mllog.txt || die "the target was not reached"
expect_error "train.target_loss = 3 follows the validation loss" train --train.target_loss=3 --run.dir=none

# The weights of domains change at their steps. A run in two parts equals one in a single part: at a
# change, within a blend, and where the resumption brings the later change. Domain few repeats.
make_text few 6
for file in few/*; do sed -i 's/token/wagon/' "$file"; done
expect_ok "$switchyard" prepare --domain english=text --domain few=few --tokenizer bytes --output blend
blend=(--data.path=blend --run.checkpoint_every=1 --run.log_every=1 --train.batch_ramp=4:8)
changes=(--data.blend_schedule="4:few=1, 8:english=1 few=1")
expect_ok "$switchyard" train config.ini --run.dir=blended "${blend[@]}" "${changes[@]}"
[[ $out == *"epochs    english "*", few "*" until step 12"* ]] || die "no epochs: $out"
[[ $err == *"domain few will be read "*" times in this run"* ]] || die "no warning of few: $err"
[[ $(grep -c "all samples of domain few have been read once" <<<"$err") -eq 1 ]] || die "not one warning: $err"
[[ $err != *"domain english"* ]] || die "english does not repeat: $err"
for documents in join mask pack; do
  run=blend-$documents
  expect_ok train --run.dir=$run "${blend[@]}" "${changes[@]}" --data.documents=$documents
  for step in 3 5; do
    cp -r $run $run-$step
    expect_ok train --run.dir=$run-$step "${blend[@]}" "${changes[@]}" --data.documents=$documents \
      --run.resume=true --run.resume_step=$step
    same $run $run-$step
    [[ $(field $run few) == "$(field $run-$step few)" ]] || die "other epochs: $(field $run-$step few)"
  done
done
expect_ok train --run.dir=later "${blend[@]}" --data.blend_schedule="4:few=1" --train.steps=6
expect_ok train --run.dir=later "${blend[@]}" "${changes[@]}" --run.resume=true
[[ $err != *"may be seen twice"* ]] || die "a later change reorders no samples: $err"
expect_ok train --run.dir=later "${blend[@]}" --data.blend_schedule="4:english=1" --run.resume=true --run.resume_step=7
[[ $err == *"the blends before step 8 had other samples"* ]] || die "no warning: $err"
expect_error "data.blend_schedule names domain web, and blend has the domains english, few" train --run.dir=none \
  "${blend[@]}" --data.blend_schedule="4:web=1"
expect_ok "$switchyard" train config.ini --dry-run --run.dir=none "${blend[@]}" "${changes[@]}"
[[ $out == *"until step 12"* && $err == *"domain few will be read "* ]] || die "no epochs: $out $err"

# The compliance checker of mlperf-logging accepts the log, if it is installed.

python=python3
if "$python" -c 'import mlperf_logging' 2>/dev/null; then
  expect_ok train --run.dir=mlperf "${target[@]}" --train.target_loss="$goal"
  sed -E 's/("key":"max_sequence_length","value":)16/\18192/; s/("key":"eval_accuracy","value":)[4-9]/\13/' \
    mlperf/mllog.txt >log
  expect_ok "$python" -m mlperf_logging.compliance_checker --usage training --ruleset 6.0.0 log
fi
