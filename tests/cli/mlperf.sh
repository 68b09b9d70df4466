#!/usr/bin/env bash
# Tests MLPerf's recipe in small: configs/mlperf/small.ini trains to its target on the headers of
# the C++ library, as docs/tutorials/mlperf.md says.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

expect_ok "$switchyard" prepare --domain headers=/usr/include/c++ --tokenizer bytes --valid-fraction 0.05 \
  --output data/headers
expect_ok ranks 2 train "$root/configs/mlperf/small.ini" --run.backend=cpu
expect_output "reached the target at step"

log=runs/mlperf-small/mllog.txt
# Prints a value of the last event with a key.
last() {  # KEY FIELD
  grep "\"key\":\"$1\"" "$log" | tail -1 | sed -nE "s/.*\"$2\":\"?([^,\"}]*).*/\1/p"
}
[[ $(last run_stop status) == success ]] || die "the last event is $(tail -1 "$log")"
samples=$(last run_stop samples_count)
((samples > 0 && samples % 192 == 0)) || die "$samples samples are not those of whole intervals of 12 steps of 16"
[[ $(last eval_accuracy samples_count) == "$samples" ]] || die "the last validation is not that of the end"
awk -v loss="$(last eval_accuracy value)" 'BEGIN { exit !(loss > 1 && loss <= 2) }' ||
  die "the loss $(last eval_accuracy value) does not reach the target of 2"
