#!/usr/bin/env bash
# Tests that the run of tests/fixtures/first-run can be read, evaluated and resumed. The first
# version that wrote checkpoints made it, and must stay readable forever. It also wrote
# the expected numbers. Losses have a tolerance, since processors round differently.
source "$2/tests/cli/lib/lib.sh"
fixture=$root/tests/fixtures/first-run

# Prints the numbers after "KEY": in the lines of FILE that match PATTERN.
numbers() {  # FILE PATTERN KEY
  { grep -- "$2" "$1" || true; } | sed -E "s/.*\"$3\": ?([-+.e0-9]+).*/\1/"
}
expect_near() {  # TOLERANCE WHAT NUMBERS NUMBERS
  paste <(echo "$3") <(echo "$4") | awk -v within="$1" '
    NF != 2 || $1 - $2 > within || $2 - $1 > within { wrong = 1 } END { exit wrong || NR == 0 }' ||
    die "$2: $3 instead of $4"
}

cp -r "$fixture/run" run
expect_ok "$switchyard" inspect run --verify
expect_output ": OK"
expect_ok "$switchyard" inspect "$fixture/data" --verify

expect_ok "$switchyard" evaluate run --data "$fixture/data" --json
for key in loss tokens; do  # of each domain and in total, in any order
  expect_near 1e-5 "$key" "$(numbers "$work/.out" "\"$key\"" $key | sort -g)" \
    "$(numbers "$fixture/evaluation.json" "\"$key\"" $key | sort -g)"
done
expect_ok "$switchyard" experts run
expect_ok "$switchyard" generate run --prompt "wagon 7" --tokens 4 --data "$fixture/data"

# Steps 21 to 30, on the run's own layout and on another one.
go_on() {  # RANKS SETTINGS...
  rm -rf run
  cp -r "$fixture/run" run
  # The run's configuration has former names of keys, as its checkpoint has.
  expect_ok ranks "$1" train run/config.ini --data.path="$fixture/data" --run.resume=true "${@:2}"
  (($(grep -c "former names of keys: .*moe.bias_rate is moe.bias_update_rate now" <<<"$err") == 1)) ||
    die "not one warning of the former names of keys: $err"
  expect_file run/checkpoints/step-00000030/manifest.json
  expect_near 0 "steps" "$(numbers run/metrics.jsonl step step)" "$(seq 30)"
  expect_near 1e-4 "losses on $1 ranks" "$(numbers run/metrics.jsonl step loss)" \
    "$(numbers "$fixture/run/metrics.jsonl" step loss)"
}
go_on 1 --parallel.tp=1 --parallel.ep=1
go_on 2
go_on 2 --parallel.tp=1
