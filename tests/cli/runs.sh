#!/usr/bin/env bash
# Tests switchyard runs: each state of a run, as a table and as JSON, with any files in the folders.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

make_data 60 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 6
global_batch = 4
micro_batch = 2
validate_every = 2
validate_windows = 2
[run]
backend = cpu
checkpoint_every = 3
INI
train() { "$switchyard" train config.ini --quiet "$@"; }
expect_ok "$switchyard" runs
expect_output "there is no run below ."
expect_ok train --run.dir=all/done
expect_ok train --run.dir=all/early --train.lr=0 --train.min_lr=0 --train.patience=1
copy() { mkdir -p "$(dirname "all/$1")" && cp -r all/done "all/$1"; }
# Runs that were stopped at step 3 of 6, killed after step 5, killed with a lock file, or not
# started.
copy stopped && rm -r all/stopped/checkpoints/step-00000006 && sed -i '4,$d' all/stopped/metrics.jsonl
copy killed && rm -r all/killed/checkpoints/step-00000006 && sed -i '6d' all/killed/metrics.jsonl && printf '{"step":6,"lo' >>all/killed/metrics.jsonl
copy a/b/c/left && echo "$(uname -n), process 999999999" >all/a/b/c/left/switchyard.lock && sed -i 's/^steps = 6/steps = 60/' all/a/b/c/left/config.ini
copy new && rm -r all/new/checkpoints/* all/new/metrics.jsonl
# Damaged files of each kind, and objects that are not files.
copy bad/line && sed -i '5s/.*/{"step":oops/' all/bad/line/metrics.jsonl
copy bad/fifo && rm all/bad/fifo/metrics.jsonl && mkfifo all/bad/fifo/metrics.jsonl
copy bad/link && ln -sf /nowhere all/bad/link/metrics.jsonl
copy bad/loop && ln -sfn loop all/bad/loop/config.ini
copy bad/manifest && echo x >all/bad/manifest/checkpoints/step-00000006/manifest.json
copy bad/shard && : >all/bad/shard/checkpoints/step-00000006/shard-00000.h5
copy bad/config && head -c 3000000 /dev/zero >all/bad/config/config.ini
copy bad/binary && head -c 300000 /dev/urandom >all/bad/binary/metrics.jsonl
copy bad/folder && rm all/bad/folder/metrics.jsonl && mkdir all/bad/folder/metrics.jsonl
copy $'bad/na\x1b[31mme\nx' && echo >>all/bad/na*/metrics.jsonl
# The search skips links, hidden folders, data sets and unfinished folders.
ln -s .. all/up
copy .hidden && copy half.tmp && cp -r data all/data && copy data/run
for i in $(seq 300); do mkdir -p all/many/$((i % 7))/$i; done
mkfifo all/many/pipe

"$switchyard" train config.ini --quiet --run.dir=all/busy --train.steps=1000000 --run.checkpoint_every=0 --train.validate_every=0 >busy.out 2>&1 &
pid=$!
for _ in $(seq 600); do [[ -s all/busy/metrics.jsonl ]] && break; sleep 0.1; done
expect_ok timeout 60 "$switchyard" runs all
kill -USR1 $pid
code=0; wait $pid || code=$?
[[ $code -eq 3 ]] || die "looking at a run stopped it: exit code $code"
state() { awk -v run="$1" '$1 == run { print $2, $3 }' "$work/.out"; }
row() { grep -E "^all/$1 " "$work/.out" || true; }
loss=$(sed -nE '6s/.*"loss":([0-9.]{6}).*"aux_loss.*/\1/p' all/done/metrics.jsonl)
[[ $(row "done") =~ ^"all/done "+"done "+6\ +6\ +[0-9.]+\ +[0-9.]+\ +[0-9.]+[k]?\ +6$ ]] || die "another row: $(row "done")"
[[ $(row "done") == *" ${loss%?}"* ]] || die "another loss than $loss: $(row "done")"
[[ $(row early) =~ "stopped early "+4\ +6 ]] || die "$(row early)"
[[ $(row stopped) =~ "stopped "+3\ +6.*"(step 2)".*\ 3$ ]] || die "$(row stopped)"
[[ $(row killed) =~ "interrupted "+5\ +6.*"(step 4)".*\ 3$ ]] || die "$(row killed)"
[[ $(row a/b/c/left) =~ "interrupted "+6\ +60 ]] || die "$(row a/b/c/left)"
[[ $(row new) =~ "not started "+0\ +6\ +-\ +-\ +-\ +- ]] || die "$(row new)"
[[ $(row busy) =~ "running "+[0-9]+\ +1000000 ]] || die "$(row busy)"
for bad in line fifo link loop manifest shard config binary folder; do
  [[ $(row bad/$bad) =~ "damaged " ]] || die "bad/$bad: $(row bad/$bad)"
  grep -q "^damaged: .*bad/$bad" .out || die "the damage of bad/$bad is not named"
done
[[ $out != *hidden* && $out != *half* && $out != *data* && $out != *all/up* && $out != *$'\x1b'* ]] || die "too much is searched"
[[ $(grep -c '^all/' .out) -eq 17 ]] || die "other rows"
expect_ok "$switchyard" runs all/done
[[ $(grep -c '^all/done ' .out) -eq 1 ]] || die "a run is not found in itself"

expect_ok "$switchyard" runs all --json
for text in '"run": "all/busy"' '"state": "stopped early"' '"steps": 60' '"loss": null' '"state": "interrupted"'; do expect_output "$text"; done
if command -v python3 >/dev/null; then
  python3 - .out <<'PY' || die "other JSON"
import json, sys
runs = {r["run"]: r for r in json.load(open(sys.argv[1]))["runs"]}
done, new = runs["all/done"], runs["all/new"]
assert (done["step"], done["steps"], done["checkpoint"], done["validation_step"]) == (6, 6, 6, 6), done
last = json.loads(open("all/done/metrics.jsonl").readlines()[5])
assert done["loss"] == last["loss"] and done["validation_loss"] == last["validation"]["loss"], done
assert done["problem"] is None and new["loss"] is None and new["checkpoint"] is None
assert "line" in runs["all/bad/line"]["problem"] and len(runs) == 17, len(runs)
PY
fi
expect_error "nowhere is no folder" "$switchyard" runs nowhere
expect_error "unknown option" "$switchyard" runs all --jsno
