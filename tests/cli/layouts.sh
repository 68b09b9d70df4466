#!/usr/bin/env bash
# Tests that layouts affect only speed. A checkpoint of one layout resumes under any other, with the
# same losses. Errors about invalid layouts list valid ones. tests/src/mpi_checkpoint.cpp tests
# bitwise resharding.
source "$2/tests/cli/lib/lib.sh"

make_data 200 --valid-fraction 0.2
cat >config.ini <<'INI'
[model]
layers = 2
d_model = 48
heads = 12
kv_heads = 2
d_ff = 48
seq_len = 24
[moe]
experts = 12
top_k = 2
first_dense = 1
d_ff = 24
capacity_factor = 1
bias_update_rate = 0.001
[train]
steps = 6
global_batch = 12
micro_batch = 1
lr = 3e-3
warmup = 2
[data]
path = data
[run]
backend = cpu
log_every = 1
checkpoint_every = 3
keep = 0
INI

# $layout is RANKS-TP-EP-ETP-MICRO_BATCH.
train() {  # RUN OPTION...
  local ranks tp ep etp micro
  IFS=- read -r ranks tp ep etp micro <<<"$layout"
  expect_ok ranks "$ranks" train config.ini --run.dir="$1" --parallel.tp="$tp" \
    --parallel.ep="$ep" --parallel.etp="$etp" --train.micro_batch="$micro" "${@:2}"
}
# Compares steps, losses (within 1e-5) and counts of dropped rows (exactly).
same_losses() {  # RUN RUN
  local run
  for run in "$1" "$2"; do
    sed -nE 's/.*"step":([0-9]+).*"loss":([0-9.e+-]+).*/\1 \2/p' "$run/metrics.jsonl" >"$run.losses"
    grep -oE '"dropped":[0-9]+' "$run/metrics.jsonl" >"$run.dropped"
    [[ $(wc -l <"$run.losses") -eq 6 ]] || die "not six losses in $run"
  done
  paste -d' ' "$1.losses" "$2.losses" | awk '{ d = ($2 - $4) / $2; if ($1 != $3 || d > 1e-5 || d < -1e-5) exit 1 }' ||
    die "the losses of $1 and $2 differ: $(paste "$1.losses" "$2.losses")"
  cmp -s "$1.dropped" "$2.dropped" || die "$1 and $2 drop other rows"
}

# The checkpoint of each layout is resumed under the next one; the last one's under the first.
layouts=(1-1-1-1-4 2-2-1-1-2 2-1-2-1-1 3-1-3-1-2 4-2-2-1-1 4-1-4-1-3 4-4-2-2-1 4-2-1-2-2 6-2-6-1-2)
for layout in "${layouts[@]}"; do
  train "$layout"
  same_losses "${layouts[0]}" "$layout"
done
for i in "${!layouts[@]}"; do
  from=${layouts[i]} layout=${layouts[(i + 1) % ${#layouts[@]}]}
  cp -r "$from" resumed
  rm -r resumed/checkpoints/step-00000006
  train resumed --run.resume=true
  expect_output "(step 3)"
  same_losses "$from" resumed
  rm -r resumed resumed.*
done
# Under its own layout, the resumed run is bitwise equal.
layout=4-4-2-2-1
cp -r $layout resumed
rm -r resumed/checkpoints/step-00000006
train resumed --run.resume=true
expect_ok "$switchyard" diff $layout resumed

# ---- evaluation: equal to that on one rank, for any size of the last window ----
#
# A window of 6 tokens is not divisible by tp = 4, and one of 15 is not divisible by 2 or 4.
# With --capacity, a padding token would raise the capacity of a window of 6.
mkdir uneven
cat text/* >whole
for tail in 6 15; do
  head -c $((24 * 9 + tail)) whole >tail-$tail
  expect_ok "$switchyard" prepare --domain all=tail-$tail --tokenizer bytes --valid-fraction 0 --output data-$tail
  for suffix in bin idx; do
    cp data-$tail/all.train.$suffix uneven/tail-$tail.train.$suffix
    cp data-$tail/all.train.$suffix uneven/tail-$tail.valid.$suffix
  done
done
printf '[dataset]\ntokenizer = bytes\ndomains = tail-6,tail-15\n' >uneven/dataset.ini
# Prints the losses, and the number of assignments of each domain's experts.
scores() {  # RANKS RUN OPTION...
  expect_ok ranks "$1" evaluate "${@:2}" --data uneven --backend cpu --json
  awk '/"[a-z_]+":/ && inside { print "assignments", sum; inside = 0 }
       /"loss":/ { gsub(",", ""); print "loss", $2 }
       /"experts":/ { sum = 0; inside = 1 }
       inside && /^ *[0-9]+,?$/ { sum += $1 }
       END { if (inside) print "assignments", sum }' <<<"$out"
}
for layout in 2-2-1-1-2 4-4-2-2-1; do
  for how in "" --capacity "--stride 24" "--stride 7"; do
    # shellcheck disable=SC2086
    { scores 1 $layout $how >one; scores ${layout%%-*} $layout $how >many; }
    [[ $(grep -c . one) -eq 5 ]] || die "not three losses and two counts: $(cat one)"
    tokens=$((24 * 9 + 6))
    [[ $how != "--stride 7" ]] || tokens=$((29 * 24 + 222 - 29 * 7))  # full windows and the last
    grep -q "^assignments $((tokens * 2))$" one || die "a token does not count for two assignments: $(cat one)"
    paste -d' ' one many | awk '{ d = $2 - $4; if ($1 != $3 || ($1 == "loss" ? d * d > 1e-12 : d != 0)) exit 1 }' ||
      die "$layout $how: another evaluation than on one rank: $(paste one many)"
  done
done

# ---- invalid layouts: exit code 2, and a list of valid layouts ----
bad() {  # TEXT RANKS OPTION...
  expect_error "$1" ranks "$2" train config.ini --run.dir=x "${@:3}"
  [[ $err == *"these layouts work: tp "*" (add --parallel."* ]] || die "no list of layouts that work"
}
bad "2 ranks are not divisible by parallel.tp = 4" 2 --parallel.tp=4
bad "not divisible by parallel.ep * parallel.etp = 2 * 2" 2 --parallel.ep=2 --parallel.etp=2
bad "parallel.tp = 3 is not a multiple of model.kv_heads = 2" 3 --parallel.tp=3
bad "moe.experts = 10 is not divisible by parallel.ep = 4" 4 --parallel.ep=4 --moe.experts=10
bad "moe.d_ff = 21 is not divisible by parallel.etp = 2" 2 --parallel.etp=2 --moe.d_ff=21
bad "model.heads = 9 is not divisible by parallel.tp = 2" 2 --parallel.tp=2 --model.heads=9 --model.kv_heads=9 --model.head_dim=4
[[ $err != *"tp 2 ep"* ]] || die "a layout is listed that does not work"
expect_error "no layout of 4 ranks works" ranks 4 train config.ini --run.dir=x \
  --train.global_batch=9 --train.micro_batch=3 --model.heads=1 --model.kv_heads=1 --model.head_dim=4
expect_no_file x
