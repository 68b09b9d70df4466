#!/usr/bin/env bash
# Five ablations of the transformer, each a sweep over one choice with everything else as in configs/ablations.ini: norm or none,
# where it stands, which kind, the FFN at equal parameters, and positions.
#   launch/ablations.sh [--ranks N] [--output FOLDER] [--KEY=VALUE ...]
# writes FOLDER/table.md (the last validation loss of each) and a picture of the curves of each sweep, FOLDER/NAME.svg. KEY=VALUE
# overrides the configuration of all runs, for instance --train.steps=100. What has been trained is not trained again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ranks=1 output=runs/ablations overrides=()
while (($#)); do
  case $1 in
    --ranks) ranks=$2; shift 2 ;;
    --output) output=$2; shift 2 ;;
    --*.*=*) overrides+=("$1"); shift ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
switchyard=${SWITCHYARD:-build/switchyard}
[[ -x $switchyard ]] || { echo "ablations.sh: there is no $switchyard: build it, or name it by SWITCHYARD" >&2; exit 2; }

# A sweep: its name, then its runs. A run is what it is called and the key that makes it so; the first is the base.
sweeps=(
  "norm         rmsnorm                    none:--model.norm=none"
  "norm-place   pre                        post:--model.norm_position=post"
  "norm-kind    rmsnorm                    layernorm:--model.norm=layernorm"
  "ffn          swiglu                     relu:--model.ffn=relu gelu:--model.ffn=gelu silu:--model.ffn=silu"
  "positions    rope                       none:--model.position=none sinusoidal:--model.position=sinusoidal
                learned:--model.position=learned t5:--model.position=t5 alibi:--model.position=alibi"
)
mkdir -p "$output"

# The folder of a run: runs of the same key are one.
folder() { [[ $1 == *:* ]] && echo "$output/${1#*:--}" || echo "$output/base"; }
losses() { sed -nE 's/.*"step":([0-9]+).*"validation":\{"loss":([0-9.]+).*/\1 \2/p' "$1/metrics.jsonl"; }

total=$(printf '%s\n' "${sweeps[@]}" | tr -s ' \n' '\n' | grep -c :)
done=0 started=$SECONDS
train() {  # RUN
  local dir key=()
  dir=$(folder "$1")
  [[ $1 == *:* ]] && key=("${1#*:}")
  local command=("$switchyard")
  ((ranks == 1)) || command=(launch/mpirun.sh "$ranks" "$switchyard")
  "${command[@]}" train configs/ablations.ini --run.dir="$dir" --run.resume=true --quiet "${overrides[@]}" "${key[@]}"
  done=$((done + 1))
  printf 'ablations: %s is run %d of %d, about %d s left\n' "$(basename "$dir")" "$done" $((total + 1)) \
    $(((SECONDS - started) * (total + 1 - done) / done))
}
train base
for sweep in "${sweeps[@]}"; do
  read -r -d '' -a runs <<<"$sweep" || true
  for run in "${runs[@]:2}"; do train "$run"; done
done

{
  echo "| ablation | run | validation loss, nats a token | against the first |"
  echo "| --- | --- | --- | --- |"
  for sweep in "${sweeps[@]}"; do
    read -r -d '' -a runs <<<"$sweep" || true
    name=${runs[0]} first=
    curves=()
    for run in "${runs[@]:1}"; do
      losses "$(folder "$run")" >"$output/$name-${run%%:*}.dat"
      last=$(tail -1 "$output/$name-${run%%:*}.dat" | cut -d' ' -f2)
      first=${first:-$last}
      awk -v n="$name" -v r="${run%%:*}" -v a="$last" -v b="$first" \
        'BEGIN { printf "| %s | %s | %.4f | %+.4f |\n", n, r, a, a - b }'
      curves+=("'$output/$name-${run%%:*}.dat' using 1:2 with lines linewidth 2 title '${run%%:*}'")
    done
    gnuplot <<GNUPLOT
set terminal svg size 640,400 background rgb 'white'
set output '$output/$name.svg'
set title '$name'
set xlabel 'step'
set ylabel 'validation loss (nats a token)'
set grid
plot $(IFS=,; echo "${curves[*]}")
GNUPLOT
  done
} >"$output/table.md"
cat "$output/table.md"
