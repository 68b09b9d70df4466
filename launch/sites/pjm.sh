#!/usr/bin/env bash
# launch/sites/pjm.sh: a job script for PJM, as on Fugaku. Copy it, change the lines marked CHANGE,
# then:
#   pjsub -x SWITCHYARD_ARGUMENTS="CONFIG --run.dir=runs/mine" pjm.sh
# Submitted again, it continues from the newest complete checkpoint. A chain of jobs:
#   pjsub --step pjm.sh, and pjsub --step --sparam jid=JOB pjm.sh
# It was not run under PJM. The program was not compiled for A64FX.

#PJM -N switchyard
#PJM -L node=2
#PJM -L elapse=12:00:00
#PJM --mpi max-proc-per-node=4
#PJM -S
set -euo pipefail
cd "${SWITCHYARD_ROOT:-${PJM_O_WORKDIR:-$PWD}}"  # the clone, with build/switchyard
# shellcheck source=launch/sites/job.sh
source "${SWITCHYARD_LAUNCH:-launch}/sites/job.sh"
help_or_go_on "$@"
ranks_per_node=4 cpus_per_rank=12 gpus_per_node=0  # CHANGE: ranks as max-proc-per-node
hours=12                                           # CHANGE: as elapse above
binding=()
start_job "$@"

# llio_transfer copies the program to the nodes, so that they do not all read the same file.
if command -v llio_transfer >/dev/null && [[ -f $program ]]; then llio_transfer "$program"; fi
train_under mpiexec -n $((${PJM_NODE:-2} * ranks_per_node)) "${binding[@]}"
