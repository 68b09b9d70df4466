#!/usr/bin/env bash
# Tests training as users run it: on one or several ranks, stopped and resumed, and with bad input.
source "$2/tests/cli/lib/lib.sh"

make_text text 200
for i in $(seq 1 200); do echo "das Gleis $i ist frei, die Weiche $((i % 9)) liegt nach rechts" >"german-$i"; done
mkdir german && mv german-* german
expect_ok "$switchyard" prepare --domain english=text --domain german=german --tokenizer bytes --valid-fraction 0.2 --output data
cat >config.ini <<'INI'
[model]
layers = 2
d_model = 32
heads = 4
kv_heads = 2
seq_len = 24
[moe]
experts = 4
top_k = 2
d_ff = 24
bias_update_rate = 0.01
[train]
steps = 13
global_batch = 8
micro_batch = 2
lr = 5e-3
warmup = 3
[data]
path = data
[run]
backend = cpu
log_every = 5
checkpoint_every = 6
INI
losses() { sed -E 's/"(step_seconds|save_seconds|tokens_per_second|tflops_per_second_per_rank|time)":[^,}]*,?//g; s/,"validation":.*\}{4}$/}/' "$1/metrics.jsonl"; }

# On one rank, without mpirun and MPI.
expect_ok "$switchyard" train config.ini --run.dir=whole
expect_output "step 13/13"
expect_file whole/config.ini whole/metrics.jsonl whole/checkpoints/step-00000013/manifest.json
[[ $(wc -l <whole/metrics.jsonl) -eq 13 ]] || die "not 13 steps in metrics.jsonl"
grep -q '"experts":{"routed":\[\[' <(sed -n 5p whole/metrics.jsonl) || die "no expert counts at step 5"
grep -qE '^step  5/13 .* elapsed  lr 0\.[0-9]+  gradient norm [0-9.]+$' .out || die "no time, rate and norm in the line of a step"
expect_output "saved     whole/checkpoints/step-00000006 in "
sed -nE 's/.*"time":"([^"]*)".*/\1/p' whole/metrics.jsonl >times.txt
[[ $(grep -cE '^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[012][0-9]:[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z$' times.txt) -eq 13 ]] || die "not 13 times"
sort -c times.txt || die "the times of the steps are not in order"

# At the end, the program prints the result and the next commands. These work.
grep -q "^done      steps 1 to 13 in " .out || die "no word of the end"
grep -qx "result    whole/checkpoints/step-00000013" .out || die "no word of the last checkpoint"
cp .out whole.out
sed -nE 's/^(next     |         ) //p' .out >next
[[ $(wc -l <next) -eq 3 ]] || die "not three commands: $(cat next)"
while read -r command; do expect_ok bash -c "$command"; done <next

# The log has the lines of the console, also of a resumed run, and all warnings.
diff <(tail -n +2 whole/train.log) whole.out >&2 || die "the log has other lines than the console"
[[ $(head -n 1 whole/train.log) == "== 20"*"Z switchyard "*" on $(uname -n), layout dp 1 "*": $switchyard train config.ini --run.dir=whole" ]] ||
  die "another first line of the log: $(head -n 1 whole/train.log)"
cp -r whole logged
rm -r logged/checkpoints/step-00000013
expect_ok "$switchyard" train config.ini --run.dir=logged --run.resume=true --train.warmup=14
says_log() { grep -q "$1" logged/train.log || die "no '$1' in the log"; }
says_log "^switchyard: warning: train.warmup = 14"
says_log "^resumed from "
[[ $(grep -c "^== " logged/train.log) -eq 2 && $(grep -c "^step  *13/13" logged/train.log) -eq 2 ]] || die "not two starts in the log"
grep -q "^done      steps 13 to 13 in .*, and .* in the steps of all starts$" .out || die "no time of all starts"
expect_exit 1 "$switchyard" train config.ini --run.dir=logged --run.resume=true --train.steps=14 --train.eps=0
says_log "^switchyard: .*finite"

# Validation does not change the training. Its last loss equals that of `evaluate`, on any layout.
validation() { sed -nE 's/.*"validation":\{"loss":([0-9]+\.[0-9]{5}).*/\1/p' "$1/metrics.jsonl" | tail -1; }
validate=(--train.validate_every=5 --train.validate_windows=3)
expect_ok "$switchyard" train config.ini --run.dir=validated "${validate[@]}"
for line in "step  5/13  validation loss" "  english " "  german " "step 13/13  validation loss"; do expect_output "$line"; done
diff <(losses whole) <(losses validated) >&2 || die "validation changes what is trained"
[[ $(grep -c validation validated/metrics.jsonl) -eq 3 ]] || die "not 3 validations in metrics.jsonl"
best=$(sed -nE 's/.*"step":([0-9]+),.*"validation":\{"loss":([0-9.]+).*/\2 \1/p' validated/metrics.jsonl | sort -g | head -n 1)
grep -qx "best      validation loss $(printf %.4f "${best% *}") at step ${best#* }" .out || die "no word of the best validation"
expect_ok "$switchyard" evaluate validated --max-windows 3 --json
grep -q "\"loss\": $(validation validated)" <<<"$out" || die "evaluate finds another loss than $(validation validated)"
expect_ok ranks 4 train config.ini --run.dir=validated-4 "${validate[@]}" --parallel.tp=2 --parallel.ep=2
[[ $(validation validated-4) == "$(validation validated)" ]] || die "the validation loss depends on the layout"
expect_ok "$switchyard" prepare --domain english=text --tokenizer bytes --valid-fraction 0 --output no-text
expect_error "no-text has no validation text" \
  "$switchyard" train config.ini --run.dir=never --data.path=no-text "${validate[@]}"

# A run that is resumed from any checkpoint has bitwise the same losses and last checkpoint.
for stop in 1 3 9; do
  rm -rf part uncut
  expect_ok "$switchyard" train config.ini --run.dir=uncut --run.checkpoint_every=$stop --run.keep=0
  cp -r uncut part
  for later in part/checkpoints/*; do [[ $later == *$(printf %08d "$stop") ]] || rm -r "$later"; done
  expect_ok "$switchyard" train config.ini --run.dir=part --run.checkpoint_every=$stop --run.resume=true
  expect_output "(step $stop)"
  expect_ok "$switchyard" diff uncut part
  diff <(losses uncut) <(losses part) >&2 || die "the losses of the resumed run differ"
  diff <(losses whole) <(losses part) >&2 || die "the losses depend on when checkpoints are written"
done

# The same on several ranks: a resumed run is bitwise equal.
for layout in "2 1" "4 2"; do
  read -r number ep <<<"$layout"
  rm -rf many again
  expect_ok ranks "$number" train config.ini --run.dir=many --parallel.ep="$ep"
  cp -r many again
  rm -r again/checkpoints/step-00000013
  expect_ok ranks "$number" train config.ini --run.dir=again --parallel.ep="$ep" --run.resume=true
  expect_output "(step 12)"
  expect_ok "$switchyard" diff many again
done

# SIGUSR1 to mpirun: the run writes a checkpoint and ends. It then resumes and completes. A
# completed run says so.
"$root/launch/mpirun.sh" 2 "$switchyard" train config.ini --run.dir=signal --train.steps=100000 --run.checkpoint_every=0 >signal.out 2>&1 &
pid=$!
for _ in $(seq 300); do [[ -s signal/metrics.jsonl ]] && break; sleep 0.1; done
kill -USR1 "$pid"
code=0; wait "$pid" || code=$?
[[ $code -eq 3 ]] || die "exit code $code after SIGUSR1: $(cat signal.out)"
grep -q "as SIGUSR1 asked" signal.out || die "no word of the stop"
step=$(wc -l <signal/metrics.jsonl)
expect_file "signal/checkpoints/step-$(printf %08d "$step")/manifest.json"
expect_ok ranks 2 train config.ini --run.dir=signal --train.steps=$((step + 2)) --run.resume=true
expect_ok ranks 2 train config.ini --run.dir=signal --train.steps=$((step + 2)) --run.resume=true
expect_output "is complete"

# The loss of an evaluation does not depend on the number of ranks.
expect_ok "$switchyard" evaluate whole --backend cpu --json
one=$(grep -c '"name"' <<<"$out"); [[ $one -eq 2 ]] || die "not two domains"
loss1=$(sed -n 's/^ "loss": \([0-9.]*\).*/\1/p' <<<"$out")
expect_file whole/evaluation.json
for batch in 1 9223372036854775807; do
  expect_ok ranks 3 evaluate whole --backend cpu --data data --json --batch $batch
  loss3=$(sed -n 's/^ "loss": \([0-9.]*\).*/\1/p' <<<"$out")
  awk -v a="$loss1" -v b="$loss3" 'BEGIN { exit !(a > 0 && (a - b < 1e-5) && (b - a < 1e-5)) }' ||
    die "loss $loss1 alone, $loss3 on 3 ranks with --batch $batch"
done

# The result of an evaluation is in the run folder, for any spelling of the checkpoint. A checkpoint
# that was copied elsewhere has no run folder.
rm whole/evaluation.json
expect_ok "$switchyard" evaluate whole/checkpoints/step-00000013/ --backend cpu
expect_file whole/evaluation.json
expect_no_file whole/checkpoints/evaluation.json
mkdir -p copies/one && cp -r whole/checkpoints/step-00000013 copies/one/copy
expect_ok "$switchyard" evaluate copies/one/copy --backend cpu
expect_no_file copies/evaluation.json copies/one/evaluation.json

expect_ok "$switchyard" generate whole --backend cpu --prompt "token " --tokens 20 --temperature 0
first=$out
expect_ok "$switchyard" generate whole --backend cpu --prompt "token " --tokens 20 --temperature 0
[[ $out == "$first" && $out == "token "* ]] || die "greedy generation is not repeatable"
expect_ok "$switchyard" generate whole --backend cpu --prompt "" --tokens 5 --json

# ---- errors: one message, exit code 2 on any number of ranks, and no file is overwritten ----
before=$(find whole -type f | sort | xargs sha256sum)
bad() { expect_error "$1" "$switchyard" train "${@:2}"; expect_error "$1" ranks 2 train "${@:2}"; }
bad "did you mean 'model.layers'" config.ini --model.layer=3
bad "expected a whole number" config.ini --model.layers=three
bad "one of token, choice, probability" config.ini --moe.drop_order=random
bad "cannot read the configuration" missing.ini
bad "already holds a run" config.ini --run.dir=whole
bad "moe.top_k = 5 is more than moe.experts = 4" config.ini --run.dir=x --moe.top_k=5
bad "not a multiple of model.kv_heads" config.ini --run.dir=x --model.kv_heads=3
bad "data.path is not set" config.ini --run.dir=x --data.path=
bad "run.dir is not set" config.ini
bad "nowhere" config.ini --run.dir=x --data.path=nowhere
bad "seq_len" config.ini --run.dir=x --model.seq_len=1000000
bad "holds another model (model.d_model: 64 here, 32 there" config.ini --run.dir=whole --run.resume=true --model.d_model=64 --model.head_dim=8
bad "selection biases" config.ini --run.dir=whole --run.resume=true --train.steps=14 --moe.bias_update_rate=0
bad "train.min_lr = 0.0001 is above train.lr = 1e-05" config.ini --run.dir=x --train.lr=1e-5
bad "parallel.ep = 65536" config.ini --run.dir=x --parallel.ep=65536 --parallel.etp=65536
mkdir foreign && echo '{"step":1}' >foreign/metrics.jsonl
bad "already holds a run" config.ini --run.dir=foreign
[[ $(cat foreign/metrics.jsonl) == '{"step":1}' ]] || die "a metrics.jsonl was overwritten"
bad "run.backend" config.ini --run.dir=x --run.backend=tpu
CUDA_VISIBLE_DEVICES="" bad "run.backend = cuda, but " config.ini --run.dir=x --run.backend=cuda
bad "GB on each rank" config.ini --run.dir=x --model.d_model=65536 --model.head_dim=16384
# The ranks of a control group share its limit: one rank fits here, and two do not.
mkdir -p limited/proc/self limited/sys/fs/cgroup/job
echo "0::/job" >limited/proc/self/cgroup
limited() { echo "$1" >limited/sys/fs/cgroup/job/memory.max && SWITCHYARD_CGROUP_ROOT=$PWD/limited "${@:2}"; }
expect_ok limited 1300000 "$switchyard" train config.ini --run.dir=fits --train.steps=1 --run.async_checkpoint=false
expect_error "on the 2 ranks of a host together, and 0.0 GB are allowed by the limit of their control group" \
  limited 1300000 ranks 2 train config.ini --run.dir=x --train.steps=1 --run.async_checkpoint=false
limited 100000 expect_error "on the one rank of a host, and 0.0 GB are allowed by the limit of their control group" \
  "$switchyard" train config.ini --run.dir=x
bad "train.steps = 0" config.ini --run.dir=x --train.steps=0
bad "global_batch" config.ini --run.dir=x --train.global_batch=6 --train.micro_batch=4
expect_error "moe.experts = 4 is not divisible by parallel.ep = 3" ranks 3 train config.ini --run.dir=x --parallel.ep=3 --train.global_batch=6
expect_error "2 ranks are not divisible" ranks 2 train config.ini --run.dir=x --parallel.ep=4
expect_error "cannot be written" "$switchyard" train config.ini --run.dir=/proc/switchyard
[[ $before == "$(find whole -type f | sort | xargs sha256sum)" ]] || die "an error changed the run"
expect_no_file x
bad_command() { expect_error "$1" "$switchyard" "${@:2}"; }
bad_command "did you mean train" trian config.ini
bad_command "temperature" generate whole --prompt x --temperature -1
bad_command "prompt" generate whole
bad_command "checkpoint" evaluate elsewhere
bad_command "backend = tpu" evaluate whole --backend tpu
expect_error "backend = tpu" ranks 2 evaluate whole --backend tpu
bad_command "no validation text" evaluate whole --data no-text
cp data/english.train.bin saved.bin
sed -i '/_sample = /d' data/dataset.ini  # it would show the damage earlier
printf '\xff\xff' | dd of=data/english.train.bin bs=1 seek=100 conv=notrunc status=none
expect_exit 2 "$switchyard" train config.ini --run.dir=ids --train.steps=200
[[ $err == *english.train* ]] || die "the file with the token id is not named"
cp saved.bin data/english.train.bin
truncate -s -10 data/english.train.bin
bad "english.train" config.ini --run.dir=y
