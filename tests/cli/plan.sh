#!/usr/bin/env bash
# Tests switchyard plan and train --dry-run: memory, bytes and time of every layout, also for
# machines that are not available.
source "$2/tests/cli/lib/lib.sh"

make_data 60 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 3
global_batch = 8
micro_batch = 2
[run]
backend = cpu
log_every = 1
dir = run
INI
expect_ok "$switchyard" train config.ini --quiet

# Without a machine there are no times. With one, layouts are sorted by time, and those that do not
# fit are marked.
expect_ok "$switchyard" plan config.ini --ranks 4 --top 0
for text in "4 ranks: " "tp 1 ep 1 etp 1" "tp 4 ep 4 etp 1" "activations" "rows to their experts"; do expect_output "$text"; done
[[ $out != *"tokens/s"* ]] || die "times without a machine"
expect_ok "$switchyard" plan config.ini --ranks 2,4 --machine h100 --layouts tp2-ep2,ep2 --top 1
[[ $(grep -c "ranks of h100" .out) -eq 2 && $(grep -c "1 more layout fits" .out) -eq 2 ]] || die "not two plans"
expect_output "tokens/s"
expect_ok "$switchyard" plan config.ini --ranks 2 --machine h100 --top 1 --operations
for text in "Operations of a rank in a step of" "grouped_gemm_wgrad" "adamw"; do expect_output "$text"; done
expect_ok "$switchyard" plan config.ini --ranks 2 --layouts ep2,tp1-ep2,ep2
[[ $(grep -c "^tp 1 ep 2" .out) -eq 1 ]] || die "a layout that was named again is there twice"
expect_ok "$switchyard" plan config.ini --ranks 4 --machine h100 --load run
expect_output "waits for its busiest rank"

# The JSON has all layouts, sorted by time.
expect_ok "$switchyard" plan config.ini --ranks 4 --machine h100 --json
[[ $(grep -c '"edp":' .out) -ge 8 ]] || die "not all layouts"
for text in '"format": "switchyard-plan"' '"version": 1,' '"provenance": {' '"configuration": {' '"name": "h100"'; do
  grep -qF "$text" .out || die "no $text"
done
grep -E '"step": ' .out | tr -d ' ,' | cut -d: -f2 | sort -gc || die "not the fastest first"

# A plan of DeepSeek-V3 on 16,384 GPUs.
deepseek=("$root/configs/models/deepseek-v3.ini" --model.seq_len=4096 --train.global_batch=16384 --train.micro_batch=1
  --run.dtype=bf16)
expect_ok timeout 240 "$switchyard" plan "${deepseek[@]}" --ranks 16384 --machine h100
expect_output "671.0"
expect_output "do not fit into the 75"

# The largest numbers of ranks: products of sizes exceed 32 bits.
many=("${deepseek[@]}" --train.global_batch=65536)
expect_ok timeout 240 "$switchyard" plan "${many[@]}" --ranks 65536,1048576 --machine h100 --layouts tp16-ep128,tp16-ep256
[[ $(grep -c "ranks of h100" .out) -eq 2 ]] || die "not two plans"
expect_error "not divisible" "$switchyard" plan config.ini --ranks 4 --layouts ep65536-etp65536
expect_error "on 65536 ranks these layouts work" "$switchyard" train "${many[@]}" --dry-run --ranks 65536 --data.path=data \
  --run.dir=dry --parallel.tp=8 --parallel.ep=100

# A dry run prints the plan of its own layout.
expect_ok "$switchyard" train config.ini --dry-run --ranks 4 --parallel.ep=2 --machine h100 --run.dir=other
expect_output "tp 1 ep 2 etp 1"
expect_output "rows to their experts"
expect_no_file other
# With a machine file, its memory limits the model; the devices of this machine do not matter.
machine() {  # MEMORY
  printf '[machine]\nbackend = cuda\nmemory = %s\n[compute]\npeak_f32 = 1e12\nmemory_bandwidth = 1e12\n' "$1"
  printf '[links]\nnode_bandwidth = 1e9\n'
}
machine 1e15 >vast.ini
machine 1e5 >tiny.ini
expect_error "GB are there" "$switchyard" train config.ini --dry-run --run.dir=other --model.d_model=65536 --model.head_dim=16384
expect_ok "$switchyard" train config.ini --dry-run --run.dir=other --model.d_model=65536 --model.head_dim=16384 \
  --machine vast.ini --run.backend=cuda
expect_output "(1 rank), vast"
expect_error "a rank of tiny has" "$switchyard" train config.ini --dry-run --run.dir=other --machine tiny.ini
expect_error "a rank of tiny has" ranks 2 train config.ini --dry-run --run.dir=other --machine tiny.ini
expect_ok "$switchyard" train config.ini --dry-run --run.dir=other
# On a CPU, the copy of a checkpoint counts too.
memory() {  # prints the bytes for training, and those of the copy
  "$switchyard" plan config.ini --ranks 1 --machine vast-cpu.ini --json | tr -d ' ,' |
    awk -F: '$1 == "\"total\"" { total = $2 } $1 == "\"checkpoint_copy\"" { print total, $2 }'
}
machine 1e15 | sed 's/cuda/cpu/' >vast-cpu.ini
read -r total copy < <(memory)
[[ $copy -gt 0 ]] || die "no copy of $total bytes"
machine $((total + copy - 1)) | sed 's/cuda/cpu/' >small.ini
expect_error "the copy of a checkpoint needs 0.0 GB on each rank besides 0.0 GB for training, and a rank of small has 0.0 GB: set \
run.async_checkpoint = false" "$switchyard" train config.ini --dry-run --run.dir=other --machine small.ini
expect_ok "$switchyard" train config.ini --dry-run --run.dir=other --machine small.ini --run.async_checkpoint=false
expect_ok "$switchyard" plan config.ini --ranks 1 --machine small.ini
expect_output "With --run.async_checkpoint=false, which needs no copy of a checkpoint, 1 of them fits"

# ---- errors ----
expect_error "--ranks" "$switchyard" plan config.ini
expect_error "--ranks x" "$switchyard" plan config.ini --ranks x
expect_error "no layout of 3 ranks works" "$switchyard" plan config.ini --ranks 3
expect_error "these layouts work" "$switchyard" plan config.ini --ranks 4 --layouts tp3
expect_error "write layouts as tp2-ep4-etp1" "$switchyard" plan config.ini --ranks 4 --layouts 2x4
expect_error "ep is there twice" "$switchyard" plan config.ini --ranks 4 --layouts ep2-ep4
expect_error "--top -1" "$switchyard" plan config.ini --ranks 4 --top -1
expect_error "h100, h200, h800" "$switchyard" plan config.ini --ranks 4 --machine h1000
# A build folder outside the sources has links to configs/ and launch/ next to the program.
mkdir -p far/build
cp "$switchyard" far/build/ && ln -s "$root/configs" "$root/launch" far/build/
expect_error "h100, h200, h800" far/build/switchyard plan config.ini --ranks 4 --machine h1000
expect_ok far/build/switchyard plan config.ini --ranks 4 --machine h100
rm -r far
printf '[machine]\nmemory = 1e9\nmemroy = 2\n' >wrong.ini
expect_error "wrong.ini:3: unknown key 'machine.memroy': did you mean 'machine.memory'?" \
  "$switchyard" plan config.ini --ranks 4 --machine wrong.ini
expect_error "did you mean 'model.layers'" "$switchyard" plan config.ini --ranks 4 --model.layer=3
expect_error "give a run of this model" "$switchyard" plan config.ini --ranks 4 --load run --moe.experts=8
expect_error "nowhere" "$switchyard" plan config.ini --ranks 4 --load nowhere
expect_ok "$switchyard" train config.ini --quiet --moe.experts=0 --run.dir=dense
expect_error "the run has no experts" "$switchyard" plan config.ini --ranks 4 --load dense
expect_error "--machine goes with --dry-run" "$switchyard" train config.ini --run.dir=x --machine h100
expect_error "the vocabulary is not known" "$switchyard" plan config.ini --ranks 4 --data.path=

# ---- a measured machine ----
export OMP_NUM_THREADS=1
call ranks 2 doctor --machine here.ini
[[ $code -le 1 ]] || die "exit code $code"
expect_file here.ini
expect_ok "$switchyard" plan config.ini --ranks 2 --machine here.ini
expect_output "2 ranks of here"
expect_error "start doctor with at least 2, as in launch/mpirun.sh 2" "$switchyard" doctor --machine alone.ini
expect_no_file alone.ini
printf '[operations]\nnorm_forwrad = 1e9\n' >>here.ini
expect_error "unknown operation 'norm_forwrad': did you mean 'norm_forward'?" "$switchyard" plan config.ini --ranks 2 --machine here.ini
