#!/usr/bin/env bash
# benchmarks/published.sh PROGRAM [--check]: predicts the public runs of benchmarks/published.tsv.
#
# It writes the table between the two markers of docs/design/cost-model.md. With --check it changes
# nothing, prints the lines that differ, and exits with 1 if there are any.
#
# published.tsv has a header and a line for each run. `layout` is of this program, and
# `their_layout` the published one. `published` is throughput of a GPU (or die) in `unit`;
# `as_published` is the figure that it was derived from, or - if there is none.
set -euo pipefail
if (($# < 1 || $# > 2)) || [[ ${2:---check} != --check ]]; then
  echo "usage: benchmarks/published.sh PROGRAM [--check]" >&2
  exit 2
fi
program=$(realpath "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
page=docs/design/cost-model.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the row of a run from the JSON of its plan.
# Variables: those of published.tsv, and memory, the bytes of a rank of the machine.
print_row() {
  awk -v run="$run" -v url="$source" -v machine="$machine" -v ranks="$ranks" -v layout="$layout" \
    -v theirs="$their_layout" -v published="$published" -v unit="$unit" -v as_published="$as_published" \
    -v why="$why" -v memory="$memory" '
    function digits(x) { return x >= 1000 ? sprintf("%d,%03d", x / 1000, x % 1000) : sprintf("%d", x) }
    function rounded(x) {  # to three digits
      if (x < 100) return sprintf("%.3g", x)
      scale = 10 ^ (int(log(x) / log(10)) - 2)
      return digits(int(x / scale + 0.5) * scale)
    }
    /"plans"/ { found = 1 }
    found && match($0, /"[a-z_]+": [0-9.e+-]+/) {
      split(substr($0, RSTART, RLENGTH), field, /": /)
      value[substr(field[1], 2)] = field[2]
    }
    END {
      predicted = value["tokens_per_second"] / ranks
      if (unit == "TFLOP/s") predicted *= value["flops_per_token"] / 1e12
      figure = published < 1000 ? published : digits(published)
      figure = figure " " unit (as_published == "-" ? "" : " (" as_published ")")
      printf "| [%s](%s) | %s %s | %s → %s%s | %s | %s | %.2f | %.0f %% | %s |\n", run, url, digits(ranks), machine, theirs,
        layout, (value["total"] > memory ? " †" : ""), figure, rounded(predicted), predicted / published,
        100 * (1 - value["compute"] / value["step"]), why
    }' "$work/plan.json"
}

{
  echo "| run | ranks | published layout → planned | published | predicted | ratio | links | why |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
  while IFS=$'\t' read -r run config machine ranks layout seq_len global_batch micro_batch settings their_layout published unit as_published source why; do
    [[ $settings == - ]] && settings=
    memory=$(sed -nE 's/^memory = ([0-9.e]+).*/\1/p' "configs/machines/$machine.ini")
    # The plan of a layout that does not fit has no time. A larger memory gives it one.
    sed 's/^memory = .*/memory = 1e15/' "configs/machines/$machine.ini" >"$work/$machine.ini"
    # shellcheck disable=SC2086
    "$program" plan "configs/models/$config.ini" --ranks "$ranks" --machine "$work/$machine.ini" --layouts "$layout" \
      --run.dtype=bf16 --model.seq_len="$seq_len" --train.global_batch="$global_batch" --train.micro_batch="$micro_batch" \
      $settings --json >"$work/plan.json"
    print_row
  done < <(tail -n +2 benchmarks/published.tsv)
} >"$work/table"

begin='<!-- published: written by benchmarks/published.sh -->'
end='<!-- end of published -->'
if [[ $(grep -cxF -e "$begin" -e "$end" "$page") -ne 2 ]]; then
  echo "published.sh: $page does not have the two markers" >&2
  exit 2
fi
awk -v begin="$begin" -v end="$end" -v table="$work/table" '
  $0 == end { inside = 0 }
  !inside { print }
  $0 == begin { inside = 1; while ((getline line < table) > 0) print line }' "$page" >"$work/page"
if [[ ${2:-} == --check ]]; then
  diff "$page" "$work/page" || { echo "the table of $page is out of date: run benchmarks/published.sh PROGRAM" >&2; exit 1; }
else
  cp "$work/page" "$page"
fi
