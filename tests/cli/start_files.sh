#!/usr/bin/env bash
# Tests that rank 0 alone reads the files that all ranks of a training need. The ranks are on one
# machine. Ranks with other arguments or paths read the files themselves.
source "$2/tests/cli/lib/lib.sh"

# A library that appends a line to the file $OPENED for each file that is opened for reading: the
# rank and the absolute path.
cat >opened.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef int (*Open)(const char*, int, ...);
typedef FILE* (*Fopen)(const char*, const char*);
static void note(const char* path) {
  const int error = errno;
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  char whole[PATH_MAX], line[PATH_MAX + 64];
  if (!rank) rank = getenv("PMI_RANK");
  if (rank && getenv("OPENED") && realpath(path, whole)) {
    const int size = snprintf(line, sizeof line, "%s %s\n", rank, whole);
    const int file = ((Open)dlsym(RTLD_NEXT, "open"))(getenv("OPENED"), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0 && write(file, line, size) == size) close(file);
  }
  errno = error;
}
#define OPEN(name)                                                       \
  int name(const char* path, int flags, ...) {                           \
    va_list rest;                                                        \
    va_start(rest, flags);                                               \
    const int mode = va_arg(rest, int);                                  \
    va_end(rest);                                                        \
    const int file = ((Open)dlsym(RTLD_NEXT, #name))(path, flags, mode); \
    if (file >= 0 && (flags & O_ACCMODE) == O_RDONLY) note(path);        \
    return file;                                                         \
  }
#define FOPEN(name)                                                     \
  FILE* name(const char* path, const char* mode) {                      \
    FILE* const stream = ((Fopen)dlsym(RTLD_NEXT, #name))(path, mode);  \
    if (stream && mode[0] == 'r') note(path);                           \
    return stream;                                                      \
  }
OPEN(open)
OPEN(open64)
FOPEN(fopen)
FOPEN(fopen64)
C
cc -shared -fPIC -o opened.so opened.c -ldl
# Starts a command on so many ranks. `opened` has the lines of their files.
watched() {  # RANKS ARGUMENTS...
  rm -f opened
  start "$1" env LD_PRELOAD="$PWD/opened.so" OPENED="$PWD/opened" "$switchyard" "${@:2}"
}
# Prints the ranks that opened a file, one a line.
readers() {  # FILE
  awk -v path="$(realpath "$1")" '$2 == path { print $1 }' opened | sort -nu
}
by_rank_0_alone() {  # FILE...
  local file
  for file in "$@"; do [[ $(readers "$file") == 0 ]] || die "ranks $(readers "$file" | xargs) read $file"; done
}
# Checks the files that other ranks than 0 opened: a pattern of paths below the work folder.
others_open_only() {  # PATTERN
  local files
  files=$(awk '$1 > 0 { print $2 }' opened | sed -n "s|^$(realpath .)/||p" | sort -u | grep -vxE "$1" || true)
  [[ -z $files ]] || die "ranks other than 0 open $(xargs <<<"$files")"
}

make_text text 60
expect_ok "$switchyard" prepare --domain english=text --tokenizer train-spm:290 --valid-fraction 0.3 --output data
small_config <<'INI'
[train]
steps = 2
global_batch = 8
micro_batch = 1
warmup = 1
validate_every = 2
validate_windows = 2
[run]
backend = cpu
log_every = 4
INI
mv config.ini base.ini
printf 'base = base.ini\n[moe]\nexpert_map = map.json\n[run]\nmachine = machine.ini\n' >config.ini
layers=$(awk -F= '$1 ~ /^layers/ { print $2 - 1 }' base.ini)
for layer in $(seq 0 "$layers"); do printf '{"layer":%d,"order":[3,1,2,0]}' "$layer"; done |
  sed 's/}{/},{/g; s/^/{"layers":[/; s/$/]}/' >map.json
cp "$root/configs/machines/h100.ini" machine.ini
needed_by_all=(config.ini base.ini machine.ini map.json data/dataset.ini data/tokenizer.model)
pairs='data/english\.(train|valid)\.(bin|idx)'

for ranks in 2 4; do
  expect_ok watched "$ranks" train config.ini --run.dir=run-$ranks --parallel.ep=2
  by_rank_0_alone "${needed_by_all[@]}"
  for file in data/english.{train,valid}.{bin,idx}; do
    [[ $(readers $file | xargs) == "$(seq -s ' ' 0 $((ranks - 1)))" ]] || die "not all of $ranks ranks open $file"
  done
  others_open_only "$pairs|run-$ranks/checkpoints/.*/shard-[0-9]+\.h5"
done
# A resumed training, one that starts from another run, and a chosen layout.
expect_ok watched 2 train config.ini --run.dir=run-2 --parallel.ep=2 --run.resume=true --train.steps=3 --quiet
by_rank_0_alone "${needed_by_all[@]}"
others_open_only "$pairs|run-2/checkpoints/.*/shard-[0-9]+\.h5"
expect_ok watched 2 train config.ini --run.dir=next --parallel.ep=2 --run.init_from=run-2 --quiet
by_rank_0_alone "${needed_by_all[@]}"
others_open_only "$pairs|(run-2|next)/checkpoints/.*/shard-[0-9]+\.h5"
expect_ok watched 2 train config.ini --run.dir=chosen --parallel.ep=auto --quiet
by_rank_0_alone "${needed_by_all[@]}"
others_open_only "$pairs|chosen/checkpoints/.*/shard-[0-9]+\.h5"
# A dry run for a machine, with the load of a run.
expect_ok watched 2 train config.ini --run.dir=new --parallel.ep=2 --dry-run --machine machine.ini --load run-2
by_rank_0_alone "${needed_by_all[@]}"
others_open_only "$pairs"
expect_no_file new

# An evaluation.
expect_ok watched 2 evaluate run-2 --max-windows 2 --quiet
by_rank_0_alone data/dataset.ini data/tokenizer.model
others_open_only "$pairs|run-2/checkpoints/.*/shard-[0-9]+\.h5"

# All ranks have the settings of rank 0, so that the losses are those of one rank.
losses() { sed -E 's/.*"step":([0-9]+).*"loss":([0-9.e-]+),.*/\1 \2/' "$1/metrics.jsonl" | head -2; }
expect_ok "$switchyard" train config.ini --run.dir=alone --quiet
paste <(losses alone) <(losses run-4) |
  awk '$1 != $3 || $2 - $4 > 1e-5 || $4 - $2 > 1e-5 { exit 1 } END { if (NR != 2) exit 1 }' || die "the losses differ"

# Ranks whose arguments differ read the files themselves, and so do ranks in other folders.
settings="config.ini --parallel.ep=2 --train.steps=1 --quiet"
pair() {  # ARGUMENTS-OF-0 ARGUMENTS-OF-1
  local -a first second
  read -ra first <<<"$1"
  read -ra second <<<"$2"
  local watch=(env LD_PRELOAD="$PWD/opened.so" OPENED="$PWD/opened")
  rm -f opened
  start 1 "${watch[@]}" "${first[@]}" : -np 1 "${watch[@]}" "${second[@]}"
}
expect_ok pair "$switchyard train $settings --run.dir=a --train.lr=0.001" "$switchyard train $settings --run.dir=a --train.lr=1e-3"
[[ $(readers config.ini | xargs) == "0 1" && $(readers base.ini | xargs) == "0 1" ]] || die "a rank trusts other arguments"
by_rank_0_alone data/dataset.ini
expect_error "has train.lr = 0.1, rank 0 has 0.01" \
  pair "$switchyard train $settings --run.dir=b --train.lr=0.01" "$switchyard train $settings --run.dir=b --train.lr=0.1"
cp -r data copy
expect_ok pair "$switchyard train $settings --run.dir=c" "$switchyard train $settings --run.dir=c --data.path=copy"
[[ $(readers copy/dataset.ini) == 1 && $(readers data/dataset.ini) == 0 ]] || die "a rank does not read its own data"

# Errors of these files are one message on any number of ranks.
wrong() {  # TEXT CONFIG ARGUMENTS...
  expect_error "$1" ranks 4 train "$2" --run.dir=wrong --parallel.ep=2 "${@:3}"
  expect_no_file wrong
}
wrong "cannot read the configuration nowhere.ini" nowhere.ini
printf 'base = nowhere.ini\n' >other.ini
wrong "other.ini:1: base = nowhere.ini: cannot read the configuration" other.ini
printf 'base = base.ini\n[train]\nstep = 3\n' >other.ini
wrong "other.ini:3: unknown key 'train.step'" other.ini
wrong "run.machine = nowhere: there is no such file" config.ini --run.machine=nowhere
wrong "--machine nowhere: there is no such file" config.ini --dry-run --machine nowhere
wrong "moe.expert_map: " config.ini --moe.expert_map=nowhere.json
wrong "moe.expert_map = base.ini is no expert map" config.ini --moe.expert_map=base.ini
wrong "data.path = nowhere is no data set" config.ini --data.path=nowhere
mv copy/tokenizer.model model
wrong "tokenizer.model" config.ini --data.path=copy
mv model copy/tokenizer.model
sed 's/^domains = .*/&,more/' data/dataset.ini >copy/dataset.ini
wrong "[dataset] are not those that its ids_sha256 is of" config.ini --data.path=copy
cp data/dataset.ini copy/
truncate -s -2 copy/english.train.bin
wrong "copy/english.train" config.ini --data.path=copy
