#!/usr/bin/env bash
# Tests commands that read a run during its training. The training deletes each checkpoint soon
# after it has written the next one.
source "$2/tests/cli/lib/lib.sh"

make_data 60 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 1000000
global_batch = 2
micro_batch = 2
[run]
dir = run
backend = cpu
checkpoint_every = 1
keep = 1
INI
OMP_NUM_THREADS=1 "$switchyard" train config.ini --quiet >/dev/null 2>training.err &
training=$!
for _ in $(seq 600); do compgen -G 'run/checkpoints/step-????????' >/dev/null && break; sleep 0.1; done
for _ in $(seq 6); do
  expect_ok "$switchyard" inspect run
  expect_ok "$switchyard" diff run run --json
  expect_ok "$switchyard" evaluate run --quiet
  expect_ok "$switchyard" experts run
done
kill -0 $training || die "the training has ended: $(cat training.err)"
kill $training
wait $training || true
