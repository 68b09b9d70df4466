#!/usr/bin/env bash
# Tests benchmarks/check.py: it accepts the results of benchmarks/results, and finds each mistake in
# changed copies of them.
source "$2/tests/cli/lib/lib.sh"
command -v python3 >/dev/null || skip "there is no python3"
check=("$root/benchmarks/check.py")

expect_ok "${check[@]}"
[[ $out == *[1-9]*" results, 0 problems" ]] || die "nothing was checked: $out"

results=("$root"/benchmarks/results/*/)
result=$(basename "${results[0]}")
# Makes a fresh copy of a result in copy/.
copy() {
  rm -rf copy
  mkdir copy
  cp -r "$root/benchmarks/results/$result" copy/
}
# Changes a file of the copy by an expression of sed. The check must fail and say TEXT.
finds() {  # TEXT FILE EXPRESSION
  copy
  sed -E -i "$3" "copy/$result/$2"
  ! cmp -s "copy/$result/$2" "$root/benchmarks/results/$result/$2" || die "'$3' changes nothing"
  expect_exit 1 "${check[@]}" "copy/$result"
  expect_output "$1"
}
finds "step_seconds is " result.json '0,/"step_seconds": [0-9.]+/s//"step_seconds": 1.5/'
finds "interval is " result.json '0,/"coverage": [0-9.]+/s//"coverage": 0.95/'
finds "tokens_per_second_per_rank is " result.json '0,/("tokens_per_second_per_rank": )[0-9]/s//\19/'
finds "tflops_per_second is " result.json 's/"flops_per_token": [0-9.]+/"flops_per_token": 1e6/'
finds "mfu is " result.json 's/("flops": )[0-9]/\19/'
finds "efficiency is " result.json '0,/"efficiency": [0-9.]+/s//"efficiency": 1.01/'
finds "in result.csv and" result.csv '2s/^(([^,]*,){9})[^,]*/\11.5/'
finds "dirty is not false" result.json 's/"dirty": false/"dirty": true/'
finds "is no git commit" result.json 's/"commit": "[0-9a-f]{40}"/"commit": null/'
finds "build_type is not Release" result.json 's/"build_type": "Release"/"build_type": "Debug"/'
finds "provenance.mpi is missing" result.json 's/"mpi": ".*"/"mpi": null/'
finds "result.json is no document" result.json 's/"switchyard-scale"/"switchyard-plan"/'
finds "config.ini has model.layers = 5" config.ini 's/^layers *= *[0-9]+/layers = 5/'
finds "does not name the hardware" README.md 's/Intel|AMD/a/g'
copy
rm "copy/$result/result.csv"
expect_exit 1 "${check[@]}" "copy/$result"
expect_output "result.csv is missing"
copy
mv "copy/$result" "copy/x_y_2020-01-01"
expect_exit 1 "${check[@]}" copy/x_y_2020-01-01
expect_output "date is not that of the measurement"
mv copy/x_y_2020-01-01 copy/Name
expect_exit 1 "${check[@]}" copy/Name
expect_output "name is not MODEL_HARDWARE_YYYY-MM-DD"
