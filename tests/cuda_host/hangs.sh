#!/usr/bin/env bash
# A collective on the device that never ends, though its rank is well: the host waits for the device. The first argument is
# test_training_cuda_host.
source "$2/tests/cli/lib/lib.sh"
export SWITCHYARD_TIMEOUT=2
expect_exit 1 timeout 120 "$root/launch/mpirun.sh" 2 "$1" --gtest_also_run_disabled_tests --gtest_filter=Step.DISABLED_HangsForEver
grep -qE "^switchyard: rank ([01]) on $(uname -n) has waited [0-9.]+ s in the forward pass of layer 1, step 2 for the device; on the device is an \
all-gather with rank [01] in the forward pass of layer 1, step 2" <<<"$err" || die "not a word of what the device waits for"
