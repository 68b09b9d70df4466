# shellcheck shell=bash disable=SC2034
# Frontier (OLCF), CPU ranks: there is no backend for its MI250X. From public documentation, not run
# here: olcf/olcf-user-docs of 2026-07-22, systems/frontier_user_guide.rst (56 of 64 cores, 7 for
# each L3 cache); BLAST-WarpX/warpx of 2026-07-01, Tools/machines/frontier-olcf.
#   SWITCHYARD_SITE=frontier sbatch --account=PROJECT --partition=batch --ntasks-per-node=8 \
#     --cpus-per-task=7 launch/slurm.sbatch CONFIG ...
module load PrgEnv-gnu cmake boost hdf5
mpi=  # srun's default is that of Cray MPICH
export MPICH_GPU_SUPPORT_ENABLED=0
# Work-arounds for libfabric that WarpX uses.
export FI_MR_CACHE_MONITOR=memhooks FI_CXI_RX_MATCH_MODE=software MPICH_SMP_SINGLE_COPY_MODE=NONE
