#!/usr/bin/env bash
# Tests switchyard scale: measured runs, reports, resumption and errors.
source "$2/tests/cli/lib/lib.sh"

make_data 100 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 1000
global_batch = 4
micro_batch = 4
[run]
backend = cpu
INI
export OMP_NUM_THREADS=1

# All layouts that fit, with both routings. The global batch stays; a rank's share of it limits the
# micro-batch.
expect_ok "$switchyard" scale config.ini --ranks 2,1 --steps 3 --warm-up 1 --repeats 2 --output out --train.lr=0.01
environments=(out/config/*/)
[[ ${#environments[@]} -eq 1 ]] || die "not one environment: ${environments[*]}"
here=${environments[0]%/}
grep -q '"instruction_set": "' "$here/environment.json" || die "no instruction set"
runs=("$here"/*/)
[[ ${#runs[@]} -eq $((2 * 2 * (1 + 6))) ]] || die "not 28 runs but ${#runs[@]}: ${runs[*]}"
for run in "${runs[@]}"; do
  [[ $(wc -l <"$run/metrics.jsonl") -eq 6 ]] || die "not 6 steps in $run"
  grep -qx 'lr = 0.01' "$run/config.ini" || die "another learning rate in $run"
  expect_no_file "$run/checkpoints"
done
grep -qx 'micro_batch = 2' "$here/r2-tp1-ep2-etp1-own-1/config.ini" || die "not the half of the batch"
grep -qx 'choice = balanced' "$here/r2-tp1-ep2-etp1-balanced-1/config.ini" || die "not balanced"
# Each point has the median step time of a run, the median over the runs, and tokens per second.
seconds() { sed -n 2,4p "$1/metrics.jsonl" | sed -E 's/.*"step_seconds":([0-9.e-]+).*/\1/' | sort -g | sed -n 2p; }
awk -F, -v a="$(seconds "$here/r2-tp1-ep2-etp1-own-1")" -v b="$(seconds "$here/r2-tp1-ep2-etp1-own-2")" '
  $1 == 2 && $2 == 1 && $3 == 2 && $4 == 1 && $9 == 0 {
    want = (a + b) / 2; found = 1
    if ($10 < 0.999 * want || $10 > 1.001 * want || $13 < 0.999 * 64 / want || $13 > 1.001 * 64 / want) exit 1
  }
  END { exit !found }' out/config.csv || die "other numbers than those of the runs: $(cat out/config.csv)"
awk -F, '$1 == 1 && $9 == 0 { exit !($14 == 1 && $15 == 1) }' out/config.csv || die "the base is not 1"
grep -q '"routing_gap": -\{0,1\}[0-9]' out/config.json || die "no gap"
for text in '"format": "switchyard-scale"' '"version": 1,' '"provenance": {' '"seq_len": 16,' '"warm_up": 1,'; do
  grep -qF "$text" out/config.json || die "no $text"
done
[[ ! -e out/config.html ]] || grep -q '</html>' out/config.html || die "no whole page"
expect_output "tp 2 ep 2 etp 1"
# The phases of a traced step sum to 100 %. On one rank there is no communication.
expect_output "2 ranks, tp 2 ep 2 etp 1, balanced"
expect_output "1 rank, tp 1 ep 1 etp 1"
grep -E '^ *1 rank,.* 100\.0 %( +0\.0 %){6}$' <<<"$out" >/dev/null || die "one rank that waits: $out"

# A second call measures nothing, except runs that were deleted.
cp "$work/.out" before
rm -r "$here/r1-tp1-ep1-etp1-own-2"
expect_ok "$switchyard" scale config.ini --ranks 1,2 --steps 3 --warm-up 1 --repeats 2 --output out --train.lr=0.01
[[ $err == *"run 1 of 1: r1-tp1-ep1-etp1-own-2"* ]] || die "not one run: $err"

# A call for a subset keeps the whole table. An interrupted run starts again from step 1.
rows=$(wc -l <out/config.csv)
interrupted=$here/r1-tp1-ep1-etp1-own-1
sed -i '3,$d' "$interrupted/metrics.jsonl"
touch "$interrupted/of-the-first-run"
expect_ok "$switchyard" scale config.ini --ranks 1 --own-routing-only --steps 3 --warm-up 1 --repeats 2 --output out --train.lr=0.01
[[ $err == *"run 1 of 1: r1-tp1-ep1-etp1-own-1"* ]] || die "not one run: $err"
expect_no_file "$interrupted/of-the-first-run"
[[ $(wc -l <"$interrupted/metrics.jsonl") -eq 6 ]] || die "not 6 steps"
[[ $(wc -l <out/config.csv) -eq $rows ]] || die "rows are lost: $(cat out/config.csv)"
[[ $(cut -d, -f1-5,9 out/config.csv | sort | uniq -d | wc -l) -eq 0 ]] || die "rows with one key"
expect_output "13 of the rows were measured by earlier calls"

# One rank is started by launch/mpirun.sh too, with the same settings as several.
mkdir bin
printf '#!/bin/sh\necho "$*" >>%s/calls\nexec %s "$@"\n' "$work" "$(command -v "$mpiexec")" >bin/mpirun
chmod +x bin/mpirun
SWITCHYARD_MPIEXEC=$work/bin/mpirun expect_ok "$switchyard" scale config.ini --ranks 1 --own-routing-only --steps 1 --warm-up 0 --repeats 1 \
  --output alone
grep -q -e '-np 1 ' calls || die "one rank is not started by mpirun.sh: $(cat calls)"

# Another instruction set or number of threads is a new environment, whose runs replace no others.
for other in SWITCHYARD_ISA=sse42 OMP_NUM_THREADS=2; do
  expect_ok env $other "$switchyard" scale config.ini --ranks 1 --own-routing-only --steps 3 --warm-up 1 --repeats 1 --output out \
    --train.lr=0.01
  [[ $err == *"run 1 of 1: r1-tp1-ep1-etp1-own-1"* ]] || die "with $other: not one run: $err"
done
environments=(out/config/*/)
[[ ${#environments[@]} -eq 3 ]] || die "not three environments: ${environments[*]}"

# Warnings of the runs are footnotes.
expect_ok "$switchyard" scale config.ini --ranks 1 --own-routing-only --steps 1 --warm-up 0 --repeats 1 --output doubtful \
  --moe.top_k=1 --moe.renormalize=true
expect_output "tp 1 ep 1 etp 1 [1]"
expect_output "warning [1] moe.top_k = 1 with moe.renormalize = true"
grep -q 'moe.top_k = 1 with moe.renormalize' doubtful/config.json || die "no warning in JSON"

# --weak grows the batch with the ranks, --layouts selects layouts, and --machine adds predictions.
expect_ok "$switchyard" scale config.ini --ranks 1,2 --weak --layouts tp1,ep2 --own-routing-only --steps 2 --warm-up 0 \
  --repeats 1 --output weak --machine h100 --json
points=${out#*\"points\":}  # the configuration has such a key, too
[[ $(grep -c '"global_batch": 8' <<<"$points") -eq 2 && $(grep -c '"global_batch": 4' <<<"$points") -eq 1 ]] ||
  die "other batches"
grep -q '"predicted_seconds": [0-9]' <<<"$out" || die "no prediction"
left_out="--layouts tp 1 ep 2 etp 1 is not measured on 1 rank: 1 rank is not divisible by parallel.ep * parallel.etp = 2 * 1"
[[ $err == *"$left_out"* && $err != *"no point has"* ]] || die "no word of the layout that is left out"
expect_ok "$switchyard" scale config.ini --ranks 1,2 --layouts ep2 --own-routing-only --steps 1 --warm-up 0 --repeats 1 --output above
[[ $err == *"$left_out"*"no point has 1 rank: speed-up and efficiency are those over 2 ranks"* ]] || die "no word of the missing base"

# If parallel.ranks_per_node is set, direct and hierarchical dispatch are measured.
expect_ok "$switchyard" scale config.ini --ranks 4 --own-routing-only --steps 1 --warm-up 0 --repeats 1 --output nodes \
  --parallel.ranks_per_node=2 --model.heads=1 --model.kv_heads=1 --moe.d_ff=3
for run in r4-tp1-ep4-etp1 r4-tp1-ep4-etp1-node2; do
  [[ -d $(echo nodes/config/*/$run-own-1) ]] || die "no $run: $(ls nodes/config/*)"
done
grep -qx 'ranks_per_node = 2' nodes/config/*/r4-tp1-ep4-etp1-node2-own-1/config.ini || die "not by node"
grep -qx 'ranks_per_node = 1' nodes/config/*/r4-tp1-ep4-etp1-own-1/config.ini || die "not straight"
grep -q '^4,1,4,1,2,' nodes/config.csv || die "no column for nodes"

expect_error "--load goes with --machine" "$switchyard" scale config.ini --ranks 1 --load nowhere
expect_error "--ranks" "$switchyard" scale config.ini
expect_error "no number of ranks" "$switchyard" scale config.ini --ranks 1,two
expect_error "holds a run of other settings (train.lr:" "$switchyard" scale config.ini --ranks 1 --steps 3 --warm-up 1 --output out
expect_error "write layouts as" "$switchyard" scale config.ini --ranks 1 --layouts 2x2
expect_error "these layouts work" "$switchyard" scale config.ini --ranks 2 --layouts tp3 --output x
expect_error "call it without mpirun" ranks 2 scale config.ini --ranks 1
expect_no_file x
