#!/usr/bin/env bash
# tests/bench/plan.sh [SWITCHYARD [FOLDER]]: compares the predictions of `plan` with measured step
# times.
#
# It prints a table in Markdown, with every layout of 1 and 2 ranks on this machine. Three models
# have balanced routing. The routing of a fourth has become uneven; its prediction uses the load
# that it recorded. Keep the machine quiet.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
switchyard=$(realpath "${1:-$root/build/switchyard}")
folder=${2:-$(mktemp -d)}
mkdir -p "$folder" && cd "$folder"
mkdir -p text && cat "$root"/src/*/*.cpp >text/code
[[ -d data ]] || "$switchyard" prepare --domain code=text --tokenizer bytes --output data >/dev/null
[[ -f here.ini ]] || "$root/launch/mpirun.sh" 2 "$switchyard" doctor --machine here.ini >/dev/null

# NAME: writes the settings that all models share. `base` is the model of tests/bench/step.cpp.
model() {
  printf '[model]\nlayers = 4\nd_model = 256\nheads = 8\nseq_len = 256\n[moe]\nexperts = 8\ntop_k = 2\ncapacity_factor = 1.25\n' >"$1.ini"
  printf '[train]\nglobal_batch = 8\nmicro_batch = 8\n[data]\npath = data\n[run]\nbackend = cpu\n' >>"$1.ini"
}
declare -A settings=(
  [base]=""
  [fine]="--moe.experts=64 --moe.top_k=8 --moe.d_ff=128"
  [narrow]="--model.d_model=128 --moe.experts=16 --moe.d_ff=352"
)
echo "| model | layout | routing | predicted, ms | measured, ms (spread) | predicted / measured |"
echo "| --- | --- | --- | --- | --- | --- |"
rows() {  # MODEL ROUTING: a row for each point
  awk -F, -v model="$1" -v routing="$2" 'NR > 1 && $10 && $12 {
    printf "| %s | %d ranks, tp %d ep %d etp %d | %s | %.0f | %.0f (%.0f %%) | %.2f |\n",
      model, $1, $2, $3, $4, routing, 1e3 * $12, 1e3 * $10, 100 * $11, $12 / $10 }' "scale/$1.csv"
}
for name in base fine narrow; do
  model $name
  # shellcheck disable=SC2086
  "$switchyard" scale $name.ini --ranks 1,2 --steps 5 --warm-up 2 --repeats 3 --own-routing-only --moe.choice=balanced \
    --machine here.ini --output scale ${settings[$name]} >$name.txt 2>$name.log
  rows $name balanced
done

# A model trained without a load-balancing loss: a few experts get most of the load.
model astray
without="--moe.aux_loss=0 --moe.capacity_factor=0"
# shellcheck disable=SC2086
[[ -d trained ]] || "$switchyard" train astray.ini $without --run.dir=trained --train.steps=40 --train.lr=3e-3 --quiet >/dev/null
# shellcheck disable=SC2086
"$switchyard" scale astray.ini --ranks 1,2 --steps 5 --warm-up 2 --repeats 3 --own-routing-only --machine here.ini --load trained \
  --output scale $without --run.init_from=trained --train.lr=1e-9 --train.min_lr=1e-9 >astray.txt 2>astray.log
rows astray "its own"
