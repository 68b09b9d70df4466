#!/usr/bin/env bash
# launch/sites/ssh.sh: trains on hosts that mpirun reaches by ssh, without a batch system.
#   SWITCHYARD_HOSTS=hosts launch/sites/ssh.sh CONFIG [--section.key=value ...]
# The file has a line "HOST slots=N" for each host. Ranks, threads and binding are those of
# launch/mpirun.sh --hostfile. Called again, it continues from the newest complete checkpoint.
# SWITCHYARD_HOURS limits the run, for example to a night. Without it there is no limit.

set -euo pipefail
launch=${SWITCHYARD_LAUNCH:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..}
cd "${SWITCHYARD_ROOT:-$PWD}"
# shellcheck source=launch/sites/job.sh
source "$launch/sites/job.sh"
help_or_go_on "$@"
ranks_per_node='' cpus_per_rank='' gpus_per_node=0 hours=''
start_job "$@"
hosts=${SWITCHYARD_HOSTS:?names no file with a line HOST slots=N for each host}
ranks=$(sed -nE 's/#.*//; s/.*slots *= *([0-9]+).*/\1/p' "$hosts" | awk '{ ranks += $1 } END { print ranks + 0 }')
((ranks > 0)) || { echo "ssh.sh: $hosts has no line \"HOST slots=N\": write one for each host" >&2; exit 2; }
train_under "$launch/mpirun.sh" --hostfile "$hosts" "$ranks"
