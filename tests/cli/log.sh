#!/usr/bin/env bash
# Tests [log]: CSV, TensorBoard, Prometheus and a trace besides metrics.jsonl, on two ranks, with a
# resume.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1
make_data 60
small_config <<'INI'
[parallel]
ep = 2
[train]
steps = 8
global_batch = 8
micro_batch = 2
validate_every = 4
[run]
backend = cpu
log_every = 2
checkpoint_every = 4
INI
train() { ranks 2 train config.ini --quiet "$@"; }
logs=(--log.csv=true --log.tensorboard=true --log.prometheus=true --log.trace_first=3 --log.trace_steps=2)
expect_ok train --run.dir=plain
expect_no_file plain/metrics.csv plain/metrics.prom plain/tensorboard plain/trace
expect_ok train --run.dir=logged "${logs[@]}"
losses() { sed -E 's/.*"loss":([^,]*),"aux.*/\1/' "$1/metrics.jsonl"; }
[[ $(losses plain) == "$(losses logged)" ]] || die "a run that is logged has other losses"

# The CSV file has the numbers of metrics.jsonl.
column() { head -1 "$1" | tr ',' '\n' | grep -nx "$2" | cut -d: -f1; }
values() { tail -n +2 "$1" | cut -d, -f"$(column "$1" "$2")"; }
[[ $(values logged/metrics.csv loss) == "$(losses logged)" ]] || die "metrics.csv has other losses"
[[ $(values logged/metrics.csv step | tr '\n' ' ') == "1 2 3 4 5 6 7 8 " ]] || die "metrics.csv has other steps"
[[ $(values logged/metrics.csv expert_imbalance/layer_1 | grep -c .) -eq 4 ]] || die "no load imbalance every two steps"
[[ $(values logged/metrics.csv validation_loss/domain_english | grep -c .) -eq 2 ]] || die "no validation every four steps"
[[ $(sed -n 's/^switchyard_loss //p' logged/metrics.prom) == "$(losses logged | tail -1)" ]] || die "metrics.prom has another loss"
grep -q '^switchyard_drop_rate{layer="1"} [01]' logged/metrics.prom || die "no drop rate of layer 1"
[[ $(find logged/tensorboard -name 'events.out.tfevents.*' | wc -l) -eq 1 ]] || die "not one event file"

# The trace of each rank has one span for each phase, layer and step, and only the requested steps.
count() { grep -o "\"name\":\"$1\"" "logged/trace/rank-000$2.json" | wc -l; }
for rank in 0 1; do
  [[ $(count step $rank) -eq 2 ]] || die "not two steps in the trace of rank $rank"
  for span in attention route dispatch experts combine; do
    # forward and backward of two layers, two micro-batches, two steps
    [[ $(count $span $rank) -eq 16 ]] || die "$(count $span $rank) spans of $span on rank $rank"
  done
  for span in optimizer gradients all-to-all; do [[ $(count $span $rank) -gt 0 ]] || die "no span of $span"; done
done
expect_no_file logged/trace/rank-0002.json

# After a resume from step 4, the later steps occur once.
expect_ok train --run.dir=logged "${logs[@]}" --run.resume=true --run.resume_step=4
[[ $(values logged/metrics.csv step | tr '\n' ' ') == "1 2 3 4 5 6 7 8 " ]] || die "metrics.csv has other steps after a resume"
[[ $(values logged/metrics.csv loss) == "$(losses plain)" ]] || die "metrics.csv has other losses after a resume"
[[ $(find logged/tensorboard -name 'events.out.tfevents.*' | wc -l) -eq 1 ]] || die "not one event file after a resume"

expect_error "log.trace_steps" "$switchyard" train config.ini --run.dir=none --log.trace_steps=0
expect_error "log.tensorboard" "$switchyard" train config.ini --run.dir=none --log.tensorbord=true
