#!/usr/bin/env bash
# launch/corpus.sh FOLDER: makes the quickstart's corpus from Debian packages. It has four very
# different domains of about 1.5 MB each:
#   FOLDER/scripture   the King James Bible, a file per chapter   (bible-kjv, see install-deps.sh)
#   FOLDER/german      manual pages, a file per page              (manpages-de)
#   FOLDER/japanese    manual pages, a file per page              (manpages-ja)
#   FOLDER/cpp         headers of the C++ library, a file each    (the compiler's own)
# A domain whose folder exists is not changed.
set -euo pipefail
export LC_ALL=C
folder=${1:?usage: launch/corpus.sh FOLDER}
cap=1500000  # bytes per domain
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
# A finished domain is renamed, so the work is on the same file system.
work=$(mktemp -d -p "$folder" .unfinished.XXXXXX)
trap 'rm -rf "$work"' EXIT

# Copies files of a folder, up to `cap` bytes in all. Their order is mixed, but the same every time.
take() {
  (cd "$1" && find . -type f -printf '%s %P\n') | sort -k 2 | shuf --random-source=<(yes) |
    awk -v cap="$cap" 'total + $1 <= cap { total += $1; sub(/^[0-9]+ /, ""); print }' |
    while IFS= read -r file; do cp "$1/$file" "${file//\//-}.txt"; done
}

# Unpacks a package under $work without installing it. It needs no root, and works on minimal
# systems, which leave out the manual pages of packages they install.
unpack() {
  cd "$work"
  if ! apt-get -qq download "$1" 2>"$work/log"; then  # there are no package lists yet
    if [[ $(id -u) -eq 0 ]]; then apt-get -qq update; else sudo apt-get -qq update; fi
    apt-get -qq download "$1"
  fi
  dpkg-deb -x "$1"_*.deb "$1"
}

# Converts roff to readable text. Removes comments and layout requests, keeps headings and the
# arguments of font macros.
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
  mkdir "$work/chapters"
  # A line is "1Sm3:4 And the LORD ...". The verses of a chapter follow one another.
  awk -v to="$work/chapters" '{ split($1, place, ":"); $1 = ""; print place[2] $0 > (file = to "/" place[1]) }
                              file != last { if (last) close(last); last = file }' "$work/bible"
  take "$work/chapters"
}

manual() {  # PACKAGE LANGUAGE
  (unpack "$1")
  mkdir "$work/$2"
  find "$work/$1/usr/share/man/$2" -name '*.gz' -type f -size +1k -size -12k | sort |
    shuf -n 300 --random-source=<(yes) |
    while IFS= read -r page; do
      zcat "$page" | plain >"$work/$2/$(basename "$page" .gz)"
    done
  take "$work/$2"
}

cpp() {
  local headers=(/usr/include/c++/*)
  take "${headers[-1]}"
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
