# shellcheck shell=bash
# Functions for tests/cli/*.sh. ctest calls each test with the binary and the source folder. A test
# begins with
#   source "$2/tests/cli/lib/lib.sh"
# This sets $switchyard and $root, enters an empty folder, and defines the checks below. A failed
# check prints its line and the command's output, and ends the test. At the end the folder is
# removed, and background processes are killed.
set -eEuo pipefail
trap 'echo "${BASH_SOURCE[0]}:$LINENO: failed: $BASH_COMMAND" >&2' ERR  # failures outside of checks
switchyard=$1
root=$2
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; cd /; rm -rf "$work"' EXIT
cd "$work"

# Makes FOLDER with FILES short files of artificial text for `prepare`.
make_text() {  # FOLDER FILES
  local i
  mkdir "$1"
  for i in $(seq 1 "$2"); do
    echo "token $i is sent to expert $((i * 5 % 7)) and then to expert $((i * 3 % 8))" >"$1/$i"
  done
}

# Makes text/ with FILES files, and the data set data/ from it. OPTIONS: further options of
# `prepare`.
make_data() {  # FILES [OPTIONS...]
  make_text text "$1"
  expect_ok "$switchyard" prepare --domain english=text --tokenizer bytes --output data "${@:2}"
}

# The launcher of the build's MPI library, without launch/mpirun.sh: "${bare_mpirun[@]}" RANKS
# COMMAND... In a rank, ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} is its number. CMake sets
# SWITCHYARD_MPIEXEC if mpirun belongs to another MPI library.
mpiexec=${SWITCHYARD_MPIEXEC:-mpirun}
# shellcheck disable=SC2034  # tests read bare_mpirun
if [[ $("$mpiexec" --version 2>&1) == *HYDRA* ]]; then
  mpi=mpich bare_mpirun=("$mpiexec" -bind-to none -n)
else
  mpi=openmpi bare_mpirun=("$mpiexec" --allow-run-as-root --oversubscribe --bind-to none -np)
fi
# Returns whether $err, or $out with MPICH, has the report of the launcher that RANK was killed.
# MPICH's names no rank.
names_killed_rank() {  # RANK
  if [[ $mpi == mpich ]]; then
    [[ $out == *"EXIT STRING: Killed (signal 9)"* ]]
  else
    [[ $err == *"rank $1 with PID "*" on node $(uname -n) exited on signal 9"* ]]
  fi
}

# Prints the number of steps in the metrics of a run.
steps() { if [[ -f $1/metrics.jsonl ]]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }

# Start any program, or this one, on so many ranks.
start() {  # RANKS PROGRAM ARGUMENTS...
  "$root/launch/mpirun.sh" "$@"
}
ranks() {  # RANKS ARGUMENTS...
  start "$1" "$switchyard" "${@:2}"
}

# Writes config.ini: a model of a few thousand parameters that trains on data/. The other sections
# come from standard input.
small_config() {
  cat >config.ini <<'INI'
[model]
layers = 2
d_model = 32
heads = 4
seq_len = 16
[moe]
experts = 4
d_ff = 32
[data]
path = data
INI
  cat >>config.ini
}

# Ends the test with the exit code by which ctest knows a skipped test.
skip() {  # REASON
  echo "skipped: $1" >&2
  exit 77
}

die() {
  echo "${BASH_SOURCE[-1]}:${BASH_LINENO[-2]}: $1" >&2
  [[ -s $work/.out ]] && sed 's/^/  stdout: /' "$work/.out" >&2
  [[ -s $work/.err ]] && sed 's/^/  stderr: /' "$work/.err" >&2
  exit 1
}

# Runs a command. $out and $err are its output, and $code is its exit code.
call() {
  code=0
  "$@" >"$work/.out" 2>"$work/.err" </dev/null || code=$?
  out=$(tr -d '\0' <"$work/.out")
  err=$(tr -d '\0' <"$work/.err")
}

expect_exit() {  # CODE COMMAND...
  call "${@:2}"
  [[ $code -eq $1 ]] || die "exit code $code instead of $1 from: ${*:2}"
}

expect_ok() { # COMMAND...
  call "$@"
  [[ $code -eq 0 ]] || die "exit code $code instead of 0 from: $*"
}

# Expects an input error: exit code 2, and exactly one error with TEXT on stderr, on any number of
# ranks.
expect_error() {  # TEXT COMMAND...
  call "${@:2}"
  [[ $code -eq 2 ]] || die "exit code $code instead of 2 from: ${*:2}"
  [[ $err == *"$1"* ]] || die "no '$1' in the error of: ${*:2}"
  [[ $(grep -c '^switchyard: ' "$work/.err") -eq 1 ]] || die "not exactly one error message from: ${*:2}"
}

# Expects TEXT in the standard output of the last command.
expect_output() {  # TEXT
  [[ $out == *"$1"* ]] || die "no '$1' in the output"
}

expect_file() {  # PATH...
  local path
  for path in "$@"; do [[ -s $path ]] || die "no file, or an empty one: $path"; done
}

expect_no_file() {  # PATH...
  local path
  for path in "$@"; do [[ ! -e $path ]] || die "exists: $path"; done
}
