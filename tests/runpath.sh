#!/usr/bin/env bash
# Checks that programs and shared objects load libraries only from absolute folders. The loader
# reads an empty or relative element of a RUNPATH as the working directory.
#   tests/runpath.sh PATH...      files, and folders with everything below them
set -euo pipefail
die() {
  echo "tests/runpath.sh: $1" >&2
  exit 1
}
command -v readelf >/dev/null || die "readelf is missing: install binutils"
export LC_ALL=C

# Prints the elements of a file's RPATH and RUNPATH that are not absolute, each in quotes. Fails if
# there are any. $ORIGIN, the folder of the file itself, counts as absolute.
relative_elements() { # FILE
  readelf -dW "$1" 2>/dev/null | sed -nE 's/^.*\((RPATH|RUNPATH)\) +Library r[a-z]*path: \[(.*)\]$/\2/p' |
    awk -F: '{ for (i = 1; i <= (NF ? NF : 1); ++i) if ($i !~ /^(\/|\$ORIGIN|\$\{ORIGIN\})/) { print "\"" $i "\""; bad = 1 } }
             END { exit bad }'
}

programs=0
bad=0
while IFS= read -r -d '' file; do
  [[ $(head -c 4 "$file" | tr -d '\0') == $'\x7fELF' ]] || continue
  # Not an object file.
  [[ $(readelf -hW "$file" | sed -n 's/^ *Type: *\([A-Z]*\).*/\1/p') =~ ^(EXEC|DYN)$ ]] || continue
  programs=$((programs + 1))
  if ! elements=$(relative_elements "$file"); then
    echo "$file loads libraries from the working directory: its RUNPATH has ${elements//$'\n'/, }" >&2
    bad=$((bad + 1))
  fi
done < <(find "$@" -type d \( -name mutate -o -name CMakeFiles \) -prune -o -type f ! -name '*.o' ! -name '*.a' -size +0 \
  \( -perm /111 -o -name '*.so*' \) -print0)
((programs > 0)) || die "there is no program in $*"
((bad == 0)) || die "$bad of $programs programs: see CMAKE_BUILD_WITH_INSTALL_RPATH in CMakeLists.txt"
