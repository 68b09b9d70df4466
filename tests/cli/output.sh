#!/usr/bin/env bash
# Tests that lost output is an error in every command. A training only warns about lost progress
# lines.
source "$2/tests/cli/lib/lib.sh"

make_data 60
small_config <<'INI'
[train]
steps = 12
global_batch = 2
micro_batch = 1
[run]
backend = cpu
log_every = 2
INI
expect_ok "$switchyard" train config.ini --run.dir=run

# Causes of lost output: a full disk, a closed stream, and a file that must not grow.
full() { "$@" >/dev/full; }
closed() { "$@" >&-; }
small() { (ulimit -f 0; "$@" 2>&1 >small) | cat >&2; }
lost() {  # COMMAND...
  local how
  for how in full closed small; do
    expect_exit 1 $how "$@"
    [[ $(grep -c '^switchyard: cannot write' "$work/.err") -eq 1 ]] || die "not exactly one error where $how: $*"
  done
}
for command in help "help config" "help train" "experts run" "experts run --json" "experts run --csv -" "inspect run" \
  "diff run run" "generate run --backend cpu --prompt x --tokens 3"; do
  lost "$switchyard" $command
done
for how in full closed; do
  expect_exit 1 $how "$switchyard" evaluate run --backend cpu
  rm -rf again
  expect_exit 1 $how "$switchyard" prepare --domain english=text --output again
  expect_exit 1 $how "$switchyard" doctor
  [[ $err == *"cannot write standard output"* ]] || die "doctor does not say what it lost"
done
OMP_NUM_THREADS=1 expect_exit 1 full "$root/launch/mpirun.sh" 2 bash -c 'exec "$@" >/dev/full' - "$switchyard" help
[[ $(grep -c '^switchyard: cannot write' "$work/.err") -eq 1 ]] || die "not exactly one error on two ranks"

# If standard error is closed, only the exit code shows the error.
silent() { "$@" 2>&-; }
expect_exit 2 silent "$switchyard" experts nowhere
expect_exit 0 silent "$switchyard" inspect run
deaf() { "$@" <&- >&- 2>&-; }
expect_exit 1 deaf "$switchyard" inspect run

# Training: metrics.jsonl has all steps and nothing else, and one warning reports lost progress
# lines.
for how in full closed deaf; do
  rm -rf lonely
  expect_exit 0 $how "$switchyard" train config.ini --run.dir=lonely
  [[ $(grep -c '^{"step":[0-9]*,"tokens":.*}$' lonely/metrics.jsonl) -eq 12 ]] || die "not twelve steps"
  [[ $(wc -l <lonely/metrics.jsonl) -eq 12 ]] || die "more than steps in metrics.jsonl"
  [[ $how == deaf || $(grep -c '^switchyard: warning: some progress lines are lost' "$work/.err") -eq 1 ]] ||
    die "not exactly one word of the lost lines"
  expect_ok "$switchyard" diff run lonely
done
rm -rf lonely
"$switchyard" train config.ini --run.dir=lonely --train.steps=300 2>/dev/null | head -n 1 >/dev/null || die "a reader that leaves ends training"
expect_file lonely/checkpoints/step-00000300/manifest.json

# If the reader of a report ends early, there is no message, and the files are still written.
(set +e +o pipefail; "$switchyard" experts run --csv table.csv --html page.html 2>errors | true)
[[ ! -s errors ]] || die "a report that is read in part says: $(cat errors)"
expect_file table.csv page.html
