#!/usr/bin/env bash
# Installs the packages to build, run and test Switchyard on Debian 12, as root or with sudo. If all
# of them are installed, it does nothing and needs no privileges.
#   launch/install-deps.sh [--dev]
# --dev: also the programs that check the sources, the compilers of the presets of sanitizers, and
# MPICH for tests/mpich.sh
set -euo pipefail

packages=(
  g++ cmake make pkg-config ccache
  libopenmpi-dev openmpi-bin            # ranks
  libhdf5-dev hdf5-tools                # checkpoints
  libboost-program-options-dev          # configuration and command line
  libfmt-dev nlohmann-json3-dev libssl-dev libsentencepiece-dev
  libpcre2-dev libicu-dev               # tokenizers: splitting of text, and Unicode normal forms
  zlib1g-dev libzstd-dev                # compressed text
  libgtest-dev                          # tests
  libboost-context-dev libopenblas-openmp-dev  # the CUDA backend's tests on machines without a GPU
  file dpkg-dev                         # a Debian package (cpack), which lists its libraries
  gnuplot-nox                           # the pictures of the reports
  bible-kjv                             # a domain of the quickstart's corpus
)
case ${1:-} in
  "") ;;
  # Beside Open MPI, MPICH's mpicc and mpirun have names of their own: mpicc.mpich, mpirun.mpich.
  --dev) packages+=(mpich libmpich-dev clang-format clang-tidy shellcheck clang-19 libomp-19-dev libclang-rt-19-dev gcovr strace debootstrap) ;;
  *) echo "install-deps.sh: unknown argument $1: the only option is --dev" >&2 && exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) || true
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || {
    echo "install-deps.sh: these packages are missing: install them as root, or install sudo: ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
# The output of unpacking is printed only if something fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
