#!/usr/bin/env bash
# Tests the figures at the end of a training: the line `performance:` against the expression that
# docs/reference/measures.md documents, against metrics.jsonl and against the table above it.
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
log_every = 100
checkpoint_every = 0
INI
expression=$(grep -A1 '^<!-- performance: ' "$root/docs/reference/measures.md" | sed -n 's/^    //p')
[[ $expression == '^performance: '* ]] || die "no expression on the page: $expression"
# Prints a value of the last line of the output.
value() { tail -n 1 .out | tr ' ' '\n' | sed -n "s/^$1=//p"; }
last_line_fits() { [[ $(tail -n 1 .out) =~ $expression$ ]] || die "another last line: $(tail -n 1 .out)"; }
# Fails unless an expression of awk is true, with the values of the last line as variables.
holds() {
  local variables=() pair
  for pair in $(tail -n 1 .out | cut -d' ' -f2-); do variables+=(-v "$pair"); done
  awk "${variables[@]}" "$@" || die "not true of '$(tail -n 1 .out)': ${*: -1}"
}

# Two ranks on one node, without a known peak.
expect_ok ranks 2 train config.ini --run.dir=run --log.csv=true
last_line_fits
[[ $(tail -n 1 .out) == "$(tail -n 1 run/train.log)" ]] || die "another last line in train.log"
grep -qxF "MFU       unknown: give run.machine or measure one: launch/mpirun.sh 2 switchyard doctor --machine FILE" .out || die "no reason for the unknown MFU"
[[ $(value mfu) == unknown && $(value ranks) == 2 && $(value nodes) == 1 && $(value steps) == 7 ]] || die "other numbers"
[[ $(value device_memory_bytes) == 0 ]] || die "device memory on a CPU"
holds 'BEGIN { exit !(host_memory_bytes > 1e6 && host_memory_bytes < 4e9) }'
grep -q '"mfu"' run/metrics.jsonl && die "an MFU without a peak in metrics.jsonl"
head -1 run/metrics.csv | grep -q ',tokens_per_second,tflops_per_second_per_rank,routed,' || die "other columns: $(head -1 run/metrics.csv)"

# tokens/s and TFLOP/s follow from metrics.jsonl without the first step, and from `inspect`.
field() { sed -nE "s/.*\"$2\":([0-9.e+-]+).*/\1/p" "$1/metrics.jsonl"; }
seconds=$(field run step_seconds | tail -n +2 | awk '{ s += $1 } END { printf "%.12g", s }')
expect_ok "$switchyard" inspect --config config.ini --json
flops=$(sed -nE 's/.*"flops_per_token": ([0-9.e+]+).*/\1/p' <<<"$out")
tail -n 1 run/train.log >.out
holds -v seconds="$seconds" -v flops="$flops" 'function near(a, b, e) { return a - b < e && b - a < e }
  BEGIN { tokens = 7 * 8 * 16 / seconds
          exit !(near(tokens_per_second / tokens, 1, 1e-3) && near(step_seconds, seconds / 7, 1e-6) &&
                 near(tokens_per_second_per_rank, tokens_per_second / 2, 0.1) && tokens_per_second_per_node == tokens_per_second &&
                 near(tflops_per_second_per_rank, tokens * flops / 2e12, 2e-6)) }'
paste <(field run tokens_per_second) <(field run tflops_per_second_per_rank) |
  awk -v flops="$flops" '{ r = $2 * 2e12 / ($1 * flops); if (r < 0.999999 || r > 1.000001) exit 1 }' || die "other TFLOP/s in metrics.jsonl"

# The averages of the sections add up to that of the step. No minimum exceeds its average.
cp run/train.log .out
sed -n '/^section of a step/,/^all  *[0-9.]/p' .out >table
for section in data attention route dispatch experts combine "output and loss" gradients optimizer statistics other; do
  grep -qE "^$section +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ % +[0-9.]+$" table || die "no row of $section: $(cat table)"
done
sed -nE 's/^[a-z ]*[a-z]  +([0-9.].*)$/\1/p' table | awk '
  NF != 6 || $1 > $2 + 0.01 || $2 > $3 + 0.01 || $6 > $2 + 0.01 { bad = 1 }
  { rows++; before = sum; sum += $2; last = $2 }
  END { exit bad || rows < 12 || before - last > 0.01 * rows || last - before > 0.01 * rows }' || die "the sections are not the step: $(cat table)"
grep -qE '^dispatch .* 0\.00$' table && die "dispatch on two ranks without collectives"
holds -v all="$(awk '/^all / { print $3 }' table)" 'BEGIN { exit !(all / 1e3 < step_seconds * 1.2 + 1e-4 && all / 1e3 > step_seconds * 0.8 - 1e-4) }'
grep -qE '^time .* mean of steps 2 to 8; in all, [0-9.]+ m?s of validation and [0-9.]+ m?s of checkpoints$' .out || die "no time"

# A machine with a peak: MFU is in the line, in metrics.jsonl and in the CSV.
machine() {  # NAME BACKEND SHARED PEAKS
  printf '[machine]\nname = %s\nbackend = %s\nshared = %s\nmemory = 1e9\n[compute]\n%s\nmemory_bandwidth = 1e9\n[links]\nnode_bandwidth = 1e9\n' "$@" >"$1.ini"
}
machine shared cpu true "peak_f32 = 1e12"
machine single cpu false "peak_f32 = 1e12"
machine other cuda false "peak_f32 = 1e12"
machine narrow cpu false "peak_bf16 = 1e12"
for name in shared single; do
  expect_ok ranks 2 train config.ini --run.dir=$name --run.machine=$name.ini --log.csv=true
  last_line_fits
  # Two ranks share the peak of a node, or each has it.
  holds -v ranks_of_peak="$([[ $name == shared ]] && echo 1 || echo 2)" \
    'BEGIN { d = mfu - tflops_per_second_per_rank * ranks / ranks_of_peak; exit !(d < 1e-4 && d > -1e-4) }'
  grep -qE "^MFU       [0-9.]+ % of the peak of $name.ini$" .out || die "no MFU"
  [[ $(field $name mfu | wc -l) -eq 8 ]] || die "no MFU of each step"
  head -1 $name/metrics.csv | grep -q ',tflops_per_second_per_rank,mfu,routed,' || die "no MFU in the CSV"
done
for case in "other:run.machine = other.ini has the speed of cuda, and this run computes on cpu" \
  "narrow:run.machine = narrow.ini has no compute.peak_f32"; do
  expect_ok "$switchyard" train config.ini --parallel.ep=1 --run.dir="${case%%:*}" --run.machine="${case%%:*}.ini"
  last_line_fits
  [[ $err == *"warning: MFU will be unknown: ${case#*:}"* ]] || die "no warning of the unknown MFU"
  grep -qx "MFU       unknown: ${case#*:}" .out || die "no reason for the unknown MFU"
done
expect_error "run.machine = nowhere: there is no such file, and no such name" \
  "$switchyard" train config.ini --run.dir=never --run.machine=nowhere

# save_seconds is the time of the checkpoint before the step, and of nothing else.
expect_ok "$switchyard" train config.ini --parallel.ep=1 --run.dir=saves --run.checkpoint_every=3 --run.async_checkpoint=false
[[ $(field saves save_seconds | awk '$1 > 0 { print NR }' | tr '\n' ' ') == "4 7 " ]] || die "other save_seconds: $(field saves save_seconds)"
sed -nE 's/^saved .*step-0*([36]) in ([0-9.]+) (m?s)$/\1 \2 \3/p' .out >saved
paste -d' ' saved <(field saves save_seconds | sed -n '4p; 7p') |
  awk '{ shown = $2 / ($3 == "ms" ? 1e3 : 1); if (NF != 4 || $4 < 0.95 * shown - 1e-3) exit 1 }
       END { exit NR != 2 }' || die "save_seconds is not the time of the saves: $(cat saved; field saves save_seconds)"

# The line is the last one of a stopped run and of a quiet one. Without a step there is none.
expect_exit 3 ranks 2 train config.ini --run.dir=stopped --train.steps=1000000 --run.max_hours=0.0006
last_line_fits
grep -q '^stopped at step ' .out || die "not stopped"
expect_ok ranks 2 train config.ini --run.dir=quiet --quiet
last_line_fits
[[ $(wc -l <.out) -eq 3 ]] || die "more than the last step, its validation and its performance: $(cat .out)"
expect_ok ranks 2 train config.ini --run.dir=quiet --run.resume=true
[[ $out != *performance:* ]] || die "a performance without a step"
# A single step is measured.
expect_ok "$switchyard" train config.ini --parallel.ep=1 --run.dir=one --train.steps=1
last_line_fits
[[ $(value steps) == 1 ]] || die "not one step"
