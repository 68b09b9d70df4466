#!/usr/bin/env bash
# Tests a collective on the device that never ends, although its rank is well.
#
# The host waits for the device, or for space in its queue. The first argument is
# test_training_cuda_host.
source "$2/tests/cli/lib/lib.sh"
export SWITCHYARD_TIMEOUT=2
test_program=$1
hang() {  # TEST WAITS-FOR ON-THE-DEVICE
  expect_exit 1 timeout 120 "$root/launch/mpirun.sh" 2 "$test_program" --gtest_also_run_disabled_tests --gtest_filter="Step.DISABLED_Hangs$1"
  grep -qE "^switchyard: rank ([01]) on $(uname -n) has waited [0-9.]+ s in the .*forward pass of layer [12], step 2 for $2; on the device is $3" \
    <<<"$err" || die "not a word of what the device waits for: $err"
}
hang InACountExchange "the device" "an all-to-all with rank [01] in the count exchange of the forward pass of layer 1, step 2$"
dispatch="an all-to-all with rank [01] in the dispatch of the forward pass of layer 1, step 2: it sends [0-9]+ rows, and expects [0-9]+$"
hang InADispatch "the device" "$dispatch"
hang WithAFullQueue "space in the device's queue" "$dispatch"
