#!/usr/bin/env bash
# Installs what Switchyard needs to build, run and be tested on Debian 12, as root or with sudo. Does nothing, and needs
# no privileges, where all of it is there.
set -euo pipefail

packages=(
  g++ cmake make pkg-config ccache
  libopenmpi-dev openmpi-bin            # ranks
  libhdf5-dev hdf5-tools                # checkpoints
  libboost-program-options-dev          # configuration and command line
  libfmt-dev nlohmann-json3-dev libssl-dev libsentencepiece-dev
  libpcre2-dev libicu-dev               # tokenizers: how text is divided, and Unicode's normal forms
  zlib1g-dev libzstd-dev                # compressed text
  libgtest-dev                          # tests
  libboost-context-dev libopenblas-openmp-dev  # the CUDA backend's tests on machines without a GPU
  file dpkg-dev                         # a Debian package (cpack), which names the libraries that it needs
  gnuplot-nox                           # the pictures of the reports
  bible-kjv                             # a domain of the quickstart's corpus
)

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
# What packages print while they unpack is shown only when something fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
