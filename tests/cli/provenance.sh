#!/usr/bin/env bash
# Tests the provenance of files: the record of program, machines and call in each kind of output.
source "$2/tests/cli/lib/lib.sh"

# The program describes itself. A library that is not part of it is named as such.
expect_ok "$switchyard" version
for line in "switchyard " "commit  " "compiler  " "CPU kernels  " "MPI  " "CUDA  " "NCCL  " "cuBLAS  " "HDF5  "; do
  grep -q "^$line" "$work/.out" || die "no line '$line'"
done
expect_ok "$switchyard" version --json
for field in program_version commit dirty compiler flags instruction_sets mpi cuda nccl cublas hdf5; do
  expect_output "\"$field\": "
done
version=$(sed -nE 's/.*"program_version": "([^"]*)".*/\1/p' "$work/.out")

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 4
global_batch = 4
micro_batch = 2
warmup = 2
[run]
backend = cpu
[log]
trace_first = 1
INI
export NCCL_DEBUG=WARN SWITCHYARD_TEST_TOKEN=hunter2 UCX_API_KEY=hunter2 OMP_MY_secret=hunter2 FI_PASSWORD=hunter2
JOB_ID=4711 expect_ok ranks 2 train config.ini --run.dir=run --run.checkpoint_every=2

# The run has a record of each start, its checkpoints have that of theirs.
record=$(cat run/provenance.jsonl)
for text in '{"first_step":1,' "\"program_version\":\"$version\"" '"ranks":2' "\"hosts\":[\"$(uname -n)\"]" '"job":"4711"' \
  '--run.checkpoint_every=2' '"NCCL_DEBUG":"WARN"' '"UCX_API_KEY":"(hidden)"' '"config_sha256":"'"$(sha256sum <run/config.ini | cut -d' ' -f1)"; do
  [[ $record == *"$text"* ]] || die "no $text in $record"
done
digest=$(sha256sum <run/config.ini | cut -d' ' -f1)
expect_ok ranks 2 train config.ini --run.dir=run --run.resume=true --train.steps=6
[[ $(wc -l <run/provenance.jsonl) -eq 2 && $(tail -n 1 run/provenance.jsonl) == '{"first_step":5,'* ]] || die "not two starts"
[[ $(wc -l <run/metrics.jsonl) -eq 6 ]] || die "metrics.jsonl has other lines than steps"
grep -q '"otherData":{"program_version"' run/trace/rank-0001.json || die "no provenance in the trace"
expect_ok "$switchyard" inspect run/checkpoints/step-00000004
for text in "provenance  switchyard $version" "$digest" "environment.NCCL_DEBUG" 4711; do expect_output "$text"; done
expect_ok "$switchyard" inspect run/checkpoints/step-00000004 --json
expect_output "\"config_sha256\": \"$digest\""

# Values alone decide the exit code of diff.
expect_ok ranks 2 train config.ini --run.dir=again
NCCL_DEBUG=INFO expect_ok ranks 2 train config.ini --run.dir=other
expect_ok "$switchyard" diff again other
for text in environment.NCCL_DEBUG WARN INFO "tensors are bitwise equal"; do expect_output "$text"; done
expect_exit 1 "$switchyard" diff run other --json
expect_output '"name": "command"'

# Files for others have the public members, unless all is asked for.
expect_ok "$switchyard" evaluate run --quiet
grep -q "\"config_sha256\": \"$(sha256sum <run/config.ini | cut -d' ' -f1)\"" run/evaluation.json || die "no provenance of the evaluation"
expect_ok "$switchyard" export run brief
expect_ok "$switchyard" export run full --provenance=full
for file in brief full; do grep -q "\"program_version\": \"$version\"" $file/provenance.json || die "$file: no version"; done
expect_ok "$switchyard" experts run --csv brief.csv
expect_ok "$switchyard" experts run --csv full.csv --provenance=full
expect_ok "$switchyard" experts run --json
expect_output '"checkpoint_provenance": {'
expect_ok "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --output brief-sweep --log.trace_first=0
expect_ok "$switchyard" sweep config.ini --vary model.norm=rmsnorm,none --output full-sweep --provenance=full --log.trace_first=0
grep -q '"hosts": \[' brief-sweep/config.json || die "no hosts in the JSON of a sweep"
files=(/provenance.json .csv -sweep/config.md)
if command -v gnuplot >/dev/null; then
  for detail in brief full; do expect_ok "$switchyard" experts run --html $detail.html --provenance=$detail; done
  files+=(.html -sweep/config.svg)
fi
for file in "${files[@]}"; do
  grep -qF "$version" brief"$file" || die "brief$file: no version"
  ! grep -qE 'NCCL_DEBUG|command' brief"$file" || die "brief$file has private values"
  grep -qF "NCCL_DEBUG" full"$file" || die "full$file: no environment"
done
head -n 1 brief.csv | grep -q ',version,commit,hardware,config_sha256$' || die "no columns of provenance"
[[ $(awk -F, 'NR > 1 { print $NF }' brief.csv | sort -u) == "$(sha256sum <run/config.ini | cut -d' ' -f1)" ]] ||
  die "not the digest of the configuration in each row"
expect_error "--provenance all: expected brief or full" "$switchyard" export run third --provenance=all

# No file has a secret.
! grep -rl hunter2 . || die "a secret was recorded"
