#!/usr/bin/env bash
# Tests that inspect and plan know every configuration of configs/models.
source "$2/tests/cli/lib/lib.sh"

presets=("$root"/configs/models/*.ini)
((${#presets[@]} > 50)) || die "${#presets[@]} configurations in configs/models"
for preset in "${presets[@]}"; do
  expect_ok "$switchyard" inspect --config "$preset"
  expect_output "parameters"
  expect_ok "$switchyard" plan "$preset" --ranks 1 --machine h100 --train.global_batch=1 --train.micro_batch=1
done
