#!/usr/bin/env bash
# Tests moe.expert_map: on two ranks, losses and checkpoint equal those of a run without it.
source "$2/tests/cli/lib/lib.sh"

make_data 60
small_config <<'INI'
[train]
steps = 6
global_batch = 8
micro_batch = 2
[run]
backend = cpu
INI
number() { sed -E "s/.*\"$1\":([0-9.e-]+)[,}].*/\1/" "$2/metrics.jsonl"; }
near() {  # FILE FILE; checks that the numbers are equal up to rounding
  paste "$1" "$2" | awk '{ d = $1 - $2; if (d * d > 1e-10 * $1 * $1) exit 1 } END { if (NR != 6) exit 1 }'
}

# Trains models with two expert maps. OPTION... are those of the model.
compare() {  # OPTION...
  rm -rf usual even moved
  expect_ok ranks 2 train config.ini --run.dir=usual --parallel.ep=2 --quiet "$@"
  expect_ok "$switchyard" experts usual --placement ep=2 --placement-file even.json
  # The map `moved` moves every expert to the other rank, differently in each layer.
  experts=$(sed -nE 's/^experts = ([0-9]+)/\1/p' config.ini) layers=$(grep -o '"layer":[0-9]*' even.json | cut -d: -f2)
  {
    printf '{"layers":['
    comma=
    for layer in $layers; do printf '%s{"layer":%d,"order":[%s]}' "$comma" "$layer" "$(order "$layer")"; comma=,; done
    printf ']}'
  } >moved.json
  for placement in even moved; do
    expect_ok ranks 2 train config.ini --run.dir=$placement --parallel.ep=2 --moe.expert_map=$placement.json --quiet "$@"
    for what in loss grad_norm dropped; do
      near <(number $what usual) <(number $what $placement) || die "$what of $placement is another: $*"
    done
    # Checkpoints store logical experts. Counts are equal, and parameters are equal up to rounding.
    call "$switchyard" diff usual $placement --all --json
    grep -o '"max_abs": [0-9.e-]*' <<<"$out" | awk '$2 > 1e-3 { exit 1 } END { if (NR < 20) exit 1 }' ||
      die "parameters of $placement are others: $*"
    expect_ok "$switchyard" experts $placement --csv $placement.csv
    expect_ok "$switchyard" experts usual --csv usual.csv
    cut -d, -f1-6 usual.csv | cmp - <(cut -d, -f1-6 $placement.csv) || die "the experts of $placement got other tokens: $*"
  done
}
order() { seq $((experts - 1)) -1 0 | awk -v by="$1" '{ x[NR - 1] = $1 } END {
  for (i = 0; i < NR; ++i) printf "%s%d", i ? "," : "", x[(i + by) % (NR / 2) + (i >= NR / 2) * NR / 2] }'; }

compare --model.kind=encoder_decoder --model.sentinels=8 --model.position=t5 --train.lr=0.01 --train.warmup=1
compare
# A run can be resumed with another placement, or without one, on another number of ranks.
expect_ok "$switchyard" train config.ini --run.dir=moved --run.resume=true --train.steps=9 --quiet
expect_ok ranks 2 train config.ini --run.dir=usual --parallel.ep=2 --run.resume=true --train.steps=9 --quiet \
  --moe.expert_map=moved.json
for run in moved usual; do number loss $run | tail -3 >$run.tail; done
paste moved.tail usual.tail | awk '{ if (($1 - $2) ^ 2 > 1e-9) exit 1 }' || die "the runs go on differently"

# A plan of a recorded load takes the placement into account.
expect_ok "$switchyard" plan config.ini --ranks 2 --layouts ep2 --load usual --moe.expert_map=even.json

bad() { printf '%s' "$2" >bad.json; expect_error "$1" "$switchyard" train config.ini --run.dir=bad --moe.expert_map=bad.json; }
layer=${layers%%$'\n'*}
bad "is no expert map" 'experts'
bad "is no expert map" '{"layers":7}'
bad "it has no layer $layer" '{"layers":[]}'
bad "of the $experts experts" "{\"layers\":[{\"layer\":$layer,\"order\":[0]}]}"
bad "has expert 0 twice" "{\"layers\":[{\"layer\":$layer,\"order\":[0,0]}]}"
bad "of no such number" "{\"layers\":[{\"layer\":$layer,\"order\":[-1]}]}"
expect_error "cannot read none.json" "$switchyard" train config.ini --run.dir=bad --moe.expert_map=none.json
[[ ! -e bad ]] || die "a run was begun"
