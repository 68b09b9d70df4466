#!/usr/bin/env bash
# launch/corpus.sh FOLDER: makes the quickstart's corpus, four domains of about 1.5 MB that look nothing alike, from Debian
# packages:
#   FOLDER/scripture   the King James Bible, a file per book        (bible-kjv, which install-deps.sh installs)
#   FOLDER/german      manual pages, a file per page                (manpages-de)
#   FOLDER/japanese    manual pages, a file per page                (manpages-ja)
#   FOLDER/cpp         headers of the C++ library, a file each      (the compiler's own)
# A domain that is there is left as it is.
set -euo pipefail
folder=${1:?usage: launch/corpus.sh FOLDER}
cap=1500000  # bytes per domain
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Files from stdin, one path a line, in an order that mixes them but is the same every time, up to `cap` bytes in all.
choose() {
  sort | shuf --random-source=<(yes) | tr '\n' '\0' | xargs -0 stat -L --format='%s %n' |
    awk -v cap="$cap" 'total + $1 <= cap { total += $1; sub(/^[0-9]+ /, ""); print }'
}

# Unpacks a package under $work without installing it: that needs no root, and minimal systems are set up to leave the
# manual pages of the packages they install out.
unpack() {
  cd "$work"
  if ! apt-get -qq download "$1" 2>"$work/log"; then  # no package lists yet
    if [[ $(id -u) -eq 0 ]]; then apt-get -qq update; else sudo apt-get -qq update; fi
    apt-get -qq download "$1"
  fi
  dpkg-deb -x "$1"_*.deb "$1"
}

# roff to readable text: comments and layout requests go, headings and the arguments of font macros stay.
plain() {
  LC_ALL=C.UTF-8 sed -E \
    -e "/^[.']\\\\\"/d; /^[.'] *\$/d; /^\.(TH|SH|SS) /{s/^\.(TH|SH|SS) +//;s/\"//g;s/^/\\n/}" \
    -e "/^\.([BI]|[BIR][BIR]|SM|SB) /{s/^\.[A-Z]+ +//;s/\"([^\"]*)\"/\1/g}" \
    -e "/^\.(PP|P|LP|TP|IP|HP|br|sp)\b/s/.*//; /^[.'] *[A-Za-z\\\\{}]/d" \
    -e 's/\\f(\(..|\[[^]]*\]|.)//g; s/\\s[-+]?[0-9]//g; s/\\-/-/g; s/\\[~ ]/ /g' \
    -e "s/\\\\\((aq|cq|oq)/'/g; s/\\\\\((lq|rq|dq)/\"/g; s/\\\\\(bu/*/g; s/\\\\\(e[mn]/-/g" \
    -e 's/\\(\(..|\[[^]]*\]|\*\(..|\*.)//g; s/\\e/\\/g; s/\\[^\\]//g' | cat -s
}

scripture() {
  (cd /usr/lib && bible -f Gen1:1-Rev22:21) >"$work/bible"
  mkdir "$work/books"
  # "1Sam3:4 text": a book's lines follow each other.
  awk -v to="$work/books" '{ book = $1; sub(/[0-9]+:[0-9]+$/, "", book); place = substr($1, length(book) + 1)
                             sub(/^[^ ]+ /, ""); print place, $0 > (to "/" book ".txt") }' "$work/bible"
  find "$work/books" -type f | choose | while IFS= read -r file; do cp "$file" .; done
}

manual() {  # PACKAGE LANGUAGE
  (unpack "$1")
  mkdir "$work/$2"
  find "$work/$1/usr/share/man/$2" -type f -size +3k -name '*.gz' | sort | shuf --random-source=<(yes) | head -n 250 |
    while IFS= read -r page; do
      zcat "$page" | plain >"$work/$2/$(basename "$page" .gz).txt"
    done
  find "$work/$2" -type f | choose | while IFS= read -r file; do cp "$file" .; done
}

cpp() {
  local headers=(/usr/include/c++/*)
  cd "${headers[-1]}"
  find "$PWD" -type f | choose | while IFS= read -r file; do
    cp "$file" "$OLDPWD/$(tr / - <<<"${file#"$PWD/"}").txt"
  done
}

domain() {  # NAME COMMAND...
  [[ -d $folder/$1 ]] && return
  mkdir "$work/$1.new"
  (cd "$work/$1.new" && "${@:2}")
  mv "$work/$1.new" "$folder/$1"
  echo "$1: $(find "$folder/$1" -type f | wc -l) files, $(du -b --max-depth=0 "$folder/$1" | cut -f1) bytes"
}
domain scripture scripture
domain german manual manpages-de de
domain japanese manual manpages-ja ja
domain cpp cpp
