# shellcheck shell=bash disable=SC2034
# Alps (CSCS), nodes of four GH200, Slingshot. From public documentation, not run here:
# eth-cscs/cscs-docs of 2026-08-20, docs/software/communication/{nccl,cray-mpich}.md, nccl_env_vars.
#   SWITCHYARD_SITE=alps sbatch --account=PROJECT --uenv=prgenv-gnu/VERSION --view=default \
#     --ntasks-per-node=4 --cpus-per-task=72 --gpus-per-node=4 launch/slurm.sbatch CONFIG ...
# The uenv has the compiler, Cray MPICH, HDF5, CUDA, NCCL and aws-ofi-nccl: no modules are loaded.
mpi=  # srun's default is that of Cray MPICH; pmix with Open MPI 5
# GPU-aware MPI beside NCCL may deadlock.
export MPICH_GPU_SUPPORT_ENABLED=0
export NCCL_NET="AWS Libfabric"  # without the plugin NCCL fails, instead of using TCP
export NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1
# LL128 is slower on Slingshot, and NCCL issue 2001 reports wrong data with GPUDirect.
export NCCL_PROTO=^LL128
export NCCL_NCHANNELS_PER_NET_PEER=4  # for send and receive, of which the token dispatch consists
export FI_CXI_DEFAULT_CQ_SIZE=131072 FI_CXI_DEFAULT_TX_SIZE=16384 FI_CXI_DISABLE_HOST_REGISTER=1
export FI_CXI_RX_MATCH_MODE=software FI_MR_CACHE_MONITOR=userfaultfd
# If NCCL hangs, CSCS advises against eager messages:
#   export FI_CXI_RDZV_GET_MIN=0 FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_EAGER_SIZE=0
