#!/usr/bin/env bash
# tests/gpu.sh: the tests and benchmarks that need a GPU (docs/contributing/gpu-schedule.md).
#
#   tests/gpu.sh [JOB...]
#       builds what is not up to date, and runs the jobs from build/.
#   tests/gpu.sh pack [--output BUNDLE] [--assume-libs FILE] [--data DIR] [--cudnn] [--cutlass]
#                     [--built DIR [--emulator]]
#       makes one archive of the program, its tests and benchmarks, and their shared libraries.
#       --assume-libs  a list of the libraries that the machine with the card has: they are left out
#                      (default: tests/gpu/target.libs)
#       --data         a data set to pack instead of the quickstart's
#       --cudnn        compiles attention by cuDNN, too (docs/install.md)
#       --cutlass      compiles products of experts by CUTLASS, too (docs/install.md)
#       --built        packs from this build folder; default: compiles for the H100 and H200 in
#                      build-gpu/
#       --emulator     packs the programs of that folder that run on the CUDA emulator
#   tests/gpu.sh run BUNDLE [--output DIR] [JOB...]
#       unpacks the archive beside itself, and runs the jobs. Needs no cmake and no packages.
#
# JOB is a row of the table below, or one of the four calls of the schedule: first, bench, check,
# ranks. The default is all four. A job that fails or exceeds its limit does not stop the next one.
# The output of a job goes to DIR/CALL.log at once, and its result to DIR/summary.md (default DIR:
# gpu-results/).
#
# Exit code 1: a job failed; 2: bad input, no GPU, or a missing library.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Columns: call, job, limit in seconds. The limits of the four calls sum to 27 minutes. Jobs of
# the call `more` run only by name.
table="
first versions    20
first doctor      40
first ops        200
first train      160
bench operations 170
bench layers      90
bench grouped     80
bench attention   60
bench step        90
bench loading     50
check memcheck   140
check synccheck  110
check resume      90
ranks layouts_1  100
ranks layouts_2  140
ranks train_2     80
more  layouts_4 1800
more  initcheck 1800
more  racecheck 1800"

die() {
  echo "gpu.sh: $1" >&2
  exit "${2:-2}"
}

# ---- pack ----

# The programs of a bundle, and the CMake targets that make them.
programs=(switchyard test_kernels test_mpi bench_gpu)

# Copies the shared libraries that a file needs, directly and indirectly, into $stage/lib.
declare -A seen
pack_libraries() {
  local name path
  while read -r name path; do
    [[ -z ${seen[$name]-} ]] || continue
    seen[$name]=yes
    [[ -z ${assumed[$name]-} ]] || continue
    [[ -e $path ]] || die "$1 needs $name, which is neither on this machine nor among the libraries that $assume_file names" 1
    cp -L "$path" "$stage/lib/$name"
  done < <(ldd "$1" | sed -nE 's/^\t(\S+) => not found$/\1 -/p; s/^\t(\S+) => (\S+) \(.*/\1 \2/p')
}

# Packs the launcher, the plug-ins that ranks of one machine use, and the texts of their error
# messages.
pack_mpi() {
  local kind name plugins pmix
  plugins=$(ompi_info --parsable --path pkglibdir | cut -d: -f3)
  mkdir -p "$stage"/{lib/openmpi,lib/pmix,share,etc/openmpi}
  cp -L "$(command -v mpirun)" "$stage/bin/mpirun"
  for kind in "$plugins"/mca_*.so; do
    name=${kind##*/}
    # One machine needs no plug-ins for fabrics, accelerators, file systems, resource managers and
    # OpenSHMEM.
    [[ $name =~ ^mca_(atomic|memheap|scoll|spml|sshmem)_ ||
      $name =~ _(ofi|ucx|usnic|openib|verbs|psm2?|portals4|mtl|cm|slurm|tm|lsf|gridengine|hcoll|ompio|romio.*|pvfs2|lustre|gpfs|cuda|monitoring|flux|jsm)(\.so|_) ]] &&
      continue
    cp "$kind" "$stage/lib/openmpi/"
  done
  cp -rL "$(ompi_info --parsable --path pkgdatadir | cut -d: -f3)" "$stage/share/openmpi"
  cp -L "$(ompi_info --parsable --path sysconfdir | cut -d: -f3)"/*.conf "$stage/etc/openmpi/" 2>/dev/null
  pmix=$(ldd "$plugins/mca_pmix_ext3x.so" 2>/dev/null | sed -nE 's/.*libpmix\S* => (\S+) .*/\1/p')
  [[ $pmix ]] || return 0
  cp "$(dirname "$(readlink -f "$pmix")")"/pmix/*mca_*.so "$stage/lib/pmix/"
}

pack() {
  local output=gpu-bundle.tar.gz assume_file=$here/tests/gpu/target.libs built="" emulator="" suffix="" data=$here/data/quickstart
  local program file line limit size cudnn=OFF cutlass=OFF
  local -A assumed
  while [[ $# -gt 0 ]]; do
    case $1 in
      --output) output=${2:?--output needs a file} && shift 2 ;;
      --assume-libs) assume_file=${2:?--assume-libs needs a file} && shift 2 ;;
      --data) data=${2:?--data needs a folder} && shift 2 ;;
      --cudnn) cudnn=ON && shift ;;
      --cutlass) cutlass=ON && shift ;;
      --built) built=$(cd "${2:?--built needs a folder}" && pwd) || exit 2; shift 2 ;;
      --emulator) emulator=yes && shift ;;
      *) die "pack: unknown option $1: see the first lines of tests/gpu.sh" ;;
    esac
  done
  [[ -r $assume_file ]] || die "--assume-libs: $assume_file cannot be read"
  while read -r line; do
    line=${line%%#*} line=${line//[[:space:]]/}
    [[ $line ]] && assumed[$line]=yes
  done <"$assume_file"
  [[ ! $emulator || $built ]] || die "pack --emulator needs --built DIR"
  output=$(realpath -m "$output")
  if [[ ! $built ]]; then
    built=$here/build-gpu
    cmake -S "$here" -B "$built" -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON -DSWITCHYARD_CUDA=ON \
      -DSWITCHYARD_CUDA_ARCHITECTURES=90a-real -DSWITCHYARD_CUDNN="$cudnn" \
      -DSWITCHYARD_CUTLASS="$cutlass" "-DSWITCHYARD_ISAS=avx2;avx512" --log-level=NOTICE || exit 1
    cmake --build "$built" --parallel "$(nproc)" --target "${programs[@]}" || exit 1
  fi
  [[ $emulator ]] && suffix=_cuda_host
  stage=$(mktemp -d) || exit 1  # not local: the trap outlives the function
  trap 'rm -rf "$stage"' EXIT
  mkdir -p "$stage"/{bin,lib,data}
  [[ $emulator ]] && touch "$stage/emulator"
  git -C "$here" describe --always --dirty 2>/dev/null >"$stage/commit" || echo unknown >"$stage/commit"
  for program in "${programs[@]}"; do
    [[ -x $built/$program$suffix ]] || die "$built/$program$suffix is not there: build it first" 1
    cp "$built/$program$suffix" "$stage/bin/$program"
    strip "$stage/bin/$program"
  done
  pack_mpi
  if [[ -f $data/dataset.ini ]]; then
    cp -r "$data" "$stage/data/quickstart"
  else
    pack_corpus "$stage/data/quickstart" || die "the quickstart's data set could not be made" 1
  fi
  for file in "$stage"/bin/* "$stage"/lib/openmpi/*.so "$stage"/lib/pmix/*.so; do
    [[ -f $file ]] && pack_libraries "$file"
  done
  tar -C "$stage" -c . | gzip -9 >"$output" || die "$output could not be written" 1
  size=$(du -k "$output" | cut -f1)
  limit=$((63 * 1024 - $(cd "$here" && git ls-files -z 2>/dev/null | du -ck --files0-from=- 2>/dev/null | tail -1 | cut -f1)))
  echo "$output: $((size / 1024)) MiB; $(find "$stage/lib" -name '*.so*' | wc -l) libraries and plug-ins, $(du -sk "$stage" | cut -f1) KiB unpacked"
  [[ $emulator ]] || ((size <= limit)) || die "the bundle and the tracked files together are larger than 63 MiB" 1
}

pack_corpus() {  # FOLDER
  local corpus domain domains=()
  corpus=$(mktemp -d)
  "$here/launch/corpus.sh" "$corpus" >&2 || return 1
  for domain in scripture german japanese cpp; do domains+=(--domain "$domain=$corpus/$domain"); done
  "$built/switchyard" prepare "${domains[@]}" --tokenizer bytes --valid-fraction 0.05 --output "$1" >&2 || return 1
  rm -rf "$corpus"
}

# ---- the programs of a bundle, or of build/ ----

# Prints a folder of CUDA libraries that has a shared library of this name. Prints nothing if the
# loader finds it already.
folder_of() {
  local folder
  ldconfig -p 2>/dev/null | grep -q "[[:space:]]$1 " && return
  for folder in ${SWITCHYARD_LIBS+${SWITCHYARD_LIBS//:/ }} /usr/local/cuda/lib64 /usr/local/cuda/targets/*/lib; do
    [[ -e $folder/$1 ]] && echo "$folder" && return
  done
  "${SWITCHYARD_PYTHON:-python3}" - "$1" 2>/dev/null <<'PY'
import glob, os, site, sys, sysconfig
roots = {sysconfig.get_paths()["purelib"], *site.getsitepackages()}
found = [os.path.dirname(f) for root in roots for f in glob.glob(f"{root}/nvidia/**/lib/{sys.argv[1]}", recursive=True)]
print(*sorted(found)[:1])
PY
}

# Unpacks a bundle and sets the environment of its programs. The bundle's libraries come first for
# these programs only: PyTorch has its own.
use_bundle() {
  local bundle=$1 missing folder name
  root=$(realpath -m "${bundle%.tar.gz}.unpacked")
  rm -rf "$root"
  if ! { mkdir -p "$root" && tar -xzf "$bundle" -C "$root"; }; then die "$bundle cannot be unpacked"; fi
  bin=$root/bin data=$root/data/quickstart
  [[ -e $root/emulator ]] && emulator=yes
  outer_libraries=${LD_LIBRARY_PATH-}
  export LD_LIBRARY_PATH=$root/lib${outer_libraries:+:$outer_libraries} PATH=$bin:$PATH
  export OPAL_PREFIX=$root OPAL_BINDIR=$root/bin OPAL_LIBDIR=$root/lib OPAL_PKGLIBDIR=$root/lib/openmpi \
    OPAL_DATADIR=$root/share OPAL_PKGDATADIR=$root/share/openmpi OPAL_SYSCONFDIR=$root/etc/openmpi \
    OMPI_MCA_mca_base_component_path=$root/lib/openmpi PMIX_MCA_mca_base_component_path=$root/lib/pmix \
    PMIX_MCA_pcompress_base_silence_warning=1
  export OMPI_MCA_plm=isolated  # one machine, which may have no ssh
  if [[ ! $emulator ]]; then
    for name in libcublas.so.13 libcublasLt.so.13 libnccl.so.2 libcudnn.so.9 libnvrtc.so.13; do
      folder=$(folder_of "$name")
      [[ $folder && :$LD_LIBRARY_PATH: != *":$folder:"* ]] && LD_LIBRARY_PATH+=:$folder
    done
  fi
  missing=$(for name in "$bin"/* "$root"/lib/*.so*; do ldd "$name" 2>/dev/null; done | sed -nE 's/^\t(\S+) => not found$/\1/p' | sort -u)
  [[ -z $missing ]] || die "this machine lacks the shared libraries $(paste -sd, <<<"$missing" | sed 's/,/, /g'): put the folders that \
have them into SWITCHYARD_LIBS (separated by colons), or pack the bundle again without them in its --assume-libs file"
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$outer_libraries" "${SWITCHYARD_PYTHON:-python3}" >"$root/python"
  chmod +x "$root/python"
  python=$root/python
  command -v "${SWITCHYARD_PYTHON:-python3}" >/dev/null || python=none
}

use_build() {
  bin=$here/build data=$here/data/quickstart python=${SWITCHYARD_PYTHON:-python3}
  if [[ ! ${SWITCHYARD_BUILT:-} ]] && command -v cmake >/dev/null; then
    cmake -S "$here" -B "$bin" -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_TESTS=ON -DSWITCHYARD_CUDA=ON --log-level=NOTICE || exit 1
    cmake --build "$bin" --parallel "$(nproc)" --target "${programs[@]}" || exit 1
  fi
  [[ -f $data/dataset.ini ]] || built=$bin pack_corpus "$data" || exit 1
}

# ---- the jobs: each runs in the empty folder $work ----

versions() {
  echo "commit $(cat "$root/commit" 2>/dev/null || git -C "$here" describe --always --dirty)"
  uname -a
  grep -m1 'model name' /proc/cpuinfo
  command -v nvidia-smi >/dev/null && nvidia-smi
  command -v nvcc >/dev/null && nvcc --version | tail -2
  ldd "$bin/switchyard" | grep -E 'cublas|nccl'
  [[ $python == none ]] || "$python" -c 'import torch; print("PyTorch", torch.__version__, torch.version.cuda)' 2>&1 | tail -1
  return 0
}

# Exit code 1 reports problems of the machine, which are for the reader of the report.
doctor() { "$bin/switchyard" doctor || [[ $? -eq 1 ]]; }

# Tests all operations in one process. If it crashes or does not end, each unfinished case runs in
# its own process.
ops() {
  local cases case failed=0 count=0
  "$bin/test_kernels" --gtest_filter='*/cuda*' >ops.log 2>&1
  local code=$?
  grep -E '^\[  (FAILED|PASSED)' ops.log || tail -20 ops.log
  grep -B30 -E '^\[  FAILED  \] .*\(' ops.log
  grep -qE '^\[==========\] .* ran' ops.log && return "$code"
  echo "the process ended early, with exit code $code; the cases that it did not finish follow, a process each"
  mapfile -t cases < <("$bin/test_kernels" --gtest_list_tests --gtest_filter='*/cuda*' |
    awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }')
  for case in "${cases[@]}"; do
    grep -qF "[       OK ] $case " ops.log && continue
    count=$((count + 1))
    timeout 60 "$bin/test_kernels" --gtest_brief=1 --gtest_filter="$case" >case.log 2>&1 && continue
    failed=$((failed + 1))
    tail -30 case.log
    echo "failed: $case"
  done
  echo "$failed of $count cases failed"
  return 1
}

# --- training as a user runs it: the quickstart's model on one card ---
quickstart() {  # NAME OPTION...; `run=exec` replaces the shell by the program
  ${run:-} "$bin/switchyard" train "$here/configs/quickstart.ini" --parallel.ep=1 --train.micro_batch="$sequences" --data.path="$data" \
    --run.dir="$1" --train.steps="$steps" --train.global_batch="$batch" --train.warmup=4 --run.backend=cuda \
    --run.log_every=1 "${@:2}"
}
# Emulator runs are smaller (run_jobs).
steps=20 batch=16 sequences=16
losses() { sed -nE 's/.*"step":([0-9]+),.*"loss":([0-9.]+).*/\1 \2/p' "$1/metrics.jsonl"; }
# Prints the losses of two runs side by side. Fails if any two differ by more than the given share:
# SHARE in the first 8 steps, LATER (default: SHARE) after them. Rounding grows from step to step,
# because a token between two experts may change its expert.
beside() {  # A B SHARE [LATER]
  echo "step  $1  $2"
  paste -d' ' <(losses "$1") <(losses "$2" | cut -d' ' -f2) | awk -v early="$3" -v later="${4:-$3}" -v steps="$steps" '
    { print; d = $2 - $3; if (d < 0) d = -d; share = NR <= 8 ? early : later
      if (NF != 3 || d > share * $2) bad = bad " " NR }
    END { if (NR != steps) bad = bad " of " steps; if (bad) print "they differ by more than " early ", later " later ", in steps" bad; exit bad != "" }'
}
# Prints the last lines of the difference of two runs' weights. Fails if there is one.
same_weights() {  # A B
  "$bin/switchyard" diff "$1" "$2" >diff.log
  local code=$?
  tail -3 diff.log
  return "$code"
}
train() {
  local failed=0
  quickstart cpu --run.backend=cpu && quickstart f32 --run.dtype=f32 && quickstart bf16 --run.dtype=bf16 || return 1
  beside cpu f32 1e-4 0.01 || failed=1
  beside cpu bf16 0.02 || failed=1
  SWITCHYARD_GRAPHS=0 quickstart no-graphs --run.dtype=bf16 && same_weights bf16 no-graphs || failed=1
  return "$failed"
}

# A run that is killed and resumed ends with the weights of an uninterrupted run.
# A checkpoint after every step leaves enough time to kill the program before its last step.
resume() {
  local process waited=0
  quickstart whole --run.checkpoint_every=1 || return 1
  (run="exec"; quickstart killed --run.checkpoint_every=1) &
  process=$!
  until [[ -d killed/checkpoints/step-00000001 ]] || ((waited++ > 4000)); do sleep 0.02; done
  kill -9 "$process" || { echo "the run ended before it was killed: raise train.steps"; return 1; }
  wait "$process" 2>/dev/null
  quickstart killed --run.checkpoint_every=1 --run.resume=true || return 1
  same_weights whole killed
}

# --- benchmarks; a job writes its report when it ends ---
bench() {  # PARTS, separated by commas
  local small=()
  [[ $emulator ]] && small=(--small)
  "$bin/bench_gpu" --parts "$1" --python "$python" --script "$here/tests/bench/pytorch_moe_layer.py" \
    --report "$output/${1%%,*}.md" "${small[@]}"
}
operations() { bench operations; }
layers() { bench layers; }
grouped() { bench grouped; }
attention() { bench attention; }
step() { bench step,graphs; }

# Kernels that are all loaded at the start (EAGER, the program's default), beside kernels that are
# loaded at their first launch (LAZY), by turns.
loading() {
  local turn mode began seconds times steps=6
  echo "loading  whole run, first step, median of the later steps, in seconds; memory"
  for turn in 1 2 3; do
    for mode in EAGER LAZY; do
      began=$EPOCHREALTIME
      CUDA_MODULE_LOADING=$mode quickstart "$mode-$turn" --run.dtype=bf16 >out || { cat out; return 1; }
      seconds=$(awk -v began="$began" -v now="$EPOCHREALTIME" 'BEGIN { printf "%.2f", now - began }')
      mapfile -t times < <(sed -nE 's/.*"step_seconds":([0-9.e-]+),.*/\1/p' "$mode-$turn/metrics.jsonl")
      echo "$mode  $seconds, ${times[0]}, $(printf '%s\n' "${times[@]:1}" | sort -g | sed -n 3p); $(grep -m1 memory out)"
    done
  done
  same_weights EAGER-1 LAZY-1
}

# --- compute-sanitizer on Switchyard's kernels ---
# Kernels of cuBLAS and NCCL are loaded lazily and are skipped. Errors of the CUDA API are not
# reported: the product handles them, and an event that is not ready when queried is one of them.
sanitizer() {  # TOOL OPTION...
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed"; return 3; }
  CUDA_MODULE_LOADING=LAZY compute-sanitizer --tool "$@" --kernel-regex kns=sy --report-api-errors no --error-exitcode 1 \
    --print-limit 20 "$bin/test_kernels" --gtest_brief=1 --gtest_filter='*/cuda*'
}
memcheck() { sanitizer memcheck; }
synccheck() { sanitizer synccheck; }
initcheck() { sanitizer initcheck; }
racecheck() { sanitizer racecheck --racecheck-detect-level error; }

# --- ranks that share one card: correctness, not speed ---
ranks() {  # N COMMAND...
  "$here/launch/mpirun.sh" "$@" </dev/null
}
layouts() {  # NUMBER-OF-RANKS: runs the cases that ctest has for this number of ranks
  local name count dtype cases failed=0 found=0
  while read -r name count dtype cases; do
    [[ $count == "$1" ]] || continue
    found=1
    echo "$name: $count ranks, $dtype, $cases"
    ranks "$count" "$bin/test_mpi" --backend=cuda --dtype="$dtype" --gtest_brief=1 --gtest_filter="$cases" ||
      { failed=1; echo "failed: $name"; }
  done < <(sed -nE 's/^sy_layouts_on_cuda\((.*)\)$/\1/p' "$here/tests/CMakeLists.txt")
  ((found && !failed))
}
layouts_1() { layouts 1; }
layouts_2() { layouts 2; }
layouts_4() { layouts 4; }
train_2() {
  printf '#!/bin/sh\nNCCL_HOSTID=$OMPI_COMM_WORLD_RANK exec "$@"\n' >shared-card && chmod +x shared-card
  steps=$((steps < 5 ? steps : 5))
  quickstart one --run.dtype=f32 && ranks 2 ./shared-card "$bin/switchyard" train "$here/configs/quickstart.ini" \
    --parallel.ep=2 --train.micro_batch="$((sequences / 2))" --data.path="$data" --run.dir=two --train.steps=$steps \
    --train.global_batch="$batch" --train.warmup=4 --run.backend=cuda --run.log_every=1 --run.dtype=f32 && beside one two 1e-4
}

# ---- the schedule ----

# Kills the processes that are left of a session. They would take time on the card from later jobs.
end_session() {  # NUMBER
  local file text fields
  for file in /proc/[0-9]*/stat; do
    text=$(cat "$file" 2>/dev/null) || continue
    read -ra fields <<<"${text##*) }"  # state, parent, group, session
    [[ ${fields[3]} == "$1" ]] && file=${file%/stat} && kill -KILL "${file##*/}"
  done
  return 0
}

run_jobs() {  # JOB...
  local wanted=("$@") call job limit line result code began known="" chosen=()
  [[ ${#wanted[@]} -gt 0 ]] || wanted=(first bench check ranks)
  while read -r call job limit; do
    [[ $call ]] || continue
    known+=" $job"
    for line in "${wanted[@]}"; do
      [[ $line == "$job" || ($line == "$call" && $call != more) ]] && chosen+=("$call $job $limit") && break
    done
  done <<<"$table"
  for line in "${wanted[@]}"; do
    [[ " first bench check ranks$known " == *" $line "* ]] || die "there is no job $line: choose from first, bench, check, ranks, or$known"
  done
  if [[ ! $emulator ]]; then
    [[ $({ nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null || true; } | head -1) ]] ||
      { "$bin/switchyard" doctor; die "there is no NVIDIA GPU here (nvidia-smi names none)"; }
    # Tests without a device are skipped, and would count as passed.
    "$bin/test_mpi" --backend=cuda --gtest_filter=none >/dev/null ||
      { "$bin/switchyard" doctor; die "this build cannot use the GPU of this machine"; }
  else
    steps=3 batch=2 sequences=2
  fi
  mkdir -p "$output" || exit 2
  output=$(cd "$output" && pwd)
  printf '# %s, %s, commit %s\n\n| job | seconds | limit | result |\n| --- | --- | --- | --- |\n' \
    "$([[ $emulator ]] && echo 'CUDA emulator' || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)" \
    "$(date +%F)" "$(cat "$root/commit" 2>/dev/null || git -C "$here" rev-parse --short HEAD)" >>"$output/summary.md"
  trap 'end_session "$(cat "$work/session")"; rm -rf "$work"; exit 130' INT TERM
  for line in "${chosen[@]}"; do
    read -r call job limit <<<"$line"
    [[ $emulator ]] && limit=$((20 * limit))
    work=$(mktemp -d)
    began=$SECONDS
    echo "== $job" | tee -a "$output/$call.log"
    # The job has its own shell in a session of its own. `timeout` ends the shell of a job that
    # takes too long, and end_session all processes that it leaves, such as ranks.
    # shellcheck disable=SC2163  # a function of that name
    (cd "$work" && export -f "$job" "${helpers[@]}" && export bin data python here output emulator steps batch sequences root &&
      exec setsid --wait bash -uc "echo \$\$ >session; exec timeout -k 5 $limit bash -uc $job") >>"$output/$call.log" 2>&1 &
    wait $!  # a signal interrupts it
    code=$?
    end_session "$(cat "$work/session")"
    case $code in
      0) result=passed ;;
      3) result="not run: $(tail -1 "$output/$call.log")" ;;
      124 | 137) result="did not end within its limit" ;;
      *) result="failed, exit code $code" ;;
    esac
    ((code == 0)) || worst=1
    rm -rf "$work"
    printf '| %s | %d | %d | %s |\n' "$job" $((SECONDS - began)) "$limit" "$result" | tee -a "$output/summary.md"
  done
}
helpers=(die quickstart losses beside same_weights bench sanitizer ranks layouts)

root="" emulator="" worst=0 output=gpu-results
case ${1:-} in
  pack)
    pack "${@:2}"
    ;;
  run)
    [[ -f ${2:-} ]] || die "run needs a bundle, which \`tests/gpu.sh pack\` makes: ${2:-none was given}"
    bundle=$2
    shift 2
    if [[ ${1:-} == --output ]]; then
      output=${2:?--output needs a folder}
      shift 2
    fi
    use_bundle "$bundle"
    run_jobs "$@"
    ;;
  *)
    use_build
    run_jobs "$@"
    ;;
esac
exit $worst
