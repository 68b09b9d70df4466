#!/usr/bin/env bash
# launch/sites/flux.sh: a job script for Flux. Copy it, change the lines marked CHANGE, then:
#   flux batch flux.sh CONFIG [--section.key=value ...]
# Submitted again, it continues from the newest complete checkpoint. A chain of jobs:
#   flux batch --dependency=afterany:JOB flux.sh CONFIG ...
# SWITCHYARD_SITE names a profile (launch/sites/profiles). It was not run under Flux.

#flux: --job-name=switchyard
#flux: --nodes=2
#flux: --exclusive
#flux: --time-limit=12h
set -euo pipefail
cd "${SWITCHYARD_ROOT:-$PWD}"  # the clone, with build/switchyard
# shellcheck source=launch/sites/job.sh
source "${SWITCHYARD_LAUNCH:-launch}/sites/job.sh"
help_or_go_on "$@"
ranks_per_node=4 cpus_per_rank=16 gpus_per_node=0  # CHANGE
hours=12                                           # CHANGE: as --time-limit above
binding=(-o cpu-affinity=per-task -o gpu-affinity=off)
start_job "$@"

nodes=$(flux resource list -s up -no '{nnodes}')
train_under flux run --nodes="$nodes" --exclusive --tasks-per-node="$ranks_per_node" "${binding[@]}"
