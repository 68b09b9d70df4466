# shellcheck shell=bash disable=SC2034
# LUMI (CSC), CPU ranks on LUMI-C: there is no backend for the MI250X of LUMI-G. From public
# documentation, not run here: Lumi-supercomputer/lumi-userguide of 2024-10-15,
# runjobs/scheduled-jobs; BLAST-WarpX/warpx of 2026-07-01, Tools/machines/lumi-csc.
#   SWITCHYARD_SITE=lumi sbatch --account=PROJECT --partition=standard --ntasks-per-node=8 \
#     --cpus-per-task=16 launch/slurm.sbatch CONFIG ...
# A node has two sockets of 64 cores, in eight NUMA domains of 16.
module load LUMI partition/C PrgEnv-gnu cray-hdf5  # CHANGE: the release, as LUMI/25.03
mpi=  # srun's default is that of Cray MPICH
export FI_MR_CACHE_MONITOR=memhooks FI_CXI_RX_MATCH_MODE=software MPICH_SMP_SINGLE_COPY_MODE=NONE
