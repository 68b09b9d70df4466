#!/usr/bin/env bash
# tests/tidy.sh BUILD [COMPONENT...]: runs clang-tidy over components (src/io, dist, ...).
#
# The default is all of kernels/, dist/ and src/, except kernels/cuda and dist/nccl, which are not
# always compiled, and kernels/cpu, which uses GCC's vector types. Exit code 77: clang-tidy is not
# installed.
#
# The files of a component are checked as one translation unit, because most of the time is spent
# in headers that they share. A component that has passed is skipped until its files, its headers,
# the checks or clang-tidy change. BUILD/tidy/COMPONENT.passed holds the digest of them all.
set -euo pipefail
build=$(cd "${1:?usage: tests/tidy.sh BUILD [COMPONENT...]}" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tidy=${SWITCHYARD_CLANG_TIDY:-clang-tidy}
command -v "$tidy" >/dev/null || { echo "there is no $tidy here"; exit 77; }
[[ $# -gt 0 ]] || mapfile -t components < <(find kernels dist src -name '*.cpp' ! -path 'kernels/c*/*' ! -path 'dist/nccl/*' -printf '%h\n' | sort -u)
[[ $# -eq 0 ]] || components=("$@")

# Include folders of other projects, from the compile commands of the build.
mapfile -t found < <(grep -oE -- '-(isystem |I)[^ "]+' "$build/compile_commands.json" | sort -u | tr ' ' '\n')
flags=(-std=c++20 -fopenmp "-I$PWD" "${found[@]}")
# omp.h may be that of another version of clang.
omp=$(find /usr/lib/llvm-*/lib/clang/*/include -maxdepth 1 -name omp.h 2>/dev/null | head -n 1) || true
[[ -z $omp ]] || flags+=(-idirafter "${omp%/*}")
version=$("$tidy" --version)
mkdir -p "$build/tidy"

check() {  # COMPONENT
  local name=${1//\//-} sources stamp
  sources=$build/tidy/$name.cpp
  find "$1" -maxdepth 1 -name '*.cpp' -printf '#include "%p"\n' | sort >"$sources"
  # shellcheck disable=SC2046  # each field is the name of a header
  stamp=$({ echo "$version"; cat .clang-tidy "$sources" $(c++ -MM "${flags[@]}" "$sources" | tr -d '\\\n' | cut -d: -f2)
          } | sha256sum)
  if [[ $(cat "$build/tidy/$name.passed" 2>/dev/null) != "$stamp" ]]; then
    "$tidy" --quiet "--config-file=$PWD/.clang-tidy" "$sources" -- "${flags[@]}" 2>/dev/null | sed "s|$PWD/||" || return 1
    echo "$stamp" >"$build/tidy/$name.passed"
  fi
  echo "$1 passes"
}
running=0 failed=0
for component in "${components[@]}"; do
  if ((++running > $(nproc))); then wait -n || failed=1; fi
  check "$component" &
done
for _ in "${components[@]}"; do wait -n || { [[ $? -eq 127 ]] || failed=1; }; done
exit $failed
