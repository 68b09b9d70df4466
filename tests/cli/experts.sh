#!/usr/bin/env bash
# Tests switchyard experts: table, CSV, JSON and page from a checkpoint alone; errors name bad
# input.
source "$2/tests/cli/lib/lib.sh"

mkdir -p text/en text/de
for i in $(seq 1 300); do
  echo "the wagon $i rolls down the hump and is braked on track $((i * 7 % 31))" >"text/en/$i"
  echo "der Wagen $i rollt den Ablaufberg hinab, größer als $((i % 9))" >"text/de/$i"
done
expect_ok "$switchyard" prepare --domain english=text/en --domain german=text/de --tokenizer bytes \
  --valid-fraction 0.2 --output data
cat >small.ini <<'END'
[model]
layers = 2
d_model = 32
heads = 2
seq_len = 32
[moe]
experts = 4
top_k = 2
[train]
steps = 12
global_batch = 4
micro_batch = 2
[data]
path = data
[run]
backend = cpu
log_every = 4
checkpoint_every = 6
keep = 5
END
expect_ok "$switchyard" train small.ini --run.dir=run

expect_ok "$switchyard" experts run
expect_output "2 layers, each with 4 experts, 2 chosen per token"
expect_output "an even share (25.0 %)"
[[ $out != *$'\x1b'* ]] || die "colours without a terminal"

# Every token of every step makes top_k choices in each layer:
# 12 steps x 4 sequences x 32 tokens x 2 choices x 2 layers.
expect_ok "$switchyard" experts run --csv all.csv --html page.html --json
sum=$(awk -F, 'NR > 1 { n += $5 } END { print n }' all.csv)
[[ $sum -eq $((12 * 4 * 32 * 2 * 2)) ]] || die "$sum assignments"
[[ $(head -1 all.csv) == first_step,last_step,layer,expert,routed,dropped,share,drop_rate,probability,probability_gap,* ]] ||
  die "header"
grep -q '"max_over_mean"' .out || die "no JSON"
grep -q '<svg' page.html && grep -q '</html>' page.html || die "no page"
grep -q '<h2>Loss</h2>' page.html || die "no loss beside the run"
! grep -q '<h2>Domains</h2>' page.html || die "domains before any evaluation"
[[ -z $(find . -maxdepth 1 -name '*.tmp' -o -maxdepth 1 -name '*partial*') ]] || die "something partial is left"

# The counts equal those of metrics.jsonl.
logged=$(grep -o '"dropped":[0-9]*' run/metrics.jsonl | awk -F: '{ n += $2 } END { print n }')
counted=$(awk -F, 'NR > 1 { n += $6 } END { print n }' all.csv)
[[ $logged -eq $counted ]] || die "$logged dropped in metrics.jsonl, $counted in the checkpoint"

# h5dump reads the same counts from the file. awk computes MaxVio from the checkpoint's counts.
numbers() { h5dump -d "$2" -y -w 1 -o numbers.txt "$1" >/dev/null && tr -d ', ' <numbers.txt | grep .; }
if command -v h5dump >/dev/null; then
  expect_ok "$switchyard" experts run --hdf5 load.h5 --steps 9-12
  index=run/checkpoints/step-00000012/index.h5
  numbers load.h5 /load/routed >ours && numbers $index /experts/routed >theirs
  paste ours theirs | awk '$1 != $2 { exit 1 } END { exit NR == 4 * 2 * 4 ? 0 : 1 }' || die "other counts"
  numbers load.h5 /load/max_vio >ours
  # [window 4][layer 2][expert 4]
  awk '{ n = NR - 1; s[int(n / 4)] += $1; if ($1 > m[int(n / 4)]) m[int(n / 4)] = $1 }
       END { for (i = 0; i < 8; ++i) printf "%.9f\n", m[i] / (s[i] / 4) - 1 }' theirs >expected
  paste ours expected | awk '($1 - $2) ^ 2 > 1e-10 { exit 1 } END { exit NR == 8 ? 0 : 1 }' || die "another MaxVio"
  h5dump -A -d /summary/probability_gap load.h5 | grep -q 'share of the router' || die "no meaning"
else
  echo "h5dump is not installed: the HDF5 file was not compared" >&2
fi

# Comparison of two runs. A run does not differ from itself.
expect_ok "$switchyard" train small.ini --run.dir=other --train.seed=2 --moe.bias_update_rate=0.01
expect_ok "$switchyard" experts run --compare other --json --figures-csv figures.csv --html page.html
grep -q '"name": "difference"' .out && grep -q 'id="comparison"' page.html || die "no comparison"
share() { awk -F, -v l="$2" 'NR > 1 && $2 == 12 && $3 == l { print $7 }' "$1"; }
expect_ok "$switchyard" experts run --csv a.csv
expect_ok "$switchyard" experts other --csv b.csv
[[ $(awk -F, '$2 == 12 && $11 == ""' b.csv) == "" && $(awk -F, '$2 == 12 && $11 != ""' a.csv | wc -l) -eq 0 ]] ||
  die "biases where there are none, or none where there are"
expected=$(paste <(share a.csv 1) <(share b.csv 1) | awk '{ d = $1 - $2; s += d < 0 ? -d : d } END { printf "%.6f", s / 2 }')
found=$(awk -F, '$2 == "difference" && $4 == 1 { printf "%.6f", $(NF - 4) }' figures.csv)
[[ $expected == "$found" ]] || die "difference $found instead of $expected"
expect_ok "$switchyard" experts run --compare run --figures-csv same.csv
awk -F, '$2 == "difference" && $(NF - 4) != 0 { exit 1 }' same.csv || die "a run differs from itself"
[[ -z $err ]] || die "a warning of a run beside itself"
# Warnings name another number of layers, and other data.
expect_ok "$switchyard" prepare --domain english=text/en --tokenizer bytes --output data-en
expect_ok "$switchyard" train small.ini --run.dir=deep --model.layers=3 --data.path=data-en --train.steps=4
expect_ok "$switchyard" experts run --compare deep
[[ $err == *"the first has 2 layers with experts and the second 3: the 2 that both have are compared"* ]] || die "the depth is not named"
[[ $err == *"they were trained on different data"* ]] || die "the data are not named"
expect_output "First: run/checkpoints/step-00000012"
# Errors name the checkpoint that lacks the layer or the steps.
expect_error "--layer 2: run/checkpoints/step-00000012 has no such layer" "$switchyard" experts deep --compare run --layer 2
expect_error "deep/checkpoints/step-00000004 has counts of steps 1-4" "$switchyard" experts run --compare deep --steps 9-12
expect_error "missing: create it" "$switchyard" experts run --hdf5 missing/load.h5
expect_error "needs a file" "$switchyard" experts run --hdf5 -
# A pipe is not replaced. A link stays a link.
mkfifo pipe
expect_error "--hdf5 pipe is no regular file" "$switchyard" experts run --hdf5 pipe
[[ -p pipe ]] || die "a pipe was replaced"
echo >linked.h5
ln -s linked.h5 link.h5
expect_ok "$switchyard" experts run --hdf5 link.h5
[[ -L link.h5 && $(wc -c <linked.h5) -gt 1000 ]] || die "a link was replaced"
# A device may be in a folder that the user cannot write. For root, another user tries it, if that
# user can read the program and the run.
other_user=()
if [[ $(id -u) -eq 0 ]]; then
  chmod 755 .
  chmod -R go+rX run
  other_user=(setpriv --reuid 65534 --clear-groups env HOME=/tmp)
fi
if "${other_user[@]}" test -x "$switchyard" && "${other_user[@]}" test -r run/config.ini; then
  expect_ok "${other_user[@]}" "$switchyard" experts run --csv /dev/null
else
  echo "another user cannot read the program or the run: the test of a device is left out" >&2
fi

expect_ok "$switchyard" evaluate run --backend cpu
expect_ok "$switchyard" experts run --html page.html
expect_output "english and german"
grep -q '<h2>Domains</h2>' page.html || die "no domains on the page"

# A step folder that was moved out of its run.
mkdir -p away && cp -r run/checkpoints/step-00000006 away/
expect_ok "$switchyard" experts away/step-00000006 --csv - --layer 1
[[ $(tail -n +2 .out | cut -d, -f3 | sort -u) == 1 ]] || die "other layers than 1"
[[ $(tail -n +2 .out | awk -F, '$2 > 6') == "" ]] || die "steps after the checkpoint"
expect_ok "$switchyard" experts run --steps 1-4
expect_output "Load in steps 1-4"

# Without gnuplot, tables, CSV and JSON are made. The page is an error that names the package, and
# is not written.
expect_ok env PATH=/nowhere "$switchyard" experts run --csv all.csv
expect_exit 1 env PATH=/nowhere "$switchyard" experts run --html none.html
[[ $err == *gnuplot-nox* ]] || die "the package is not named"
expect_no_file none.html

expect_error "missing: create it" "$switchyard" experts run --html missing/page.html
expect_error "name a file" "$switchyard" experts run --csv data
expect_error "layers with experts are 0, 1" "$switchyard" experts run --layer 7
expect_error "steps 1-12" "$switchyard" experts run --steps 100-200
expect_error "FIRST-LAST" "$switchyard" experts run --steps ten
expect_error "standard output" "$switchyard" experts run --csv - --json
expect_error "--csv and --html name the same file" "$switchyard" experts run --csv out.csv --html ./out.csv
expect_no_file out.csv
expect_error "give one of them" "$switchyard" experts run --figures-csv out.csv
expect_no_file out.csv
expect_ok "$switchyard" experts run --csv /dev/null --html /dev/null
expect_error "--hmtl" "$switchyard" experts run --hmtl page.html
expect_error "nothing-here" "$switchyard" experts nothing-here
echo '{"step": 1' >run/evaluation.json
expect_error "evaluation.json" "$switchyard" experts run

expect_ok "$switchyard" train small.ini --run.dir=dense --moe.experts=0 --train.steps=1
expect_error "no experts" "$switchyard" experts dense
rm run/evaluation.json
expect_error "no experts" "$switchyard" experts run --compare dense
