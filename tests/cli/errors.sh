#!/usr/bin/env bash
# Tests failures during a run: one error on one line, and no incomplete file under a final name.
source "$2/tests/cli/lib/lib.sh"

make_data 100
small_config <<'INI'
[train]
steps = 8
global_batch = 6
micro_batch = 1
warmup = 2
[run]
dir = run
backend = cpu
checkpoint_every = 4
INI

# Several ranks find invalid token ids at the same time.
cp -r data wrong
sed -i 's/tokenizer = bytes/tokenizer = none/; s/vocab = 257/vocab = 40/; /^ids_sha256/d' wrong/dataset.ini
for n in 1 3; do
  rm -rf ids
  expect_error "the vocabulary has only 40" ranks "$n" train config.ini --data.path=wrong --run.dir=ids
  expect_no_file ids/checkpoints
done

# A file cannot grow, as on a full disk. The run ends with an error, and the previous checkpoint is
# intact.
expect_ok "$switchyard" train config.ini --train.steps=4
expect_ok "$switchyard" inspect run --verify
cat >small-disk <<'SH'
ulimit -f 100
exec "$@"
SH
for n in 1 3; do
  # With tcp, since shared memory would use files, too.
  expect_exit 1 env OMPI_MCA_btl=self,tcp MPIR_CVAR_NOLOCAL=1 UCX_TLS=self,tcp "$root/launch/mpirun.sh" "$n" bash small-disk "$switchyard" train config.ini --run.resume=true
  [[ $(grep -c '^switchyard: cannot write.* lower run.keep = 3' "$work/.err") -eq 1 ]] || die "not exactly one error on $n ranks"
  expect_ok "$switchyard" inspect run --verify
  expect_output "step-00000004: OK"
  expect_no_file run/checkpoints/step-00000008
done
expect_ok ranks 3 train config.ini --run.resume=true
expect_output "(step 4)"

# If a rank is killed, the run ends; the other ranks do not wait for it.
cat >with-pid <<'SH'
echo $$ >pid-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
exec "$@"
SH
"$root/launch/mpirun.sh" 3 bash with-pid "$switchyard" train config.ini --run.dir=killed --train.steps=1000000 \
  --run.checkpoint_every=0 >killed.out 2>&1 &
pid=$!
for _ in $(seq 300); do [[ -s killed/metrics.jsonl ]] && break; sleep 0.1; done
kill -9 "$(cat pid-2)"
for _ in $(seq 300); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
code=0; wait "$pid" || code=$?
[[ $code -ne 0 && $code -ne 143 ]] || die "exit code $code after a rank was killed: $(cat killed.out)"
expect_error "holds no checkpoint yet" "$switchyard" experts killed

# An error stays one line, whatever text it quotes.
expect_error "unknown command" "$switchyard" $'new\nswitchyard: line'
printf '\001\002\rx' >binary.ini
expect_error "binary.ini" "$switchyard" train binary.ini
[[ $(wc -l <"$work/.err") -eq 1 ]] || die "more than one line"
printf 'nonsense%s\n' {1..400} >nonsense.ini
expect_error "and 380 more" "$switchyard" train nonsense.ini
head -c 2000000 /dev/zero >large.ini
expect_error "larger than 1 MiB" "$switchyard" train large.ini
expect_error "it is a FIFO, not a regular file" "$switchyard" train <(echo)
expect_ok "$switchyard" help --help
expect_error "SWITCHYARD_WINDOW = '-5x': give a number of ranks" env SWITCHYARD_WINDOW=-5x "$switchyard" version
expect_error "SWITCHYARD_WINDOW = '2x': give a number of ranks" env SWITCHYARD_WINDOW=2x \
  "$root/launch/mpirun.sh" 2 "$switchyard" version
