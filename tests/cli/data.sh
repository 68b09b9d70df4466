#!/usr/bin/env bash
# Tests the identity of data sets. Damage is found before and during training. A resume with other
# data gives a warning. A partial evaluation is marked as such.
source "$2/tests/cli/lib/lib.sh"

make_data 300 --valid-fraction 0.2
make_text other 250
cat >config.ini <<'INI'
[model]
layers = 1
d_model = 16
heads = 2
seq_len = 24
[moe]
experts = 2
top_k = 1
renormalize = false
[train]
warmup = 2
steps = 4
global_batch = 4
micro_batch = 1
[data]
path = data
[run]
backend = cpu
checkpoint_every = 2
INI

# ---- inspect DATA ----
expect_ok "$switchyard" inspect data
expect_output "data: OK"
digest=$(sed -n 's/^digest  *//p' <<<"$out")
[[ ${#digest} -eq 64 ]] || die "no digest of the data set"
expect_output "$(sha256sum <data/english.train.bin | cut -d' ' -f1)"
cp -r data damaged
expect_ok "$switchyard" inspect damaged --json --verify
grep -q "\"digest\": \"$digest\"" .out || die "a copy has another digest"
printf 'x' | dd of=damaged/english.train.bin bs=1 seek=400 conv=notrunc status=none  # still an id
expect_exit 1 "$switchyard" inspect damaged
expect_output "english.train.bin: another SHA-256"
expect_output "damaged: damaged"
expect_exit 1 "$switchyard" inspect damaged --json
expect_error "english.train" "$switchyard" train config.ini --run.dir=x --data.path=damaged
expect_error "english.train" ranks 2 train config.ini --run.dir=x --data.path=damaged
rm damaged/english.valid.*
expect_exit 1 "$switchyard" inspect damaged
expect_error "english.train" "$switchyard" train config.ini --run.dir=x --data.path=damaged
cp data/* damaged/ && truncate -s -2 damaged/english.train.idx
expect_exit 1 "$switchyard" inspect damaged
cp -r data gone && rm gone/english.valid.*  # a missing or unreadable file is not called damaged
expect_exit 1 "$switchyard" inspect gone
expect_output "gone: not all of it can be read"
! grep -q damaged .out || die "a missing file is reported as damaged"
cp data/* damaged/ && sed -i '/^valid_bin_sha256/,$d' damaged/dataset.ini  # cut
expect_exit 1 "$switchyard" inspect damaged
expect_output "english.valid.bin: dataset.ini has other digests, but none of this file"
cp data/* damaged/ && sed -i '/_sha256\|_sample/d' damaged/dataset.ini  # as if made by hand
expect_ok "$switchyard" inspect damaged
expect_output "no digest to compare with"
expect_ok "$switchyard" train config.ini --run.dir=by-hand --data.path=damaged

# ---- another data set on resuming ----
expect_ok "$switchyard" train config.ini --run.dir=run
expect_ok "$switchyard" inspect run --json
grep -q "\"dataset_digest\": \"$digest\"" .out || die "the checkpoint does not know its data set"
mv data moved
expect_ok "$switchyard" train config.ini --run.dir=run --run.resume=true --train.steps=6 --data.path=moved
[[ $err != *warning* ]] || die "a data set that was moved is called another one"
expect_ok "$switchyard" prepare --domain english=other --tokenizer bytes --valid-fraction 0.2 --output data
expect_ok ranks 2 train config.ini --run.dir=run --run.resume=true --train.steps=8
[[ $(grep -c "warning: data does not hold the data that" .err) -eq 1 ]] || die "another data set is not reported exactly once"
expect_ok "$switchyard" train config.ini --run.dir=run --run.resume=true --train.steps=10
[[ $err != *warning* ]] || die "the new data set is still called another one"
rm -r data && mv moved data

# ---- a file is truncated during training: one error on all ranks, exit code 2, no signal ----
for number in 1 2; do
  rm -rf cut long && cp -r data cut
  ranks "$number" train config.ini --run.dir=long --data.path=cut --train.steps=10000000 --run.checkpoint_every=0 \
    >long.out 2>.err &
  pid=$!
  for _ in $(seq 600); do [[ -s long/metrics.jsonl ]] && break; sleep 0.1; done
  expect_file long/metrics.jsonl
  truncate -s 100 cut/english.train.bin
  code=0; wait "$pid" || code=$?
  [[ $code -eq 2 ]] || die "exit code $code from $number ranks whose data were cut short"
  grep -q "english.train.bin ends before byte" .err || die "no word of the file that was cut short"
  ! grep -qi "signal\|SIGBUS\|Bus error" .err || die "a signal"
done

# ---- a partial evaluation ----
expect_ok "$switchyard" train config.ini --run.dir=eval
expect_ok "$switchyard" evaluate eval --backend cpu --json
# Prints an evaluation without its provenance, which has the time.
scores() { sed '/^ *"provenance": {/,/^ *},\{0,1\}$/d' "$1"; }
whole=$(scores eval/evaluation.json)
number() { sed -n "s/^ \"$1\": \([0-9.]*\).*/\1/p" <<<"$out"; }
windows=$(number windows)
[[ $windows -gt 10 && $windows -eq $(number of) ]] || die "$windows windows of $(number of)"
expect_ok "$switchyard" evaluate eval --backend cpu --max-windows 7
expect_output "7 of $windows windows"
[[ $err == *"keeps the evaluation of all windows"* ]] || die "the kept evaluation of all windows is not reported"
[[ $(scores eval/evaluation.json) == "$whole" ]] || die "a partial evaluation replaced the whole one"
rm eval/evaluation.json
# A link to nothing is an error. It does not count as a run without an evaluation.
ln -s nothing eval/evaluation.json
expect_error "eval/evaluation.json: No such file" "$switchyard" experts eval
rm eval/evaluation.json
expect_ok ranks 3 evaluate eval --backend cpu --max-windows 7 --json
expect_file eval/evaluation.json
[[ $(number windows) -eq 7 && $(number tokens) -eq $((7 * 24)) ]] || die "not 7 windows of 24 tokens"
# The expected number of bytes: the tokens of the windows, except ends of documents.
bytes=$(od -An -v -tu2 -w2 data/english.valid.bin | awk -v all="$windows" '
  { id[NR - 1] = $1 }
  END { for (w = 0; w < 7; ++w) for (t = 1; t <= 24; ++t) n += id[int(w * all / 7) * 24 + t] < 256; print n }')
[[ $(number bytes) -eq $bytes ]] || die "$(number bytes) bytes instead of $bytes"
expect_ok "$switchyard" experts eval
expect_output "evaluated at step 4 on 7 of $windows windows"
expect_ok "$switchyard" evaluate eval --backend cpu
[[ $(scores eval/evaluation.json) == "$whole" ]] || die "the whole evaluation did not replace the partial one"

# Evaluations of other kinds go to other files. Each file describes its evaluation.
grep -q "\"dataset_digest\": \"$digest\"" eval/evaluation.json || die "the evaluation does not know its data set"
grep -q "\"dataset\": \"$PWD/data\"" eval/evaluation.json || die "the evaluation does not know the data set's folder"
grep -q '"capacity_factor": 0' eval/evaluation.json || die "the evaluation does not say that it is dropless"
expect_ok "$switchyard" prepare --domain english=other --tokenizer bytes --valid-fraction 0.2 --output elsewhere
expect_ok ranks 2 evaluate eval --backend cpu --data elsewhere
other=$(echo eval/evaluation-????????.json)
grep -q "\"dataset\": \"$PWD/elsewhere\"" "$other" || die "no evaluation on the other data set"
expect_ok "$switchyard" evaluate eval --backend cpu --capacity
grep -q '"capacity_factor": 1.25' eval/evaluation-capacity.json || die "no evaluation with a capacity"
expect_ok "$switchyard" evaluate eval --backend cpu --capacity --data elsewhere
expect_file "${other%.json}-capacity.json"
expect_ok "$switchyard" evaluate eval --backend cpu --stride 24
[[ $(scores eval/evaluation.json) == "$whole" ]] || die "windows every seq_len tokens are not those without --stride"
expect_ok ranks 2 evaluate eval --backend cpu --stride 5
expect_output "a window of 24 tokens every 5"
grep -q '"stride": 5' eval/evaluation-stride-5.json || die "no evaluation with a stride"
[[ $(grep -m1 -o '"tokens": [0-9]*' eval/evaluation-stride-5.json) == $(grep -m1 -o '"tokens": [0-9]*' <<<"$whole") ]] ||
  die "other tokens are predicted with a stride"
expect_ok "$switchyard" evaluate eval --backend cpu --stride 5 --capacity --max-windows 3 --json
expect_file eval/evaluation-capacity-stride-5.json
[[ $(number tokens) -eq $((24 + 5 + 5)) ]] || die "not the first window and what two others add"
for stride in 0 -1 25 99999999999999999999 few 2.5; do
  expect_error "--stride" "$switchyard" evaluate eval --backend cpu --stride=$stride
done
expect_error "from 1 to 24" ranks 2 evaluate eval --backend cpu --stride 25
cp -r data copy
expect_ok "$switchyard" evaluate eval --backend cpu --data copy --max-windows 3
[[ $err == *"keeps the evaluation of all windows"* ]] || die "a copy of the data set counts as another one"
[[ $(scores eval/evaluation.json) == "$whole" ]] || die "an evaluation of another kind replaced the run's"

# If the number of bytes is unknown, the output is "-" and null, never 0.
mkdir none && cp data/english.* none/
printf '[dataset]\ntokenizer = none\nvocab = 257\ndomains = english\n' >none/dataset.ini
expect_ok "$switchyard" train config.ini --run.dir=unknown --data.path=none
for some in "" "--max-windows 7"; do
  # shellcheck disable=SC2086
  expect_ok "$switchyard" evaluate unknown --backend cpu $some
  grep -q '^english .* -$' .out || die "no '-' for unknown bits per byte"
done
expect_ok "$switchyard" evaluate unknown --backend cpu --json
[[ $(grep -c '"bits_per_byte": null' .out) -eq 2 && $(grep -c '"bytes": null' .out) -eq 2 ]] || die "not null"
expect_ok "$switchyard" experts unknown --html page.html --json
! grep -q "[^a-z]nan[^a-z]" .out page.html || die "nan"
