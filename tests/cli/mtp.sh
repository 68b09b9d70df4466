#!/usr/bin/env bash
# Tests multi-token prediction through the commands: metrics, resumption on another layout,
# recomputation, evaluation, generation, inspection and export.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 8
global_batch = 4
micro_batch = 1
warmup = 1
lr = 0.01
validate_every = 4
validate_windows = 4
[run]
backend = cpu
checkpoint_every = 4
INI
with=(--model.mtp_depth=2 --model.kv_heads=0 --model.kv_lora_rank=6 --model.q_lora_rank=6 --model.qk_rope_head_dim=2
  --moe.score=sigmoid --moe.bias_update_rate=0.001 --moe.capacity_factor=0 --moe.shared_experts=1
  --model.rope_pairs=interleaved --model.latent_norm_eps=1e-6)
losses() { sed -nE 's/.*"loss":([^,]*),.*"mtp_loss":([^,]*),.*/\1 \2/p' "$1/metrics.jsonl"; }

expect_ok ranks 2 train config.ini --run.dir=whole --parallel.ep=2 "${with[@]}"
[[ $out == *"mtp loss"* ]] || die "the step line has no loss of the modules: $out"
[[ $(losses whole | wc -l) == 8 ]] || die "metrics.jsonl lacks mtp_loss"
# A run that lost its last half computes it again, with recomputation, and gets the same bits.
expect_ok ranks 2 train config.ini --run.dir=halves --parallel.ep=2 "${with[@]}"
mv halves/checkpoints/step-00000008 gone
expect_ok ranks 2 train config.ini --run.dir=halves --parallel.ep=2 --run.resume=true --train.recompute=attention "${with[@]}"
[[ $(losses halves) == "$(losses whole)" ]] || die "a resumed run has other losses"

# Evaluation and generation leave the modules out.
expect_ok "$switchyard" evaluate whole
expect_ok ranks 2 evaluate whole
expect_ok "$switchyard" experts whole --layer 2
expect_output "2 layers, each with 4 experts, 2 chosen per token; 2 modules of multi-token prediction; d_model 32"
expect_output "module 1"
expect_ok "$switchyard" experts whole --layer "module 2" --csv -
[[ $(tail -n +2 .out | cut -d, -f3 | sort -u) == 3 ]] || die "the module's block has another number"
# They do not run in a replay.
for measure in --replay --ablate; do
  expect_error "set --layer below 2" "$switchyard" experts whole --layer 2 $measure data --max-windows 2
done
expect_error "the layers with experts are 0, 1, module 1, module 2" "$switchyard" experts whole --layer 9
expect_ok "$switchyard" generate whole --prompt "token" --tokens 4
# A training can go on without the modules, and refuses to resume without them.
expect_ok "$switchyard" train config.ini --run.dir=without --run.init_from=whole "${with[@]:1}" --train.steps=1
[[ $(losses without) == "" ]] || die "a model without modules has their loss"
expect_error "model.mtp_depth" ranks 2 train config.ini --run.dir=whole --parallel.ep=2 --run.resume=true "${with[@]:1}"
expect_ok "$switchyard" export whole exported --family deepseek_v3
[[ $(cat exported/config.json) == *'"num_nextn_predict_layers": 2'* ]] || die "$(cat exported/config.json)"
expect_ok "$switchyard" import exported imported
expect_ok "$switchyard" plan config.ini --ranks 2 "${with[@]}"
