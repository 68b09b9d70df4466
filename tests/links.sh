#!/usr/bin/env bash
# tests/links.sh: every relative link of every page leads to a file, and every anchor to a heading.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t pages < <(git ls-files '*.md' 2>/dev/null || find . -name '*.md' -not -path './build*')
anchors() { # FILE: the anchors of its headings
  sed -nE 's/^#+ +//p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^[:alnum:] _-]//g; s/ /-/g'
}
bad=0
for page in "${pages[@]}"; do
  while IFS= read -r target; do
    case $target in http*://* | mailto:* | '') continue ;; esac
    file=${target%%#*} anchor=
    [[ $target == *'#'* ]] && anchor=${target#*#}
    path=$page
    [[ -n $file ]] && path=$(dirname "$page")/$file
    if [[ ! -e $path ]]; then
      echo "$page: $target leads nowhere"
      bad=1
    elif [[ -n $anchor && $path == *.md ]] && ! anchors "$path" | grep -qxF -- "$anchor"; then
      echo "$page: $target: there is no such heading"
      bad=1
    fi
  done < <(sed -E '/^```/,/^```/d; s/`[^`]*`//g' "$page" | grep -oE '\]\([^) ]+\)' | sed -E 's/^\]\(//; s/\)$//')
done
((${#pages[@]} > 0)) || { echo "there are no pages"; bad=1; }
exit $bad
