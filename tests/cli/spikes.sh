#!/usr/bin/env bash
# Tests numbers that go wrong: skipped steps (train.spike_sigma), run.check_every and
# run.replay_step.
source "$2/tests/cli/lib/lib.sh"

make_data 100
small_config <<'INI'
[train]
steps = 40
global_batch = 4
micro_batch = 2
warmup = 2
lr = 0.002
spike_sigma = 0.5
max_skipped = 20
[run]
dir = run
backend = cpu
checkpoint_every = 8
keep = 0
check_every = 4
INI
# step, loss and number of skipped steps of each line
numbers() { sed -E 's/.*"step":([0-9]+),.*"loss":([^,]+),.*"grad_norm":([^,]+),.*"skipped_steps":([0-9]+).*/\1 \2 \3 \4/' "$1/metrics.jsonl"; }

# A run that is resumed skips the steps of an undisturbed one.
expect_ok "$switchyard" train config.ini --quiet --log.csv=true
skipped=$(grep -c 'the weights stay (train.spike_sigma); skipped steps: ' <<<"$err")
[[ $skipped -gt 0 && $(numbers run | tail -n 1) == *" $skipped" ]] || die "$skipped warnings, and $(numbers run | tail -n 1)"
[[ $(head -n 1 run/metrics.csv) == *,skipped_steps,* ]] || die "no column of skipped steps"
expect_ok "$switchyard" train config.ini --quiet --run.dir=again --train.steps=24 --train.schedule=constant
expect_ok "$switchyard" train config.ini --quiet --run.dir=whole --train.schedule=constant
expect_ok "$switchyard" train config.ini --quiet --run.dir=again --train.schedule=constant --run.resume=true
[[ $(numbers again) == "$(numbers whole)" ]] || die "the resumed run has other numbers"
expect_ok "$switchyard" diff whole again
# A run on two ranks skips the same ones.
expect_ok ranks 2 train config.ini --quiet --run.dir=two --parallel.ep=2
[[ $(numbers two | cut -d' ' -f1,4) == "$(numbers run | cut -d' ' -f1,4)" ]] || die "two ranks skip other steps"

# The newest checkpoint before each skipped step stays, also if the run was resumed since.
before=$(numbers run | awk '$4 > n { n = $4; at = $1 - 1; at -= at % 8; if (at > 0) printf "step-%08d\n", at }' | uniq)
[[ $(wc -l <<<"$before") -gt 1 ]] || die "no checkpoints before skipped steps: $before"
expect_ok "$switchyard" train config.ini --quiet --run.dir=kept --run.keep=1
[[ $(ls kept/checkpoints) == "$before"$'\n'step-00000040 ]] || die "kept: $(ls kept/checkpoints)"
expect_ok "$switchyard" train config.ini --quiet --run.dir=kept --run.keep=1 --run.resume=true --train.steps=48 --train.spike_sigma=0
[[ $(ls kept/checkpoints) == "$before"$'\n'step-00000048 ]] || die "kept after a resumption: $(ls kept/checkpoints)"

# Too many skipped steps in a row end the run, and the error names the parameter.
expect_exit 1 "$switchyard" train config.ini --quiet --run.dir=worse --train.lr=1e15 --train.max_skipped=3 --train.clip=0
[[ $err == *"4 steps in a row were skipped, which is more than train.max_skipped = 3: the gradient norm is "*"parameter "* ]] ||
  die "no word of the parameter"

# A step is repeated bit for bit, from the newest checkpoint before it, and nothing else changes.
cp -r run before
expect_ok "$switchyard" train run/config.ini --run.replay_step=21
expect_output "repeats   steps 17 to 20"
expect_output "replayed  step 21 from run/checkpoints/step-00000016"
expect_output ": equal to metrics.jsonl"
expect_file run/replay/step-00000021/step.json run/replay/step-00000021/rank-0000.json
grep -q '"name": "layers.1.moe.experts.up.weight"' run/replay/step-00000021/step.json || die "no norm of a parameter"
rm -r run/replay
diff -r run before || die "the repetition changed the run"
# A damaged checkpoint is passed over.
shard=run/checkpoints/step-00000016/shard-00000.h5
cp "$shard" shard
printf x | dd of="$shard" bs=1 seek=$(($(stat -c %s "$shard") / 2)) conv=notrunc status=none
expect_ok ranks 2 train run/config.ini --run.replay_step=21
expect_output "replayed  step 21 from run/checkpoints/step-00000008"
[[ $err == *"checkpoint run/checkpoints/step-00000016 is passed over: "* ]] || die "no word of the damaged checkpoint: $err"
cp shard "$shard"
rm -r run/replay
# A request to stop ends the repetition.
"$switchyard" train config.ini --run.dir=run --train.spike_sigma=0 --train.steps=1000000 --run.replay_step=900000 >out 2>err &
repetition=$!
for _ in $(seq 300); do ! grep -q "^repeats" out || break; sleep 0.1; done
kill -USR1 "$repetition"
code=0
wait "$repetition" || code=$?
[[ $code -eq 3 ]] && grep -qE "^stopped before step [0-9]+ as SIGUSR1 asked: nothing was written$" out || die "exit code $code: $(cat out err)"
diff -r run before || die "a repetition that was stopped changed the run"
expect_ok ranks 2 train run/config.ini --quiet --run.replay_step=3 --parallel.ep=2
expect_file run/replay/step-00000003/rank-0001.json
grep -q '"start": "the initial weights"' run/replay/step-00000003/step.json || die "not from the initial weights"
expect_error "holds no run" "$switchyard" train config.ini --run.dir=none --run.replay_step=3
expect_no_file none

# The step that ended a run is repeated, too.
bad=$(($(wc -l <worse/metrics.jsonl) + 1))
expect_ok "$switchyard" train config.ini --run.dir=worse --train.lr=1e15 --train.max_skipped=3 --train.clip=0 --run.replay_step=$bad
expect_output "4 steps in a row were skipped"
