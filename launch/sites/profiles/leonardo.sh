# shellcheck shell=bash disable=SC2034
# Leonardo Booster (CINECA), nodes of 32 cores and four A100, InfiniBand HDR. From public
# documentation, not run here: docs.hpc.cineca.it/hpc/leonardo.html; BLAST-WarpX/warpx of
# 2026-07-01, Tools/machines/leonardo-cineca; job scripts in public repositories.
#   SWITCHYARD_SITE=leonardo sbatch --account=PROJECT --partition=boost_usr_prod --mem=0 \
#     --ntasks-per-node=4 --cpus-per-task=8 --gpus-per-node=4 launch/slurm.sbatch CONFIG ...
module load gcc/12.2.0 cuda openmpi hdf5 boost nccl  # CHANGE: the versions of the build
# NCCL and UCX find the InfiniBand ports by themselves: no variables of the network are set.
