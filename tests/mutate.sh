#!/usr/bin/env bash
# Mutation test: checks that the tests notice the mutants of tests/mutants.txt.
#
# It puts them into a copy of the source tree, one at a time, builds, and runs the tests that should
# notice each. The tree itself is only read, so that this script may be interrupted at any time.
#
#   tests/mutate.sh                  every mutant: about an hour on two cores
#   tests/mutate.sh 'router-*'       mutants whose name matches one of the patterns
#   tests/mutate.sh --check          checks only that each mutant still fits the code
#
# Exit code 0: all were noticed; 1: some were not, or could not be tried; 2: mutants.txt does not
# fit the code.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The copy has its own build folder at the same relative path as the tree, for ccache.
copy=$root/build/mutate
logs=$copy/logs
test_seconds=300 # a mutant may make ranks wait for ever
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} SWITCHYARD_TIMEOUT=${SWITCHYARD_TIMEOUT:-60}

die() {
  echo "tests/mutate.sh: $1" >&2
  exit 2
}

# ---- the table ----
names=()
declare -A file from to seen
read_mutants() {
  local line name="" key value
  while IFS= read -r line; do
    [[ -z $line || $line == \#* ]] && continue
    key=${line%%:*} value=${line#*:}
    value=${value#"${value%%[! ]*}"}
    case $key in
      name)
        [[ -z ${seen[$value]-} ]] || die "mutants.txt: $value is there twice: give one another name"
        name=$value
        names+=("$name")
        ;;
      file) file[$name]=$value ;;
      from) from[$name]=$value ;;
      to) to[$name]=$value ;;
      seen) seen[$name]=$value ;;
      *) die "mutants.txt: '$line': a line is name:, file:, from:, to: or seen:" ;;
    esac
  done <"$root/tests/mutants.txt"
}

# Sets `content` to the content of a file, with the line ends that $() would remove.
content_of() {
  content=$(cat "$1" && printf .)
  content=${content%.}
}

# Prints a line for each mutant that does not fit its file.
misfits() {
  local name
  for name in "${names[@]}"; do
    if [[ -z ${from[$name]-} || -z ${seen[$name]-} || ${from[$name]} == "${to[$name]-}" ]]; then
      echo "$name: it needs file:, from:, another to:, and seen:"
    else
      printf '%s\t%s\t%s\n' "$name" "${file[$name]-}" "${from[$name]}"
    fi
  done | awk -F '\t' -v root="$root/" '
    NF == 1 { print; next }
    !($2 in content) {
      content[$2] = ""
      while ((getline line < (root $2)) > 0) content[$2] = content[$2] line "\n"
      close(root $2)
    }
    { at = index(content[$2], $3) }
    !at { printf "%s: \047%s\047 is not in %s: follow the code\n", $1, $3, $2; next }
    index(substr(content[$2], at + length($3)), $3) {
      printf "%s: \047%s\047 is in %s more than once: give more of the line\n", $1, $3, $2
    }'
}
check_mutants() {
  local problems
  problems=$(misfits)
  [[ -z $problems ]] || die "correct tests/mutants.txt: $(wc -l <<<"$problems") of ${#names[@]} mutants do not fit the code:
$problems"
}

# ---- the copy ----
folders=(CMakeLists.txt cmake configs dist kernels launch src tests)
update_copy() {
  local path
  mkdir -p "$copy" "$logs"
  while IFS= read -r path; do
    cmp -s "$root/$path" "$copy/$path" || { mkdir -p "$(dirname "$copy/$path")" && cp "$root/$path" "$copy/$path"; }
  done < <(cd "$root" && find "${folders[@]}" -type f)
  while IFS= read -r path; do
    [[ -e $root/$path ]] || rm "$copy/$path"
  done < <(cd "$copy" && find "${folders[@]}" -type f)
}

build() { # SPEC...
  local spec targets=()
  for spec; do
    case $spec in
      mpi*) targets+=(test_mpi) ;;
      training* | device_hangs*) targets+=(test_training_cuda_host) ;;
      cli:faults) targets+=(switchyard faults) ;;
      campaign:*) targets+=(campaign) ;;
      # Some of its devices are emulated.
      cli:doctor) targets+=(switchyard switchyard_cuda_host) ;;
      cli:selftest) targets+=(switchyard switchyard_wrong_kernel) ;;
      cli:* | runpath) targets+=(switchyard) ;;
      *) targets+=("test_${spec%%:*}") ;;
    esac
  done
  cmake --build "$copy/build" --parallel "$(env -u OMP_NUM_THREADS nproc)" --target "${targets[@]}"
}

# Runs a test of the field `seen`:
#   kernels:FILTER, dist:FILTER, src:FILTER, fuzz:FILTER, faults:FILTER, cuda_host:FILTER,
#   workspace_cuda_host:FILTER      tests of gtest
#   mpiN:FILTER                     tests of gtest under N ranks
#   trainingN:FILTER                the same on the CUDA emulator
#   cli:NAME                        tests/cli/NAME.sh
#   campaign:ROW                    a minute of a row of the fault campaign
#   ends, device_hangs, runpath     tests/dist/ends.sh, tests/cuda_host/hangs.sh, tests/runpath.sh
run_test() { # SPEC
  local what=${1%%:*} filter=${1#*:} command
  case $what in
    mpi*) command=("$copy/launch/mpirun.sh" "${what#mpi}" "$copy/build/test_mpi" "--gtest_filter=$filter") ;;
    training*) command=("$copy/launch/mpirun.sh" "${what#training}" "$copy/build/test_training_cuda_host" "--gtest_filter=$filter") ;;
    cli) command=(bash "$copy/tests/cli/$filter.sh" "$copy/build/switchyard" "$copy") ;;
    campaign)
      command=(bash "$copy/tests/reliability/campaign.sh" --no-journal --minutes 1 --row "$filter" "$copy/build/campaign")
      ;;
    ends) command=(bash "$copy/tests/dist/ends.sh" "$copy/build/test_ends" "$copy") ;;
    runpath) command=(bash "$copy/tests/runpath.sh" "$copy/build/switchyard") ;;
    device_hangs) command=(bash "$copy/tests/cuda_host/hangs.sh" "$copy/build/test_training_cuda_host" "$copy") ;;
    *) command=("$copy/build/test_$what" "--gtest_filter=$filter") ;;
  esac
  timeout --kill-after=10 "$test_seconds" "${command[@]}" </dev/null
}

left() { # SECONDS
  printf '%dm %02ds' $(($1 / 60)) $(($1 % 60))
}

read_mutants
check_mutants
[[ ${1-} == --check ]] && exit 0
chosen=()
for name in "${names[@]}"; do
  [[ $# -eq 0 ]] && chosen+=("$name")
  for pattern; do
    # shellcheck disable=SC2053
    [[ $name == $pattern ]] && chosen+=("$name") && break
  done
done
((${#chosen[@]} > 0)) || die "no mutant has such a name: see tests/mutants.txt"

# Without a mutant, every test must pass, and no test may be an empty list.
update_copy
cmake -S "$copy" -B "$copy/build" -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_CUDA=OFF -DSWITCHYARD_TESTS=ON \
  -DSWITCHYARD_UNITY=OFF --log-level=NOTICE >"$logs/configure" 2>&1 || die "cmake failed: see $logs/configure"
mapfile -t specs < <(for name in "${chosen[@]}"; do tr ' ' '\n' <<<"${seen[$name]}"; done | sort -u)
echo "building, and running ${#specs[@]} tests without a mutant"
build "${specs[@]}" >"$logs/build" 2>&1 || die "the tree does not build: see $logs/build"
for spec in "${specs[@]}"; do
  run_test "$spec" >"$logs/test" 2>&1 || die "$spec fails without any mutant: see $logs/test"
  ! grep -q 'Running 0 tests' "$logs/test" || die "$spec names no test"
done

started=$SECONDS done=0 missed=()
for name in "${chosen[@]}"; do
  path=${file[$name]}
  content_of "$root/$path"
  printf '%s' "${content/"${from[$name]}"/"${to[$name]}"}" >"$copy/$path"
  read -ra specs <<<"${seen[$name]}"
  verdict="UNNOTICED"
  if build "${specs[@]}" >"$logs/$name" 2>&1; then
    for spec in "${specs[@]}"; do
      code=0
      run_test "$spec" >>"$logs/$name" 2>&1 || code=$?
      ((code == 0)) && continue
      verdict="noticed by $spec"
      ((code != 124 && code != 137)) || verdict+=" (ended after $test_seconds s, or killed)"
      break
    done
  else
    verdict="DOES NOT BUILD"
  fi
  cp "$root/$path" "$copy/$path"
  [[ $verdict == noticed* ]] || missed+=("$name")
  done=$((done + 1))
  ahead=$(((SECONDS - started) * (${#chosen[@]} - done) / done))
  printf '%3d/%d  %-36s %s%s\n' "$done" "${#chosen[@]}" "$name" "$verdict" \
    "$( ((ahead > 0)) && echo "   [$(left "$ahead") left]")"
done
echo "$((${#chosen[@]} - ${#missed[@]})) of ${#chosen[@]} mutants were noticed, in $(left $((SECONDS - started)))"
((${#missed[@]} == 0)) || { echo "not: ${missed[*]}; logs of builds and tests are in $logs" >&2; exit 1; }
