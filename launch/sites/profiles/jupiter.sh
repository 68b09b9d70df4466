# shellcheck shell=bash disable=SC2034
# JUPITER Booster (JSC), nodes of four GH200, InfiniBand NDR. From public documentation, not run
# here: apps.fz-juelich.de/jsc/hps/jupiter (configuration, batch system); the modules and
# NCCL_SOCKET_IFNAME are those of JUWELS in interTwin-eu/itwinai.
#   SWITCHYARD_SITE=jupiter sbatch --account=PROJECT --partition=booster --ntasks-per-node=4 \
#     --cpus-per-task=72 --gpus-per-node=4 launch/slurm.sbatch CONFIG ...
module load Stages/2025 GCC OpenMPI CUDA NCCL HDF5 Boost  # CHANGE: the stage of the build
# psid starts the ranks, instead of slurmd: srun's default knows the site's MPI libraries.
mpi=
export NCCL_SOCKET_IFNAME=ib0  # NCCL's start; it finds the InfiniBand ports by itself
