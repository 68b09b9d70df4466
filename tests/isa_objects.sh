#!/usr/bin/env bash
# Tests that code of one instruction set cannot replace that of another.
#
#   tests/isa_objects.sh OBJECT...      each is .../switchyard_cpu_NAME.o
#
# The linker sees one symbol of each object, so that none of its functions replaces the same inline
# function elsewhere. Each object has vectors of the width of its instruction set.
set -euo pipefail
die() {
  echo "tests/isa_objects.sh: $1" >&2
  exit 1
}
[[ $# -gt 0 ]] || die "no object"
# The widest registers of each instruction set of x86.
declare -A widest=([sse42]=xmm [avx2]=ymm [avx512]=zmm [avx512bf16]=zmm [amx]=zmm)
for object in "$@"; do
  symbol=$(basename "$object" .o)
  seen=$(nm --extern-only --defined-only --format=posix "$object" | cut -d' ' -f1)
  [[ $seen == "$symbol" ]] || die "$object shows the linker more than $symbol: ${seen:0:300}"
  want=${widest[${symbol#switchyard_cpu_}]:-}
  [[ -n $want ]] || continue
  code=$(objdump --disassemble --no-show-raw-insn "$object" | grep -oE '%[xyz]mm' | sort -u | tail -1)
  [[ $code == "%$want" ]] || die "the widest registers in $object are $code, not %$want"
done
