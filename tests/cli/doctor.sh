#!/usr/bin/env bash
# Tests switchyard doctor: on one rank, on two ranks, with devices, and with wrong settings.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1
consistent() {  # checks that exit code, problems and closing line agree
  local problems
  problems=$(grep -c '^problem: .*: ' .out) || true
  [[ $code -eq $((problems > 0)) ]] || die "exit code $code with $problems problems"
  [[ $problems -gt 0 || $out == *"no problems found" ]] || die "neither problems nor their absence"
}

# On one rank. The test cannot know whether this machine has problems.
call "$switchyard" doctor
consistent
for text in build MPI HDF5 processor "$(uname -n)"; do expect_output "$text"; done
expect_output "no launcher"
[[ $out != *"share"* ]] || die "one rank shares nothing"

# On two ranks there is one report.
call ranks 2 doctor
consistent
[[ $(grep -c '^build ' .out) -eq 1 ]] || die "not one report"
[[ $(grep -cE "^ +[01] +$(uname -n) " .out) -eq 2 ]] || die "not two ranks"
expect_output "thread level funneled"
expect_output "window    2 ranks of $(uname -n) share"
SWITCHYARD_WINDOW=0 call ranks 2 doctor
consistent
expect_output "window    none on $(uname -n): SWITCHYARD_WINDOW = 0"

call ranks 2 doctor --json
[[ $(grep -c '"rank":' .out) -eq 2 && $(grep -c '"processor":' .out) -eq 1 ]] || die "not two ranks on one host"
[[ $(grep -c '"remedy":' .out) -gt 0 || $code -eq 0 ]] || die "exit code $code without problems"
for key in flops_per_second clock_error_seconds seen_after_seconds; do
  [[ $(grep -cE "\"$key\": [0-9.e-]+" .out) -eq 2 ]] || die "no $key of both ranks"
done
for key in open_files write_bytes_per_second; do
  [[ $(grep -cE "\"$key\": [0-9.e+]+" .out) -eq 1 ]] || die "not one $key of the host"
done
for key in version thread_safe parallel locks; do expect_output "\"$key\": "; done

# Problems that the test can cause.
OMP_NUM_THREADS=1000 expect_exit 1 "$switchyard" doctor
expect_output "computes with 1000 threads"
expect_output "set OMP_NUM_THREADS="
PMI_SIZE=4 expect_exit 1 "$switchyard" doctor
expect_output "started 4 processes, of which MPI sees 1"
cores=$(lscpu -bp=socket,core | grep -v "#" | sort -u | wc -l)
if [[ $cores -ge 2 && $(env -u OMP_NUM_THREADS nproc) -ge "$cores" ]]; then
  expect_exit 1 start 2 taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -1)" "$switchyard" doctor
  expect_output "ranks 0, 1 on $(uname -n) are bound to 1 core of"
fi

limited() { (ulimit "$1" "$2" && "${@:3}"); }
expect_exit 1 limited -n 200 "$switchyard" doctor
expect_output "may have 200 open files, and with connections to 1 rank it needs more: raise ulimit -n"
expect_exit 1 limited -s 512 "$switchyard" doctor
expect_output "has a stack of 512 KiB: set ulimit -s"
HDF5_USE_FILE_LOCKING=TRUE call "$switchyard" doctor
expect_output "locks files: yes"

# Test files in the folder of the runs are removed afterwards.
mkdir runs own0 own1
for n in 1 2; do
  call ranks $n doctor --dir runs
  consistent
  expect_output "folder    $work/runs"
  [[ $(grep -cE "^$(uname -n) +[a-z0-9]+( +([0-9.]+|any)){4} +(yes|no)$" .out) -eq 1 ]] || die "the folder is not measured once"
  [[ -z $(ls -A runs) ]] || die "something is left in the folder"
done
expect_exit 1 "$switchyard" doctor --dir nowhere
expect_output "rank 0 on $(uname -n): cannot look at $work/nowhere: No such file or directory: let --dir name"
expect_exit 1 ranks 2 doctor --dir nowhere
expect_output "ranks 0, 1 on $(uname -n): cannot look at $work/nowhere"
expect_no_file nowhere
expect_exit 1 "$switchyard" doctor --dir /proc
expect_output "cannot write in /proc: "
expect_exit 1 limited -f 1000 "$switchyard" doctor --dir runs
expect_output ": File too large"
[[ -z $(ls -A runs) ]] || die "something is left of what could not be written"
expect_exit 1 start 2 bash -c 'cd own${OMPI_COMM_WORLD_RANK:-$PMI_RANK} && exec "$@"' - "$switchyard" doctor
expect_output "what rank 0 writes in $work/own1 is not seen by rank 1 on $(uname -n): let run.dir"
if [[ $(stat -f -c %T /dev/shm) == tmpfs && -w /dev/shm ]]; then
  expect_exit 1 "$switchyard" doctor --dir /dev/shm
  expect_output "/dev/shm is in memory (tmpfs)"
fi

# Eight devices, which the CUDA emulator of the tests has.
host=$(dirname "$switchyard")/switchyard_cuda_host
unset CUDA_VISIBLE_DEVICES  # it would hide these devices as well
call "$host" doctor
consistent
[[ $(grep -c ' CUDA emulator .*9.0.*compiled for 9.0 .* all$' .out) -eq 8 ]] || die "not eight devices"
expect_output "NCCL 2.28.9; kernels"
old="(gradients do not travel beside tokens: they do from NCCL 2.26 on, unless NCCL_LAUNCH_ORDER_IMPLICIT is 0)"
call env CUDA_HOST_NCCL_VERSION=22505 "$host" doctor
expect_output "NCCL 2.25.5 $old"
call env CUDA_HOST_NCCL_VERSION=22505 "$host" doctor --json
expect_output '"nccl_streams": 1'
call env NCCL_LAUNCH_ORDER_IMPLICIT=0 "$host" doctor
expect_output "NCCL 2.28.9 $old"
call start 2 "$host" doctor
consistent
[[ $(grep -cE '^ +[01] .* 0000:0[12]:00$' .out) -eq 2 ]] || die "the ranks do not take a device each"
[[ $out != *NCCL\ refuses* ]] || die "they share none"
expect_exit 1 start 9 "$host" doctor
expect_output "ranks 0, 8 on $(uname -n) share GPU 0000:01:00, which NCCL refuses: start 8 ranks there at most"

expect_error "--json" "$switchyard" doctor --jsno
expect_error "--json" ranks 2 doctor --jsno
expect_error "usage" "$switchyard" doctor something
expect_ok "$switchyard" help doctor

# A machine file that cannot be written is an error before the measurements.
expect_error "--machine nodir/m.ini: there is no folder nodir: make it first" ranks 2 doctor --machine nodir/m.ini
expect_error "--machine . is a folder: name a file" ranks 2 doctor --machine .
[[ -z $out ]] || die "the machine was examined before the error: $out"
