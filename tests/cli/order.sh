#!/usr/bin/env bash
# Tests the order of writes on the disk.
# - The lines of metrics.jsonl are synced before the checkpoint of their step is renamed.
# - The run folder is synced before its first checkpoint is renamed, and so are the folders that
#   hold it, as far as they are new.
# - After an export is renamed, the folder that contains it is synced.
source "$2/tests/cli/lib/lib.sh"

# A library that appends a line to the file $ORDER for each fsync and rename.
cat >order.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char* what, const char* path) {
  char line[8192];
  const int size = snprintf(line, sizeof line, "%s %s\n", what, path);
  const int file = open(getenv("ORDER"), O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (file >= 0 && write(file, line, size) == size) close(file);
}
int fsync(int file) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (readlink(link, path, sizeof path - 1) > 0) note("sync", path);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  note("rename", to);
  return ((int (*)(int, const char*, int, const char*, unsigned))dlsym(RTLD_NEXT, "renameat2"))(from_folder, from, to_folder, to, flags);
}
int rename(const char* from, const char* to) {
  note("rename", to);
  return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
}
C
cc -shared -fPIC -o order.so order.c -ldl
make_data 60
small_config <<'INI'
[train]
steps = 2
global_batch = 2
micro_batch = 1
[run]
dir = run
backend = cpu
checkpoint_every = 1
INI
# Sets $line to the number of the first line with this call, after line LINE.
line_of() {  # CALL [LINE]
  line=$(awk -v call="$1" -v after="${2:-0}" 'NR > after && index($0, call) == 1 && length($0) == length(call) { print NR; exit }' order)
  [[ $line ]] || die "no '$1' after line ${2:-0} of $(cat order)"
}
expect_before() {  # LAST CALL [LINE]
  line_of "${@:2}"
  [[ $line -lt $1 ]] || die "'$2' in line $line, and not before line $1, of $(cat order)"
}
run=$PWD/run
expect_ok env LD_PRELOAD="$PWD/order.so" ORDER="$PWD/order" "$switchyard" train config.ini --quiet
line_of "rename run/checkpoints/step-00000001"; first=$line
line_of "rename run/checkpoints/step-00000002"; second=$line
expect_before "$first" "sync $run/metrics.jsonl"
expect_before "$second" "sync $run/metrics.jsonl" "$first"
line_of 'rename run/config.ini'
expect_before "$first" "sync $run" "$line"
expect_before "$first" "sync $PWD"

mkdir there && rm order
expect_ok env LD_PRELOAD="$PWD/order.so" ORDER="$PWD/order" "$switchyard" train config.ini --quiet --run.dir=there/new/run/
line_of "rename there/new/run/checkpoints/step-00000001"; first=$line
for folder in there there/new; do expect_before "$first" "sync $PWD/$folder"; done

rm order
expect_ok env LD_PRELOAD="$PWD/order.so" ORDER="$PWD/order" "$switchyard" export run model
line_of "rename model"
line_of "sync $PWD" "$line"
