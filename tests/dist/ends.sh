#!/usr/bin/env bash
# An error of one rank ends all of them, at once, with its exit code and one message. The first argument is test_ends.
source "$2/tests/cli/lib/lib.sh"
for ranks in 2 3; do
  expect_exit 2 timeout 60 "$root/launch/mpirun.sh" $ranks "$1"
  [[ $(grep '^switchyard: ' <<<"$err") == "switchyard: rank $((ranks - 1)): it fails alone" ]] || die "another message"
done
# What a rank has printed is not lost when others leave with an exit code that makes mpirun end the rest.
expect_exit 1 timeout 60 "$root/launch/mpirun.sh" 3 "$1" slow
expect_output "all that it found"
