#!/usr/bin/env bash
# launch/sites/pbs.sh: a job script for PBS Professional and OpenPBS, with the mpiexec of PALS.
# Copy it, change the lines marked CHANGE, then:
#   SWITCHYARD_ARGUMENTS="CONFIG --run.dir=runs/mine" qsub -v SWITCHYARD_ARGUMENTS pbs.sh
# Submitted again, it continues from the newest complete checkpoint. A chain of jobs:
#   SWITCHYARD_ARGUMENTS="..." qsub -v SWITCHYARD_ARGUMENTS -W depend=afterany:JOB pbs.sh
# SWITCHYARD_SITE names a profile (launch/sites/profiles). It was not run under PBS.

#PBS -N switchyard
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=12:00:00
#PBS -j oe
#PBS -r y
set -euo pipefail
cd "${SWITCHYARD_ROOT:-${PBS_O_WORKDIR:-$PWD}}"  # the clone, with build/switchyard
# shellcheck source=launch/sites/job.sh
source "${SWITCHYARD_LAUNCH:-launch}/sites/job.sh"
help_or_go_on "$@"
ranks_per_node=4 cpus_per_rank=16 gpus_per_node=0  # CHANGE
hours=12                                           # CHANGE: as walltime above
binding=(--cpu-bind depth)
start_job "$@"

nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
# Consecutive ranks are on one node, as parallel.ranks_per_node expects.
train_under mpiexec -n $((nodes * ranks_per_node)) -ppn "$ranks_per_node" --depth "$cpus_per_rank" "${binding[@]}"
