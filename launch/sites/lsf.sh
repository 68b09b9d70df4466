#!/usr/bin/env bash
# launch/sites/lsf.sh: a job script for LSF with jsrun. Copy it, change the lines marked CHANGE,
# then:
#   SWITCHYARD_ARGUMENTS="CONFIG --run.dir=runs/mine" bsub <lsf.sh
# Submitted again, it continues from the newest complete checkpoint. A chain of jobs:
#   SWITCHYARD_ARGUMENTS="..." bsub -w "ended(JOB)" <lsf.sh
# SWITCHYARD_SITE names a profile (launch/sites/profiles). It was not run under LSF.

#BSUB -J switchyard
#BSUB -nnodes 2
#BSUB -W 12:00
#BSUB -o switchyard.%J.out
set -euo pipefail
cd "${SWITCHYARD_ROOT:-${LS_SUBCWD:-$PWD}}"  # the clone, with build/switchyard
# shellcheck source=launch/sites/job.sh
source "${SWITCHYARD_LAUNCH:-launch}/sites/job.sh"
help_or_go_on "$@"
nodes=${SWITCHYARD_NODES:-2}                      # CHANGE: as -nnodes above
ranks_per_node=4 cpus_per_rank=8 gpus_per_node=0  # CHANGE
hours=12                                          # CHANGE: as -W above
binding=()
start_job "$@"

# One resource set for each node: a rank sees all GPUs of its node and uses its own. Confined to
# that one, it could not share memory with the others.
((${#binding[@]})) || binding=(-d packed -b "packed:$cpus_per_rank")
train_under jsrun -n "$nodes" -r 1 -a "$ranks_per_node" -c $((ranks_per_node * cpus_per_rank)) -g "$gpus_per_node" "${binding[@]}"
