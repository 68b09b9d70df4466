# shellcheck shell=bash disable=SC2034
# Aurora (ALCF), CPU ranks: there is no backend for its GPUs. From public documentation, not run
# here: argonne-lcf/user-guides of 2026-08-19, docs/aurora/running-jobs-aurora.md;
# BLAST-WarpX/warpx of 2026-07-01, Tools/machines/aurora-alcf.
#   SWITCHYARD_ARGUMENTS="CONFIG ..." SWITCHYARD_SITE=aurora qsub -A PROJECT -q debug-scaling \
#     -l filesystems=home:flare -v SWITCHYARD_ARGUMENTS,SWITCHYARD_SITE launch/sites/pbs.sh
module load cmake boost hdf5
# 12 ranks of 8 cores. Cores 0 and 52 belong to the system.
ranks_per_node=12 cpus_per_rank=8
binding=(--cpu-bind list:1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100)
export MPIR_CVAR_ENABLE_GPU=0  # faster without messages from GPU memory
