# shellcheck shell=bash disable=SC2034
# MareNostrum 5 ACC (BSC), nodes of 80 cores and four H100, InfiniBand NDR. From public job scripts
# that give 20 cores for each GPU (b-fg/SmartSOD2D and others), not run here. BSC's own guide was
# not read.
#   SWITCHYARD_SITE=marenostrum5 sbatch --account=PROJECT --qos=acc_ehpc --partition=acc \
#     --ntasks-per-node=4 --cpus-per-task=20 --gres=gpu:4 launch/slurm.sbatch CONFIG ...
module load gcc openmpi cuda nccl hdf5 boost  # CHANGE: the names and versions of the build
# NCCL and UCX find the InfiniBand ports by themselves: no variables of the network are set.
