#!/usr/bin/env bash
# Code that is compiled for one instruction set cannot become another's: the linker sees one symbol of each set's object, so that
# no function in it takes the place of the same inline function elsewhere; and each object has vectors of its own width.
#   tests/isa_objects.sh OBJECT...      each is .../switchyard_cpu_NAME.o
set -euo pipefail
die() {
  echo "tests/isa_objects.sh: $1" >&2
  exit 1
}
[[ $# -gt 0 ]] || die "no object"
declare -A widest=([sse42]=xmm [avx2]=ymm [avx512]=zmm [avx512bf16]=zmm [amx]=zmm)  # the widest registers, of x86
for object in "$@"; do
  symbol=$(basename "$object" .o)
  seen=$(nm --extern-only --defined-only --format=posix "$object" | cut -d' ' -f1)
  [[ $seen == "$symbol" ]] || die "$object shows the linker more than $symbol: ${seen:0:300}"
  want=${widest[${symbol#switchyard_cpu_}]:-}
  [[ -n $want ]] || continue
  code=$(objdump --disassemble --no-show-raw-insn "$object" | grep -oE '%[xyz]mm' | sort -u | tail -1)
  [[ $code == "%$want" ]] || die "the widest registers in $object are $code, not %$want"
done
