#!/usr/bin/env bash
# Tests switchyard sweep: trained runs, reports, resumption and errors.
source "$2/tests/cli/lib/lib.sh"

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 6
global_batch = 4
micro_batch = 2
warmup = 2
validate_every = 3
[run]
backend = cpu
checkpoint_every = 0
INI
final_loss() { sed -nE 's/.*"step":6,.*"validation":\{"loss":([0-9.]+).*/\1/p' "$1/metrics.jsonl"; }

# Each run of the grid equals the run of `train`. The base is trained once, even if it is listed
# twice.
expect_ok "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --vary moe.top_k:moe.d_ff=2:32,1:64 --output out \
  --train.lr=0.01
expect_output "model.norm=none, moe.top_k=1, moe.d_ff=64"
cp "$work/.out" before
[[ $(ls -d out/config/*/ | wc -l) -eq 4 && -d out/config/base ]] || die "not four runs: $(ls out/config)"
expect_ok "$switchyard" train config.ini --run.dir=alone --train.lr=0.01 --model.norm=none --moe.top_k=1 --moe.d_ff=64
expect_ok "$switchyard" diff alone "out/config/model.norm=none,moe.top_k=1,moe.d_ff=64"
loss=$(final_loss alone)
grep -qF "$(printf '%.4f' "$loss")" out/config.md || die "config.md has no loss $loss"
grep -qF "\"loss\": $loss" out/config.json || die "config.json has no loss $loss"
[[ ! -e out/config.svg ]] || grep -q '</svg>' out/config.svg || die "no whole picture"

# A second call trains nothing and prints the same. A missing run is trained.
expect_ok "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --vary moe.top_k:moe.d_ff=2:32,1:64 --output out \
  --train.lr=0.01
[[ -z $err ]] || die "something was trained again"
diff before "$work/.out"
rm -r out/config/base
expect_ok "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --vary moe.top_k:moe.d_ff=2:32,1:64 --output out \
  --train.lr=0.01
[[ $err == *"run 1 of 1: config: base"* ]] || die "not one run"

# An incomplete last line is not a step. The run counts as incomplete, with a message.
cp -r out torn
truncate -s -1 torn/config/base/metrics.jsonl
expect_ok "$switchyard" sweep config.ini --vary model.norm=rmsnorm --output torn --train.lr=0.01
[[ $err == *"run 1 of 1: config: base"*"base/metrics.jsonl lacks step 6: "* ]] || die "no word of the torn line"

# Several seeds, several ranks, and files that define sweeps.
cat >norms.ini <<'INI'
[sweep]
base = config.ini
vary = model.norm=rmsnorm,layernorm
INI
cat >places.ini <<'INI'
[sweep]
base = config.ini
vary = model.norm_position=pre,post
INI
expect_ok "$switchyard" sweep norms.ini places.ini --seeds 1,2 --ranks 2 --output files --json
[[ $(ls -d files/config/*/ | wc -l) -eq 6 ]] || die "not six runs: $(ls files/config)"
grep -q '"deviation": 0\.' <<<"$out" || die "no deviation over seeds"
grep -q '"format": "switchyard-sweep"' <<<"$out" || die "no format"
# Each run has its own folder and seed.
runs=$(grep -E '"(folder|seed)": ' <<<"$out" | tr -d ' \n')
[[ $runs == *'"folder":"files/config/'*'","seed":1,"folder":"'*'","seed":2,'* ]] || die "no runs: $runs"

# Warnings of the runs are footnotes of the table. If a sweep has no curve, a message says why there
# is no picture.
expect_ok "$switchyard" sweep config.ini --vary moe.renormalize=auto,true --moe.top_k=1 --train.validate_every=6 --output doubtful
expect_output "moe.renormalize=true [1]"
expect_output "warning [1] moe.top_k = 1 with moe.renormalize = true"
[[ $out != *"moe.renormalize=auto ["* ]] || die "a warning of another run"
grep -q '^- \[1\] moe.top_k = 1' doubtful/config.md || die "no footnote in Markdown"
[[ $(grep -c 'moe.top_k = 1 with' doubtful/config.json) -eq 1 ]] || die "not one warning in JSON"
[[ $err == *"no picture of config: "*"lower train.validate_every"* ]] || die "no word of the picture"
expect_no_file doubtful/config.svg

# Parameters are those of each run's vocabulary. A run that has reached train.target_loss is
# complete, and is not started again.
early() { "$switchyard" sweep config.ini --vary model.vocab=300,600 --train.target_loss=100 --output early; }
expect_ok early
[[ $err != *lacks* ]] || die "a run that has reached its target counts as incomplete: $err"
[[ $(grep '"parameters": ' early/config.json | sort -u | wc -l) -eq 2 ]] || die "not two numbers of parameters: $(grep parameters early/config.json)"
expect_ok early
[[ $err != *"run 1 of"* ]] || die "something was trained again: $err"

# A failed run is reported, and the others are trained.
expect_exit 1 "$switchyard" sweep config.ini --vary train.lr=0.001,1e15 --output failing
expect_output "train.lr=1e15 failed: "
[[ $(grep -c '"folder": ' failing/config.json) -eq 2 && $(grep -c '"steps": null' failing/config.json) -eq 1 ]] ||
  die "the run that failed is not in JSON"
expect_output "train.lr=0.001"

# On a signal, the sweep stops its run, which the next call resumes.
"$switchyard" sweep config.ini --vary train.lr=0.001,0.002 --output stopped --train.steps=100000 >stop.out 2>&1 &
pid=$!
for _ in $(seq 600); do [[ -s stopped/config/train.lr=0.001/metrics.jsonl || -s stopped/config/base/metrics.jsonl ]] && break; sleep 0.1; done
kill -TERM "$pid" 2>/dev/null || true
code=0; wait "$pid" || code=$?
[[ $code -eq 3 || $code -eq 143 ]] || die "exit code $code: $(cat stop.out)"

# run.max_hours ends a run before its last step. The exit code is 3, and the same command continues
# the run. RUN.log has the output of both starts, and warnings of the first start stay.
limited=("$switchyard" sweep config.ini --vary moe.renormalize=true --moe.top_k=1 --train.steps=300 --train.validate_every=300 --output limited)
expect_exit 3 "${limited[@]}" --run.max_hours=0.00001
expect_output "moe.renormalize=true stopped: after "
expect_output " of 300 steps, with a checkpoint: the same command continues it"
grep -q '"stopped": 1' limited/config.json || die "the stopped run is not in JSON"
sed -i 's/moe.top_k = 1 with/of the first start/' "limited/config/moe.renormalize=true.log"
expect_ok "${limited[@]}"
expect_output "] moe.top_k = 1 with"
expect_output "warning [1] of the first start"

# A run on another number of ranks than --ranks fails. A launcher that cannot follow --ranks is
# refused.
expect_exit 1 "$switchyard" sweep config.ini --vary model.norm=none --output fixed --launcher "$root/launch/mpirun.sh 2"
expect_output "model.norm=none failed: it ran on 2 ranks instead of 1: write {ranks} in --launcher"
expect_error "cannot start 2 ranks: write {ranks} in place of the number of ranks" \
  "$switchyard" sweep config.ini --vary model.norm=none --output x --ranks 2 --launcher "$root/launch/mpirun.sh 1"
# Runs on other ranks, in another layout or of other data are not reused.
expect_error "holds a run of other settings (ranks: 1 here, 2 there)" \
  "$switchyard" sweep norms.ini --seeds 1,2 --output files
expect_error "holds a run of other settings (parallel.ep: 2 here, 1 there)" \
  "$switchyard" sweep norms.ini --seeds 1,2 --ranks 2 --output files --parallel.ep=2
cp -r data first_data
make_text more 40
expect_ok "$switchyard" prepare --domain english=more --tokenizer bytes --output data --overwrite --valid-fraction 0.2
expect_error "holds a run of other settings (digest of data.path: " \
  "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --output out --train.lr=0.01
rm -r data && mv first_data data

expect_error "train.seed varies, and --seeds gives seeds, too" \
  "$switchyard" sweep config.ini --vary train.seed=1,2 --seeds 3,4 --output x
expect_error "--seeds 1,2,1: 1 is there twice" "$switchyard" sweep config.ini --vary model.norm=none --seeds 1,2,1 --output x
expect_error "validation losses and training losses cannot be compared" \
  "$switchyard" sweep config.ini --vary train.validate_every=0,3 --output x
expect_error "nothing varies" "$switchyard" sweep config.ini --output x
expect_error "unknown key 'moe.topk': did you mean 'moe.top_k'?" "$switchyard" sweep config.ini --vary moe.topk=1,2 --output x
expect_error "holds a run of other settings (train.lr:" "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --output out
expect_error "holds a run of other settings (model.init_std:" \
  "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --output out --train.lr=0.01 --model.init_std=0.1
mkdir other
sed 's/^layers = .*/layers = 1/' config.ini >other/config.ini
expect_error "two sweeps have the name config" "$switchyard" sweep config.ini other/config.ini --vary model.norm=none --output x
cp -r data d_a
mkdir d
cp -r data d/a
expect_error "would hold runs of two configurations" "$switchyard" sweep config.ini --vary data.path=d/a,d_a --output x
expect_error "call it without mpirun" ranks 2 sweep config.ini --vary model.norm=none --output x
expect_error "no number" "$switchyard" sweep config.ini --vary model.norm=none --seeds 1,b --output x
[[ ! -e x ]] || die "something was written"
