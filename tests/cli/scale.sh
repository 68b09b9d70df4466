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
# Settings that need validations, or noise, do not hinder it.
expect_ok "$switchyard" scale config.ini --ranks 1 --steps 1 --warm-up 0 --repeats 1 --output noisy --train.validate_every=1 \
  --train.target_loss=1 --train.patience=2 --run.keep_best=1 --moe.choice=noisy --moe.noise=1
expect_output "1 rank, tp 1 ep 1 etp 1, balanced"

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
# If no point belongs to both kinds of scaling, each kind has its own base, and its figures.
expect_ok "$switchyard" scale config.ini --ranks 1,2 --strong --weak --layouts ep2 --own-routing-only --steps 1 --warm-up 0 --repeats 2 \
  --output bases
expect_output "The bases of speed-up and efficiency are tp 1 ep 2 etp 1 on 2 ranks, with "
[[ $(sed -n '2,$p' bases/config.csv | cut -d, -f1,7,14,15 | sort | tr '\n' ' ') == "2,4,1,1 2,8,1,1 " ]] ||
  die "other bases: $(cat bases/config.csv)"
for kind in strong weak; do expect_file bases/figures/config-$kind-efficiency.tex; done
# A damaged measurement of an earlier call is named and left out.
for run in above/config/*/r2-tp1-ep2-etp1-own-1; do echo damaged >>"$run/config.ini"; done
expect_ok "$switchyard" scale config.ini --ranks 1 --layouts tp1 --own-routing-only --steps 1 --warm-up 0 --repeats 1 --output above
[[ $err == *"$run was measured by an earlier call and is left out: $run/config.ini"* ]] || die "no word of the damage: $err"
[[ $(wc -l <above/config.csv) -eq 2 ]] || die "other rows: $(cat above/config.csv)"

# A measured run is complete, although its checkpoints are deleted.
expect_ok "$switchyard" runs above
[[ $out == *" done "* && $out != *interrupted* ]] || die "measured runs are not done: $out"

# Both kinds of scaling share the runs on the fewest ranks, and the runs of --weak are measured
# already. Figures are made for both.
mkdir both && cp -r weak/config both/config
expect_ok "$switchyard" scale config.ini --ranks 1,2 --strong --weak --layouts tp1,ep2 --own-routing-only --steps 2 --warm-up 0 \
  --repeats 1 --output both --machine h100
[[ $err == *"run 2 of 2: r2-tp1-ep2-etp1-own-1"* ]] || die "not the two strong runs alone: $err"
expect_output "config: strong and weak scaling, 64 tokens a step on 1 rank"
expect_output "MFU is unknown: h100 has the speed of cuda, and the runs compute on cpu"
expect_output "The base of speed-up and efficiency is tp 1 ep 1 etp 1 on 1 rank"
[[ $(cut -d, -f1,7,17,18 both/config.csv | sort -u | tr '\n' ' ') == "1,4,1,1 2,4,1,0 2,8,0,1 ranks,global_batch,strong,weak " ]] ||
  die "other points: $(cat both/config.csv)"
for kind in strong weak; do
  for figure in throughput efficiency; do
    grep -q '^\\end{document}$' both/figures/config-$kind-$figure.tex || die "no $kind-$figure.tex"
    [[ ! -e both/config.html ]] || grep -q '</svg>' both/figures/config-$kind-$figure.svg || die "no $kind-$figure.svg"
  done
done
# The machine of run.machine gives the peak, without predictions.
sed 's/^backend = .*/backend = cpu/' "$root/configs/machines/h100.ini" >cpu-machine.ini
expect_ok "$switchyard" scale config.ini --ranks 1,2 --weak --layouts tp1,ep2 --own-routing-only --steps 2 --warm-up 0 \
  --repeats 1 --output weak --run.machine=cpu-machine.ini --x nodes
expect_output "MFU is relative to the peak of"
[[ $(sed -n 2p weak/config.csv | cut -d, -f12) == "" && $(sed -n 2p weak/config.csv | cut -d, -f28) == [0-9]* ]] ||
  die "no MFU, or a prediction: $(sed -n 2p weak/config.csv)"
expect_output "on 1 node, with"

# All figures follow from the step times of the repeats: benchmarks/check.py computes them again.
if command -v python3 >/dev/null; then
  for result in out both weak bases; do
    python3 "$root/benchmarks/check.py" --numbers $result/config.json || die "other figures in $result/config.json"
  done
  sed '0,/"efficiency": [01]/s/"efficiency": [01]/&7/' both/config.json >forged.json
  ! python3 "$root/benchmarks/check.py" --numbers forged.json >/dev/null || die "a forged efficiency passes"
fi

# --check compares with an earlier result. The forged one was twice as fast on 2 ranks.
# shellcheck disable=SC2054  # 1,2 is one argument
check=("$switchyard" scale config.ini --ranks 1,2 --layouts ep1 --own-routing-only --steps 3 --warm-up 1 --repeats 2 --output out
  --train.lr=0.01)
expect_ok "${check[@]}"  # the last call was of another number of threads
cp out/config.json before.json
expect_ok "${check[@]}" --check before.json
expect_output "check against before.json: 14 points compared, 0 fell by 10.0 % or more"
expect_output "14 of the points were measured by an earlier call of this build"
awk '/"points":/ { points = 1 } points && /"ranks": 2/ { two = 1 } points && /"ranks": 1,/ { two = 0 }
  two && /"tokens_per_second":/ { match($0, /[0-9][0-9.e+-]*/); $0 = "\"tokens_per_second\": " 2 * substr($0, RSTART, RLENGTH) "," }
  { print }' before.json >faster.json
expect_exit 1 "${check[@]}" --check faster.json
expect_output "14 points compared, 12 fell by 10.0 % or more"
expect_output "fell: tp 1 ep 2 etp 1 on 2 ranks, batch 4, own routing: "
expect_ok "${check[@]}" --check faster.json --check-limit 60
expect_exit 1 "${check[@]}" --check faster.json --json
[[ $err == *"fell: tp 1 ep 2 etp 1 on 2 ranks"* && $out == *'"fell": true'* ]] || die "no result of the check"
expect_error "is of another environment or configuration (threads: 2 here, 1 there): give" env OMP_NUM_THREADS=2 "${check[@]}" \
  --check before.json
expect_error "train.lr: 0.02 here, 0.01 there" "$switchyard" scale config.ini --ranks 1 --output fresh --train.lr=0.02 \
  --check before.json
sed 's/"host": ".*"/"host": "elsewhere"/' before.json >elsewhere.json
expect_error "host: $(uname -n) here, elsewhere there" "${check[@]}" --check elsewhere.json
expect_ok "${check[@]}" --check elsewhere.json --check-any
# A result without a common point is refused before anything is measured.
expect_error "has no measured point with the layout" "$switchyard" scale config.ini --ranks 3 --layouts tp1 --steps 3 --warm-up 1 \
  --repeats 2 --output fresh --train.lr=0.01 --train.global_batch=6 --check before.json --check-any
expect_no_file fresh
expect_error "is the file that this call writes" "${check[@]}" --check out/config.json
expect_error "nowhere.json" "${check[@]}" --check nowhere.json
expect_error "cannot be compared with" "${check[@]}" --check config.ini
expect_error "go with --check FILE" "${check[@]}" --check-any
expect_error "--check-limit 0" "${check[@]}" --check before.json --check-limit 0
expect_error "--x ranks-and-nodes: give ranks or nodes" "${check[@]}" --x ranks-and-nodes

# The energy of the measured steps, from counters that grow. A host counts once, whatever its ranks.
mkdir -p powercap/intel-rapl:0
echo package-0 >powercap/intel-rapl:0/name
echo 1000000000 >powercap/intel-rapl:0/max_energy_range_uj
echo 0 >powercap/intel-rapl:0/energy_uj
( for ((i = 1; ; ++i)); do
    echo $((i * 1000000)) >powercap/next && mv powercap/next powercap/intel-rapl:0/energy_uj
    sleep 0.01
  done ) &
counter=$!
SWITCHYARD_POWERCAP=$PWD/powercap expect_ok "$switchyard" scale config.ini --ranks 1,2 --layouts ep1 --own-routing-only --steps 20 \
  --warm-up 1 --repeats 1 --output energy --model.seq_len=64 --train.global_batch=16
kill $counter
expect_output "J/token is the energy of the hosts' processor packages and memory (RAPL), other programs included."
for ranks in 1 2; do
  # 20 steps of 16 * 64 tokens
  joules=$(sed -n 2,21p energy/config/*/r$ranks-tp1-ep1-etp1-own-1/metrics.jsonl | sed 's/.*"cpu_joules":\([0-9.]*\).*/\1/' |
    awk '{ sum += $1 } END { print sum / (20 * 16 * 64) }')
  [[ -n $(awk -F, -v ranks=$ranks -v want="$joules" '$1 == ranks && want > 0 && ($29 - want) ^ 2 < (1e-4 * want) ^ 2' energy/config.csv) ]] ||
    die "not $joules J/token on $ranks ranks: $(cat energy/config.csv)"
done
grep -q '"gpu_joules":null' energy/config/*/r2-*/metrics.jsonl || die "energy of GPUs"
SWITCHYARD_POWERCAP=$work/nowhere expect_ok "$switchyard" scale config.ini --ranks 1 --own-routing-only --steps 1 --warm-up 0 --repeats 1 --output alone
expect_output "Energy is unknown: $work/nowhere has no RAPL zone"

# If parallel.ranks_per_node is set, direct and hierarchical dispatch are measured.
expect_ok "$switchyard" scale config.ini --ranks 4 --own-routing-only --steps 1 --warm-up 0 --repeats 1 --output nodes \
  --parallel.ranks_per_node=2 --model.heads=1 --model.kv_heads=1 --moe.d_ff=3
for run in r4-tp1-ep4-etp1 r4-tp1-ep4-etp1-node2; do
  [[ -d $(echo nodes/config/*/$run-own-1) ]] || die "no $run: $(ls nodes/config/*)"
done
grep -qx 'ranks_per_node = 2' nodes/config/*/r4-tp1-ep4-etp1-node2-own-1/config.ini || die "not by node"
grep -qx 'ranks_per_node = 1' nodes/config/*/r4-tp1-ep4-etp1-own-1/config.ini || die "not straight"
grep -q '^4,1,4,1,2,' nodes/config.csv || die "no column for nodes"

# The number of ranks of a run is compared. A time limit does not end a measurement.
expect_exit 1 "$switchyard" scale config.ini --ranks 1 --own-routing-only --steps 1 --warm-up 0 --repeats 1 --output fixed \
  --train.global_batch=8 --launcher "$root/launch/mpirun.sh 2"
expect_output "failed: it ran on 2 ranks instead of 1: write {ranks} in --launcher"
expect_error "cannot start 2 ranks: write {ranks} in place of the number of ranks" \
  "$switchyard" scale config.ini --ranks 1,2 --output x --launcher "$root/launch/mpirun.sh 1"
expect_ok "$switchyard" scale config.ini --ranks 1 --own-routing-only --steps 3 --warm-up 0 --repeats 1 --output limited \
  --run.max_hours=0.0000001
expect_error "give at most 1000000 of each" "$switchyard" scale config.ini --ranks 1 --steps 9223372036854775807
expect_error "give at most 1000000 of each" "$switchyard" scale config.ini --ranks 1 --warm-up 9223372036854775807

expect_error "--load goes with --machine" "$switchyard" scale config.ini --ranks 1 --load nowhere
expect_error "--ranks" "$switchyard" scale config.ini
expect_error "no number of ranks" "$switchyard" scale config.ini --ranks 1,two
expect_error "holds a run of other settings (train.lr:" "$switchyard" scale config.ini --ranks 1 --steps 3 --warm-up 1 --output out
expect_error "write layouts as" "$switchyard" scale config.ini --ranks 1 --layouts 2x2
expect_error "these layouts work" "$switchyard" scale config.ini --ranks 2 --layouts tp3 --output x
expect_error "call it without mpirun" ranks 2 scale config.ini --ranks 1
expect_no_file x
