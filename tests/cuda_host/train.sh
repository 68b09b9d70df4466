#!/usr/bin/env bash
# Tests training on GPUs as a user runs it, on the CUDA emulator. The third argument is switchyard
# built with it.
source "$2/tests/cli/lib/lib.sh"
on_cuda=$3
two=("$root/launch/mpirun.sh" 2)

make_data 200 --valid-fraction 0.05
cat >config.ini <<'INI'
[model]
layers = 2
d_model = 32
heads = 4
kv_heads = 2
seq_len = 24
[moe]
experts = 4
top_k = 2
d_ff = 24
bias_update_rate = 0.01
[train]
steps = 4
global_batch = 8
micro_batch = 2
lr = 5e-3
warmup = 2
[data]
path = data
[run]
log_every = 2
checkpoint_every = 2
INI
# Runs ranks that share a card. NCCL must take them to be on different machines.
cat >shared_card.sh <<'SH'
#!/usr/bin/env bash
NCCL_HOSTID=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} exec "$@"
SH
chmod +x shared_card.sh
loss() { sed -n 's/.*"step":'"$2"',.*"loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl"; }
near() { # A B PART
  awk -v a="$1" -v b="$2" -v tolerance="$3" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 <= (tolerance * a) ^ 2) }' || die "$1 is not near $2"
}

# `auto` selects the device. In f32 it computes what the CPU computes; in bf16, a close value.
expect_ok "$switchyard" train config.ini --run.dir=cpu --run.backend=cpu
expect_ok env CUDA_VISIBLE_DEVICES=0 "$on_cuda" train config.ini --run.dir=f32
expect_output "cuda, "
near "$(loss cpu 4)" "$(loss f32 4)" 1e-5
# The record of a run names the GPUs that its ranks saw, each once.
gpus_of() { sed -n 's/.*"gpus":\(\[[^]]*\]\).*/\1/p' "$1/provenance.jsonl"; }
[[ $(gpus_of f32) == '["1 x CUDA emulator"]' ]] || die "the record names the GPUs $(gpus_of f32)"
# On two ranks, new weights are in flight between the ranks when a checkpoint is written.
expect_ok "${two[@]}" ./shared_card.sh "$on_cuda" train config.ini --run.dir=f32-2
near "$(loss cpu 4)" "$(loss f32-2 4)" 1e-5
[[ $(gpus_of f32-2) == '["8 x CUDA emulator"]' ]] || die "two ranks on one host record the GPUs $(gpus_of f32-2)"
expect_ok "$switchyard" inspect f32-2 --verify
expect_ok "${two[@]}" ./shared_card.sh "$on_cuda" train config.ini --run.dir=bf16 --run.dtype=bf16 \
  --parallel.ep=2
near "$(loss cpu 4)" "$(loss bf16 4)" 1e-2
expect_output "; NCCL and cuBLAS have "

# A checkpoint of bf16 weights holds the f32 values from which they are rounded. Training resumes
# from it on the CPU, on another layout, and in the other type.
expect_ok "$switchyard" inspect bf16 --verify
expect_ok "$switchyard" train config.ini --run.dir=bf16 --run.backend=cpu --run.resume=true --train.steps=5
expect_ok "$on_cuda" train config.ini --run.dir=bf16 --run.resume=true --train.steps=6 --run.dtype=bf16
near "$(loss cpu 4)" "$(loss bf16 6)" 0.1
expect_ok "$on_cuda" evaluate bf16 --json
on_device=$(sed -n 's/^ "loss": \([0-9.]*\).*/\1/p' <<<"$out")
expect_ok "$switchyard" evaluate bf16 --backend cpu --json
near "$(sed -n 's/^ "loss": \([0-9.]*\).*/\1/p' <<<"$out")" "$on_device" 1e-2

# Without a device, `auto` selects the CPU, and `cuda` fails with an error that names the key.
expect_ok env CUDA_VISIBLE_DEVICES= "$on_cuda" train config.ini --run.dir=auto --train.steps=1
expect_output "cpu ("
[[ $(gpus_of auto) == '[]' ]] || die "without a GPU, the record names $(gpus_of auto)"
expect_error "run.backend = cuda" env CUDA_VISIBLE_DEVICES= "$on_cuda" train config.ini --run.dir=none --run.backend=cuda

# If only some ranks have a device, all ranks end with one error.
cat >one_without.sh <<'SH'
#!/usr/bin/env bash
[[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} != 0 ]] || export CUDA_VISIBLE_DEVICES=
exec "$@"
SH
chmod +x one_without.sh
kinds="some ranks have a GPU and others have none"
expect_error "$kinds" "${two[@]}" ./one_without.sh "$on_cuda" train config.ini --run.dir=mixed
expect_error "$kinds" "${two[@]}" ./one_without.sh "$on_cuda" evaluate bf16

# A configuration that does not fit in memory is refused before anything runs. The error says what
# takes the memory and what to do.
expect_error "training needs" "$on_cuda" train config.ini --run.dir=large --train.micro_batch=8 --model.seq_len=12 \
  --moe.d_ff=1048576
expect_error "use more ranks" "$on_cuda" train config.ini --run.dir=large --train.micro_batch=8 --moe.d_ff=1048576
expect_no_file large/checkpoints

# Impossible settings give one error, and leave no folder behind: heads that are too wide, ranks
# that share a card, invalid variables.
train=("$on_cuda" train config.ini --run.dir=refused)
expect_error "heads of 260 (model.head_dim)" "${two[@]}" "${train[@]}" --model.head_dim=260
expect_error "share a GPU" env CUDA_VISIBLE_DEVICES=0 "${two[@]}" "${train[@]}"
expect_error "share a GPU" env CUDA_VISIBLE_DEVICES=0 "${two[@]}" "$on_cuda" evaluate bf16
expect_error "SWITCHYARD_TIMEOUT = 'soon'" env SWITCHYARD_TIMEOUT=soon "${two[@]}" "${train[@]}"
expect_error "SWITCHYARD_GRAPHS = 'no'" env SWITCHYARD_GRAPHS=no "${two[@]}" "${train[@]}"
expect_error "SWITCHYARD_LARGE_PRODUCT = '1e9'" env SWITCHYARD_LARGE_PRODUCT=1e9 "${two[@]}" "${train[@]}"
expect_error "SWITCHYARD_SMALL_PRODUCT = '-1'" env SWITCHYARD_SMALL_PRODUCT=-1 "${two[@]}" "${train[@]}"
expect_no_file refused

# If NCCL refuses, all ranks end with its reason.
expect_exit 1 env CUDA_VISIBLE_DEVICES=0 NCCL_HOSTID=same "${two[@]}" "$on_cuda" train config.ini --run.dir=duplicate
[[ $err == *"Duplicate GPU"* && $err == *"a GPU of its own"* ]] || die "no word of the duplicate GPU"
