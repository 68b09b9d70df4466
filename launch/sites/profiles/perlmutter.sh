# shellcheck shell=bash disable=SC2034
# Perlmutter (NERSC), nodes of four A100, Slingshot. From public documentation, not run here:
# BLAST-WarpX/warpx of 2026-07-01, Tools/machines/perlmutter-nersc; the NCCL variables are those of
# argonne-lcf/user-guides of 2026-08-19, polaris/.../nccl.md, for the same network.
#   SWITCHYARD_SITE=perlmutter sbatch --account=PROJECT_g --qos=regular --constraint=gpu \
#     --ntasks-per-node=4 --cpus-per-task=32 --gpus-per-node=4 \
#     --gpu-bind=none launch/slurm.sbatch CONFIG ...
module load gpu PrgEnv-gnu craype-x86-milan craype-accel-nvidia80 cudatoolkit cray-hdf5
module load nccl  # CHANGE: the version of the build, with its plugin for Slingshot
mpi=  # srun's default is that of Cray MPICH
export OMP_NUM_THREADS=16  # 32 logical CPUs are 16 cores
# GPU 3 is nearest to the cores of the first rank.
export CUDA_VISIBLE_DEVICES=3,2,1,0
# GPU-aware MPI beside NCCL may deadlock.
export MPICH_GPU_SUPPORT_ENABLED=0
export NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1
export NCCL_PROTO=^LL128  # NCCL issue 2001: wrong data with GPUDirect on Slingshot
export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072
