#!/usr/bin/env bash
# Tests switchyard selftest: on one rank and on two, from an empty folder, and with a wrong kernel.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1
mkdir temporary
export TMPDIR=$PWD/temporary
is_clean() { [[ -z $(ls -A temporary) ]] || die "left files in the temporary folder"; }

# On one rank.
expect_ok "$switchyard" selftest
for text in "operations, cpu " "training, cpu, each rank alone" "checkpoint, cpu, tp 1 ep 1 etp 1" "selftest passed: "; do
  expect_output "$text"
done
grep -qE 'passed +[0-9]+ operations, [0-9]+ cases' .out || die "no operation was checked"
[[ $out != *FAILED* && $err == *"operations, cpu"* ]] || die "no progress, or a failure that is none"
is_clean

# On two ranks there is one report.
expect_ok ranks 2 selftest --json
[[ $(grep -c '"passed": true' .out) -eq 1 && $(grep -c '"ranks": 2' .out) -eq 1 ]] || die "not one report of two ranks"
for text in "tp 1 ep 1 etp 1" "tp 1 ep 2 etp 1" "tp 2 ep 2 etp 1" "checkpoint, cpu, "; do expect_output "$text"; done
[[ $out != *'"state": "failed"'* ]] || die "a failed check"
is_clean

# A wrong kernel on one rank: alone it differs from the other rank, and so do all
# layouts. The operations of the other rank are right.
wrong=$(dirname "$switchyard")/switchyard_wrong_kernel
WRONG_ATTENTION=1 expect_exit 1 start 2 "$wrong" selftest
expect_output "on rank 1: attention_forward is wrong for f32"
[[ $out != *"on rank 0: attention"* && $out != *"ranks 0, 1: attention"* ]] || die "rank 0 is right"
for check in "training, cpu, each rank alone: on rank 1: step 1: the loss is" "training, cpu, tp 1 ep 1 etp 1: on rank" "selftest FAILED: "; do
  expect_output "$check"
done
is_clean

# The same in all processes: only the reference shows it.
WRONG_ATTENTION=all expect_exit 1 "$wrong" selftest --json
expect_output '"passed": false'
expect_output '"error": "attention_forward is wrong for f32'
is_clean

# Folders that cannot be used.
expect_exit 1 ranks 2 selftest --dir nowhere
expect_output "failed: folder: on ranks 0, 1: cannot make a folder in nowhere (No such file or directory): give another"

expect_error "--json" ranks 2 selftest --jsno
expect_error "usage" "$switchyard" selftest something
