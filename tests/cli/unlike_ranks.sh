#!/usr/bin/env bash
# Tests ranks with different settings, data or checkpoints: one error that names the rank and the
# setting.
source "$2/tests/cli/lib/lib.sh"

make_data 60
mkdir other
(cd other && make_text text 70 && "$switchyard" prepare --domain english=text --tokenizer bytes --output data >/dev/null 2>&1)
small_config <<'INI'
[train]
steps = 4
global_batch = 8
micro_batch = 2
warmup = 2
[run]
backend = cpu
log_every = 4
INI
config=$work/config.ini

# Runs two ranks with different argument lists.
pair() {  # ARGUMENTS-OF-0 ARGUMENTS-OF-1
  local -a first second
  read -ra first <<<"$1"
  read -ra second <<<"$2"
  timeout 60 env OMPI_MCA_mpi_yield_when_idle=1 "$root/launch/mpirun.sh" 1 "${first[@]}" : -np 1 "${second[@]}"
}
train="$switchyard train $config --run.dir=$work/run"

# Each differing setting is named with both values, and nothing is written.
unlike() {  # SETTING VALUE-OF-RANK-0
  expect_error "rank 1 on $(hostname) has ${1%%=*} = ${1#*=}, rank 0 has $2" pair "$train" "$train --$1"
  [[ $err == *": start all ranks with the same command line and configuration"* ]] || die "no advice"
  expect_no_file run
}
unlike train.lr=0.1 0.001
unlike train.steps=6 4
unlike train.global_batch=16 8
unlike parallel.tp=2 1
unlike moe.d_ff=64 32
unlike run.dtype=bf16 f32
expect_error "rank 1 on $(hostname) has --dry-run = 1, rank 0 has 0" pair "$train" "$train --dry-run"
# Another spelling of a value, or another path to equal data, is no difference.
cp -r data copy
expect_ok pair "$train --train.lr=0.001 --train.steps=2" "$train --train.lr 1e-3 --train.steps=2 --data.path=$work/copy"

# Different data of the same name, and different checkpoints.
(cd other && "$switchyard" train "$config" --run.dir=run --train.steps=2 --quiet >/dev/null)
expect_error "rank 1 on $(hostname) has the digest of the data = " pair "$train-2" "-wdir $work/other $train-2"
[[ $err == *"rank 1 on $(hostname) has train_tokens of domain english = "* ]] || die "the data's difference is not named"
start="--data.path=$work/data --run.init_from=run"
expect_error "manifest.json = " pair "$train-2 $start" "-wdir $work/other $train-2 $start"
expect_error "manifest.json = " pair "$switchyard evaluate run" "-wdir $work/other $switchyard evaluate run"

# Other commands compare their arguments and data.
expect_error "has the command = evaluate, rank 0 has train" pair "$train" "$switchyard evaluate run"
expect_error "has the arguments = run --stride 8, rank 0 has run" pair "$switchyard evaluate run" "$switchyard evaluate run --stride 8"
expect_error "the digest of the data" pair "$switchyard evaluate $work/run --data data" \
  "-wdir $work/other $switchyard evaluate $work/run --data data"
expect_ok ranks 2 evaluate run
expect_ok ranks 2 generate run --prompt token --tokens 4
