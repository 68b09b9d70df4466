#!/usr/bin/env bash
# Tests switchyard experts --replay, --ablate and --placement on a checkpoint. Other commands and
# awk compute the expected numbers.
source "$2/tests/cli/lib/lib.sh"

mkdir -p text/en text/de
for i in $(seq 1 150); do
  echo "the wagon $i rolls down the hump and is braked on track $((i * 7 % 31))" >"text/en/$i"
  echo "der Wagen $i rollt den Ablaufberg hinab, größer als $((i % 9))" >"text/de/$i"
done
expect_ok "$switchyard" prepare --domain english=text/en --domain german=text/de --tokenizer bytes \
  --valid-fraction 0.1 --output data
cat >small.ini <<'END'
[model]
layers = 2
d_model = 16
heads = 2
seq_len = 32
[moe]
experts = 4
top_k = 2
capacity_factor = 1.25
[train]
steps = 10
global_batch = 4
micro_batch = 2
[data]
path = data
[run]
backend = cpu
checkpoint_every = 5
keep = 5
END
expect_ok "$switchyard" train small.ini --run.dir=run
# A learned table of positions may be longer than the validation texts.
expect_ok "$switchyard" train small.ini --run.dir=learned --model.position=learned --model.seq_len=2048 --train.steps=1 --train.micro_batch=1 --quiet
expect_ok "$switchyard" evaluate learned --quiet
expect_ok "$switchyard" experts learned --replay data --quiet
loss_at() { # FACTOR; the loss over all domains in f.csv
  awk -F, -v x="$1" 'NR == 1 { for (i = 1; i <= NF; ++i) column[$i] = i }
    $2 == "capacity_loss" && $column["domain"] == "all" && $column["capacity factor"] == x { print $(NF - 4) }' f.csv
}
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit a != "" && b != "" && d * d < 1e-10 ? 0 : 1 }'; }

first=run/checkpoints/step-00000005
expect_ok "$switchyard" experts run --replay data --against $first --factors 0.5,1.25,100 --figures-csv f.csv \
  --html page.html --hdf5 f.h5 --json
grep -q '"name": "preferred_input"' .out || die "no preferred tokens"
for what in saturation domain coactivation paths position capacity_drop_rate; do
  grep -q "^replay,$what," f.csv || die "no $what in the CSV"
done
grep -q 'id="replay"' page.html && grep -q '<h3>co-activation</h3>' page.html || die "no replay on the page"
if command -v h5dump >/dev/null; then
  h5dump -H -d /replay/coactivation f.h5 | grep -q '( 2, 4, 4 )' || die "no co-activation in the HDF5 file"
fi
# `evaluate` gives the same losses, without drops and with the configured capacity factor.
loss() { grep -m1 -o '"loss": [0-9.]*' .out | cut -d' ' -f2; }
expect_ok "$switchyard" evaluate run --backend cpu --json
near "$(loss_at 0)" "$(loss)" || die "loss $(loss_at 0) is not $(loss)"
near "$(loss_at 100)" "$(loss)" || die "a factor of 100 drops something"
expect_ok "$switchyard" evaluate run --backend cpu --json --capacity
near "$(loss_at 1.25)" "$(loss)" || die "loss with drops is not $(loss)"
# With the capacity of a rank, the windows of a micro-batch share it.
expect_ok "$switchyard" train small.ini --run.dir=shared --moe.capacity_scope=rank --train.steps=2 --quiet
mv f.csv run.csv
expect_ok "$switchyard" experts shared --replay data --factors 1.25 --figures-csv f.csv
expect_ok "$switchyard" evaluate shared --backend cpu --json --capacity
near "$(loss_at 1.25)" "$(loss)" || die "loss with shared capacity is not $(loss)"
expect_error "as training does (train.micro_batch): leave out --batch" "$switchyard" evaluate shared --capacity --batch 8
mv run.csv f.csv
# The drops of the first layer can be computed from its choices, without another run.
for factor in 0.5 1.25; do
  found() { awk -F, -v f="$1" -v x=$factor '$2 == f && index($0, "," x ",") && !seen++ { printf "%.9f", $(NF - 4) }' f.csv; }
  [[ $(found capacity_drop_rate) == "$(found capacity_drop_rate_run)" ]] || die "drops of the first layer differ"
done
# A checkpoint is saturated with respect to itself. Each token chooses k of E experts, so that the
# shares sum to k.
expect_ok "$switchyard" experts run --replay data --against run --max-windows 3 --factors 2 --figures-csv same.csv
[[ $(awk -F, '$2 == "saturation" { print $(NF - 4) }' same.csv | sort -u) == 1 ]] || die "a checkpoint differs from itself"
awk -F, '$2 == "domain" { s += $(NF - 4) } END { exit (s - 2 * 2 * 2) ^ 2 < 1e-12 ? 0 : 1 }' same.csv || die "shares are not k"
expect_ok "$switchyard" experts run --replay data --layer 1 --max-windows 2
expect_output "Preferred tokens by input id"

# Masks and reroutes each expert of a layer.
expect_ok "$switchyard" experts run --ablate data --reroute --layer 1 --max-windows 4 --figures-csv a.csv
expect_output "What each expert is worth"
[[ $(awk -F, '$1 == "ablation" && $2 == "change"' a.csv | wc -l) -eq $((4 * 3)) ]] || die "not each expert and domain"
[[ $(awk -F, '$1 == "reroute" && $2 == "change"' a.csv | wc -l) -eq $((4 * 3)) ]] || die "not each expert and domain rerouted"
awk -F, '$2 == "low" || $2 == "high" || $2 == "change" {
           key = $1; for (i = 4; i < NF - 4; ++i) key = key "," $i; v[key, $2] = $(NF - 4); keys[key] }
         END { for (p in keys) if (!(v[p, "low"] <= v[p, "change"] && v[p, "change"] <= v[p, "high"])) exit 1 }' a.csv ||
  die "a change outside of its interval"

# The load of the ranks, and the placement file: each layer has four different experts.
expect_ok "$switchyard" experts run --placement ep=2 --placement-file map.json
expect_output "max/mean, placed"
grep -q '"ep":2,"experts":4' map.json || die "no placement"
grep -o '"order":\[[0-9,]*\]' map.json | while read -r order; do
  [[ $(grep -o '[0-9]' <<<"$order" | sort -u | wc -l) -eq 4 ]] || die "not a permutation: $order"
done

expect_error "divide" "$switchyard" experts run --placement ep=3
expect_error "ep=N" "$switchyard" experts run --placement 4
expect_error "needs --placement" "$switchyard" experts run --placement-file map.json
expect_error "needs --replay" "$switchyard" experts run --against run
expect_error "needs --ablate" "$switchyard" experts run --reroute
expect_error "capacity factor" "$switchyard" experts run --replay data --factors 1,x
expect_error "dataset.ini" "$switchyard" experts run --replay text
# Data of another tokenizer with as many ids, and data with another vocabulary size.
cp -r data foreign
sed -i "s/^tokenizer = bytes/tokenizer = none/; s/^tokenizer_sha256 = .*/tokenizer_sha256 = $(printf %064d 7)/" foreign/dataset.ini
expect_error "foreign was prepared with the tokenizer 000000000000, and" "$switchyard" experts run --replay foreign
expect_error "give --force-data" "$switchyard" experts run --ablate foreign
sed -i "s/^vocab = .*/vocab = 300/; /^ids_sha256/d" foreign/dataset.ini
expect_error "has a vocabulary of 300" "$switchyard" experts run --replay foreign
expect_ok "$switchyard" prepare --domain english=text/en --tokenizer bytes --valid-fraction 0 --output none
expect_error "no validation text" "$switchyard" experts run --ablate none
expect_ok "$switchyard" train small.ini --run.dir=wide --moe.experts=2 --train.steps=1
expect_error "cannot be compared" "$switchyard" experts run --replay data --against wide
expect_error "no next best" "$switchyard" experts wide --ablate data --reroute
expect_ok "$switchyard" experts wide --replay data --max-windows 1 # k = E
expect_ok "$switchyard" train small.ini --run.dir=dense --moe.experts=0 --train.steps=1
expect_error "no experts" "$switchyard" experts dense --replay data
