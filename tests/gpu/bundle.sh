#!/usr/bin/env bash
# bundle.sh ROOT BUILD: tests that a bundle of the CUDA emulator's programs runs from the archive
# alone.
set -euo pipefail
root=$1 build=$2
gpu=$root/tests/gpu.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

die() {
  echo "bundle.sh: $1" >&2
  exit 1
}
refuses() { # TEXT ARGUMENT...
  local text=$1 code=0
  "$gpu" "${@:2}" >out 2>&1 || code=$?
  [[ $code -eq 2 ]] || { cat out; die "exit code $code instead of 2: ${*:2}"; }
  grep -qF -- "$text" out || { cat out; die "'$text' is missing in the output: ${*:2}"; }
}

mkdir text
cp "$root"/README.md "$root"/docs/*.md text/
"$build/switchyard" prepare --domain docs=text --tokenizer bytes --valid-fraction 0.1 --output data --quiet
"$gpu" pack --built "$build" --emulator --data data --output bundle.tar.gz
tar -tzf bundle.tar.gz >content
for name in bin/switchyard bin/mpirun lib/libmpi.so.40 lib/openmpi/mca_btl_vader.so data/quickstart/dataset.ini; do
  grep -qx "./$name" content || die "$name is not in the bundle"
done
for name in libc.so.6 libstdc++.so.6 libcublas.so.13 libnccl.so.2; do
  ! grep -q "/$name\$" content || die "$name is packed, which the target has"
done

# The bundle needs only a shell of this machine: the environment has no Open MPI but the bundle's.
env -i PATH=/usr/bin:/bin HOME="$work" SWITCHYARD_PYTHON=none "$gpu" run bundle.tar.gz --output results versions doctor step loading train_2 ||
  { cat results/*.log; die "a job failed"; }
[[ $(grep -c '| passed |' results/summary.md) -eq 5 ]] || die "not every job is in the summary"
grep -q 'runs with cuBLAS 13.2.7' results/first.log || die "doctor does not tell the loaded cuBLAS"
grep -q 'built with 13.0, cuBLAS 13.1.0, NCCL 2.28.9' results/first.log || die "doctor does not tell the cuBLAS of the build"
[[ -s results/step.md ]] || die "the benchmark left no report"
[[ $(grep -cE '^(EAGER|LAZY)  [0-9.]+, [0-9.e-]+, [0-9.e-]+; .*memory' results/bench.log) -eq 6 ]] ||
  { cat results/bench.log; die "the job loading does not print six rows"; }
LD_LIBRARY_PATH=$work/bundle.unpacked/lib ldd bundle.unpacked/bin/mpirun | grep -q "$work/bundle.unpacked/lib/libopen-rte" ||
  die "the launcher does not take the packed libraries"

refuses "there is no job opps" run bundle.tar.gz opps
refuses "run needs a bundle" run missing.tar.gz
refuses "unknown option --small" pack --small
refuses "none cannot be read" pack --assume-libs none
# A library that is neither on the target nor on this machine.
mkdir broken
cp -P "$build"/{switchyard,test_kernels,test_mpi,bench_gpu}_cuda_host broken/
printf 'int f(void);\nint main(void) { return f(); }\n' >main.c
echo 'int f(void) { return 0; }' | cc -shared -fPIC -xc - -o libgone.so
cc main.c -o broken/switchyard_cuda_host -L. -lgone
rm libgone.so
code=0
"$gpu" pack --built broken --emulator --data data --output broken.tar.gz >out 2>&1 || code=$?
[[ $code -eq 1 ]] && grep -q "needs libgone.so, which is neither" out || { cat out; die "a missing library is packed"; }
