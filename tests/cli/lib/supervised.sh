# shellcheck shell=bash
# Functions for tests of launch/supervise.sh, after tests/cli/lib/lib.sh. The test sets $supervisor,
# the process of the supervisor, whose output is in the files out and err.

# The supervisor's log, a line an attempt, without its head.
lines() { tail -n +2 "$1/supervisor.log"; }
column() { lines "$1" | cut -f "$2" | paste -sd'|'; }  # codes are column 2, steps 3 and 4, causes 5

# Returns whether the run has a whole checkpoint. One of a certain step would be deleted soon.
saved() { compgen -G "$1/checkpoints/step-????????/manifest.json" >/dev/null; }  # RUN

# Returns whether the run has started TIMES times, and has made STEPS steps since.
started() {  # RUN TIMES STEPS
  local first
  [[ -f $1/provenance.jsonl && $(wc -l <"$1/provenance.jsonl") -ge $2 ]] || return 1
  first=$(tail -n 1 "$1/provenance.jsonl" | sed -E 's/^.*"first_step": *([0-9]+).*/\1/')
  (($(steps "$1") >= first + $3 - 1))
}

# shellcheck disable=SC2154  # the test sets $supervisor
wait_until() {  # EVENT COMMAND...
  for _ in $(seq 1800); do
    if "${@:2}"; then return; fi
    kill -0 "$supervisor" 2>/dev/null || die "the supervisor ended before $1: $(cat out err)"
    sleep 0.1
  done
  die "no $1 within three minutes: $(cat out err)"
}

# Prints the processes of a run that have this name. The name of a script is that of its file.
processes_of() {  # RUN NAME
  local process name arguments
  for process in $(grep -lzxF -e "--run.dir=$1" /proc/[0-9]*/cmdline 2>/dev/null || true); do
    mapfile -d "" -t arguments <"$process" || continue
    process=${process%/cmdline}
    name=$(cat "$process/comm" 2>/dev/null) || continue
    [[ $name != bash ]] || name=${arguments[1]##*/}
    [[ $name != "$2" ]] || echo "${process#/proc/}"
  done
}
