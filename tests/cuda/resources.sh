#!/usr/bin/env bash
# tests/cuda/resources.sh [FILE.cu ...]: lists the GPU resources of each kernel.
#
# It lists registers and spilled bytes per thread, and the shared memory and stack that the compiler
# allots. It does so for every architecture that the build compiles for. Memory that a launch
# requests comes on top. Without FILE, it lists all of kernels/cuda, and kernels/cuda/cutlass if
# CUTLASS_ROOT names the headers of CUTLASS. It needs no GPU, and some minutes.
#
# Exit code 1: a kernel spills more than allowed_spills. 2: there is no nvcc.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Bytes stored and loaded again per thread. A few do not matter beside the other memory traffic of a
# kernel; more means that its block or its tile is too large.
allowed_spills=64

nvcc=${CUDACXX:-$(command -v nvcc || true)}
[[ -x $nvcc ]] || {
  echo "resources.sh: there is no nvcc: install the CUDA toolkit, or name its nvcc in CUDACXX" >&2
  exit 2
}
# The options of CMakeLists.txt and cmake/cuda.cmake.
options=(-std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 -diag-suppress=554 -I. --resource-usage)
architectures=(80 90a)
if "$nvcc" --list-gpu-code | grep -qx sm_100; then architectures+=(100a); fi
for a in "${architectures[@]}"; do options+=("-gencode=arch=compute_$a,code=sm_$a"); done
cutlass=""
for folder in ${CUTLASS_ROOT:+"$CUTLASS_ROOT/include" "$CUTLASS_ROOT/cutlass_library/source/include"}; do
  [[ ! -d $folder/cutlass ]] || cutlass=$folder
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=("$@")
[[ $# -gt 0 ]] || files=(kernels/cuda/*.cu ${cutlass:+kernels/cuda/cutlass/*.cu})
compile() {  # FILE OPTIONS...
  local stem option options=()
  stem=$work/$(basename "$1" .cu)
  for option in "${@:2}"; do
    # A kernel on top of CUTLASS has one architecture.
    [[ $1 == */cutlass/* && $option == -gencode=* && $option != *90a ]] || options+=("$option")
  done
  [[ $1 != */cutlass/* ]] || options+=(-isystem "$cutlass")
  nice "$nvcc" "${options[@]}" -c "$1" -o "$stem.o" >"$stem.log" 2>&1 || { cat "$stem.log" >&2; exit 255; }
  c++filt <"$stem.log" >"$stem"
  rm "$stem.o" "$stem.log"
}
export -f compile
export nvcc work cutlass
# The largest files go first, so that the two compilers end at about the same time.
# shellcheck disable=SC2011  # the names are of tracked sources
ls -S "${files[@]}" | xargs -P 2 -I {} bash -c 'compile "$@"' compile {} "${options[@]}"

# ptxas prints three lines for each kernel:
#   Compiling entry function 'SIGNATURE' for 'sm_80'
#   N bytes stack frame, N bytes spill stores, N bytes spill loads
#   Used N registers, ..., N bytes smem
awk -v allowed="$allowed_spills" '
  # The number before `unit`; 0 if there is none.
  function before(unit,  at) {
    at = match($0, "[0-9]+ " unit)
    return at ? substr($0, at) + 0 : 0
  }
  # NAMESPACES::NAME<ARGUMENTS>(PARAMETERS) without namespaces and parameters.
  function short(name,  end, depth, c) {
    gsub(/_GLOBAL__N__[A-Za-z0-9_]+::|\(anonymous namespace\)::|sy::|cuda::|^void /, "", name)
    gsub(/__nv_bfloat16/, "bf16", name)
    for (end = length(name); end > 0; --end) {
      c = substr(name, end, 1)
      depth += (c == ")") - (c == "(")
      if (depth == 0) break
    }
    name = substr(name, 1, end - 1)
    gsub(/\([A-Za-z ]+\)/, "", name)  # casts of arguments
    return name
  }
  /Compiling entry function/ {
    split($0, part, "\047")
    file = FILENAME
    sub(/.*\//, "", file)
    kernel = sprintf("%-19s %s", file, short(part[2]))
    on = part[4]
    if (!(kernel in known)) { known[kernel]; kernels[++n] = kernel }
    if (!(on in known)) { known[on]; architectures[++m] = on }
    if (length(kernel) > width) width = length(kernel)
  }
  /bytes stack frame/ { stack = before("bytes stack"); spills = before("bytes spill stores") + before("bytes spill loads") }
  /Used [0-9]+ registers/ && kernel {
    cell[kernel, on] = sprintf("%4d %6d %5d %6d", before("registers"), before("bytes smem"), stack, spills)
    if (spills > allowed) too_many = too_many "resources.sh: " kernel " on " on ": " spills " bytes spilled, allowed are " allowed "\n"
    kernel = ""
  }
  END {
    if (!n) { print "resources.sh: the compiler reported no kernel" > "/dev/stderr"; exit 1 }
    printf "%-*s", width, ""
    for (a = 1; a <= m; ++a) printf " | %-24s", architectures[a]
    printf "\n%-19s %-*s", "file", width - 20, "kernel"
    for (a = 1; a <= m; ++a) printf " | regs shared stack spills"
    print ""
    for (k = 1; k <= n; ++k) {
      printf "%-*s", width, kernels[k]
      for (a = 1; a <= m; ++a) printf " | %24s", cell[kernels[k], architectures[a]]
      print ""
    }
    printf "%s", too_many > "/dev/stderr"
    exit too_many != ""
  }' "$work"/*
