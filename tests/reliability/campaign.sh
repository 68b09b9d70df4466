#!/usr/bin/env bash
# tests/reliability/campaign.sh [OPTIONS] [PROGRAM]: the fault campaign
# (docs/reliability/campaign.md). Each row runs trials of one kind of fault, which follow those of
# the journal. Exit code 1: a fault passed unnoticed. PROGRAM is build/campaign if left out.
#   --minutes N     of all rows together (60)
#   --row NAME      this row alone; may be repeated
#   --trials N      at most N trials of each row
#   --journal FILE  tests/reliability/journal.jsonl
#   --no-journal    counts nothing: trials begin at 0
#   --summary       prints the table of the journal, and runs nothing
#   --write-page    puts this table into docs/reliability/campaign.md
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
minutes=60 journal=$root/tests/reliability/journal.jsonl rows=() limit=() action=run
while [[ ${1:-} == --* ]]; do
  case $1 in
    --minutes) minutes=${2:?$1 needs a value} ;;
    --row) rows+=("${2:?$1 needs a value}") ;;
    --trials) limit=(--trials "${2:?$1 needs a value}") ;;
    --journal) journal=$(realpath "${2:?$1 needs a value}") ;;
    --no-journal) journal='' ;;
    --summary | --write-page) action=$1 ;;
    *) sed -nE '2,/^set/s/^# ?//p' "$0" >&2 && exit 2 ;;
  esac
  case $1 in --no-journal | --summary | --write-page) shift ;; *) shift 2 ;; esac
done
program=$(realpath "${1:-$root/build/campaign}")
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1
case $action in
  --summary) exec "$program" --summary --journal "$journal" ;;
  --write-page)
    "$program" --summary --journal "$journal" | bash "$root/tests/page_table.sh" "$root/docs/reliability/campaign.md"
    exit
    ;;
esac
declare -A ranks shares
while read -r name number share; do
  ranks[$name]=$number shares[$name]=$share
  names+=("$name")
done < <("$program" --list)
((${#rows[@]} > 0)) || rows=("${names[@]}")
all=0
for row in "${rows[@]}"; do all=$((all + ${shares[$row]:?there is no row $row})); done
failed=0
for row in "${rows[@]}"; do
  start=()
  ((${ranks[$row]} == 1)) || start=("$root/launch/mpirun.sh" "${ranks[$row]}")
  seconds=$(awk -v minutes="$minutes" -v share="${shares[$row]}" -v all=$all 'BEGIN { print minutes * 60 * share / all }')
  "${start[@]}" "$program" --row "$row" --seconds "$seconds" "${limit[@]}" ${journal:+--journal "$journal"} || failed=1
done
exit $failed
