# shellcheck shell=bash disable=SC2154
# Functions for benchmarks of whole trainings. Except read_options, they need tests/cli/lib/lib.sh.

# Reads the command line of a benchmark. Its variables of these names have the defaults of the
# options --NAME VALUE. Sets `program`. Wrong options end it with the comment that it begins with.
read_options() {  # NAMES "$@"
  local names=$1
  shift
  while [[ ${1:-} == --* ]]; do
    [[ " $names " == *" ${1#--} "* ]] || { sed -nE '2,/^set/s/^# ?//p' "$0" >&2 && exit 2; }
    printf -v "${1#--}" %s "${2:?$1 needs a value}"
    shift 2
  done
  # shellcheck disable=SC2034  # of the caller
  program=$(realpath "${1:-$root/build/switchyard}")
}

# Makes data/ from the sources of this program, and writes base.ini: the model of
# tests/bench/step.cpp, with steps of 8 x 256 tokens.
base_model() {
  mkdir text
  cat "$root"/src/*/*.cpp >text/code
  expect_ok "$switchyard" prepare --domain code=text --tokenizer bytes --output data
  cat >base.ini <<'INI'
[model]
layers = 4
d_model = 256
heads = 8
seq_len = 256
[moe]
experts = 8
top_k = 2
d_ff = 704
capacity_factor = 0
[train]
steps = 1000000
schedule = constant
lr = 1e-4
global_batch = 8
micro_batch = 8
[data]
path = data
[run]
backend = cpu
INI
}

# Prints the median, the least and the greatest of the numbers of the standard input.
summary() {  # FORMAT
  sort -g | awk -v format="$1" '{ x[NR] = $1 }
    END { printf format " (" format " to " format ")", (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2, x[1], x[NR] }'
}
