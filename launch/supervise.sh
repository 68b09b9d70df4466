#!/usr/bin/env bash
# launch/supervise.sh [OPTIONS] [RANKS] PROGRAM train CONFIG ...: runs launch/mpirun.sh, and starts
# the training again after a failure, from its newest whole checkpoint. Each attempt has a line in
# RUN/supervisor.log.
# The first Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 makes the training write a checkpoint and stop, as
# does run.max_hours. The exit code is then 0, as after the last step. A signal to a rank alone does
# not end the training: the ranks stop and start again.
# With a host file, only hosts that answer take part. If a host is missing, the keys of [parallel]
# that are `auto` make a layout of the others. If it answers again, the training stops with a
# checkpoint, and goes on with it.
set -euo pipefail
usage() {
  cat >&2 <<END
usage: launch/supervise.sh [OPTIONS] [RANKS] PROGRAM train CONFIG [--section.key=value ...]
  RANKS            number of ranks; with a host file, all its slots if left out
  --hostfile FILE  starts them on the hosts of FILE, which has a line "HOST slots=N" for each
  --restarts N     at most N restarts in a period (10)
  --period SECONDS the period (3600)
  --host-wait SECONDS  how long to wait for hosts if no layout fits the others (600)
  --host-check SECONDS how often to look for a missing host (30)
END
  exit 2
}
launch=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=launch/supervision.sh
source "$launch/supervision.sh"

hostfile='' ranks=''
declare -A options=([--restarts]=SWITCHYARD_RESTARTS [--period]=SWITCHYARD_RESTART_PERIOD [--hostfile]=hostfile
                    [--host-wait]=host_wait [--host-check]=host_check)
host_wait=600 host_check=30
while [[ ${1:-} == --* ]]; do
  [[ -n ${options[$1]:-} && $# -ge 2 ]] || usage
  [[ $1 == --hostfile || $2 =~ ^[0-9]+$ ]] || usage
  printf -v "${options[$1]}" %s "$2"
  shift 2
done
if [[ ${1:-} =~ ^[1-9][0-9]*$ ]]; then
  ranks=$1
  shift
fi
[[ $# -ge 3 && $2 == train && -n $ranks$hostfile ]] || usage
program=$1 training=("${@:2}" --run.resume=true)
run=$(config_value run.dir "$program" "${@:3}")
if [[ -z $run ]]; then
  "$program" config "${@:3}" --run.resume=true >/dev/null || exit 2  # prints the error
  echo "launch/supervise.sh: run.dir is not set: give a folder for this run" >&2
  exit 2
fi
is_automatic=
for key in tp ep etp; do [[ $(config_value parallel.$key "$program" "${@:3}") != auto ]] || is_automatic=1; done

# One supervisor has a run. The launcher's files are in a folder of the run's own, so that the dead
# jobs in it are the run's.
mkdir -p "$run"
exec {lock}>>"$run/supervisor.lock"
flock -n "$lock" || { echo "launch/supervise.sh: another supervisor runs $run: wait for it" >&2; exit 2; }
base=${TMPDIR:-/tmp}/switchyard-$UID-$(readlink -f "$run" | cksum | cut -d' ' -f1)
# The system may delete a folder in /tmp that nothing uses for days.
make_base() {
  [[ -e $base ]] || mkdir -m 700 "$base"
  [[ -O $base && ! -L $base ]] || { echo "launch/supervise.sh: $base is not yours: remove it, or set TMPDIR" >&2; exit 2; }
}
make_base
export OMPI_MCA_orte_tmpdir_base=$base

# ---- hosts ----

hosts=()
declare -A slots=()
if [[ -n $hostfile ]]; then
  [[ -r $hostfile ]] || { echo "launch/supervise.sh: $hostfile cannot be read: give a file with a line \"HOST slots=N\" for each host" >&2; exit 2; }
  while read -r host number; do
    hosts+=("$host") slots[$host]=$number
  done < <(sed -nE 's/#.*//; s/^\s*(\S+)\s.*slots *= *([0-9]+).*/\1 \2/p' "$hostfile")
  [[ ${#hosts[@]} -gt 0 ]] || { echo "launch/supervise.sh: $hostfile has no line \"HOST slots=N\": write one for each host" >&2; exit 2; }
fi
# Runs a command on a host, as mpirun starts its daemons there.
on_host() {  # HOST COMMAND...
  local agent=${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes -o ConnectTimeout=5}
  if [[ $1 == localhost || $1 == "$(uname -n)" ]]; then
    "${@:2}"
  else
    # shellcheck disable=SC2086 # the agent may have options; "ssh : rsh" are alternatives
    timeout "${patience:-15}" ${agent%% :*} "$1" "$(printf '%q ' "${@:2}")"
  fi
}
# Prints those of the hosts that answer.
answering() {  # HOST...
  local host
  for host in "$@"; do on_host "$host" true >/dev/null 2>&1 </dev/null && echo "$host" & done | sort >"$base/answers"
  for host in "$@"; do ! grep -qxF -- "$host" "$base/answers" || echo "$host"; done
}
slots_of() {  # HOST...
  local host sum=0
  for host in "$@"; do sum=$((sum + slots[$host])); done
  echo $((${ranks:-sum} < sum ? ${ranks:-sum} : sum))
}
# Returns whether the training has a layout on so many ranks. Sets why if it has not. HOST computes
# it, because the host of this script may lack the device of the ranks, or their memory.
has_layout() {  # HOST RANKS
  local patience=300
  why="no key of [parallel] is auto"
  [[ -n $is_automatic ]] || return 1
  # shellcheck disable=SC2016 # the shell on the host replaces the variables
  why=$(on_host "$1" sh -c 'cd "$1" && shift && exec "$@"' sh "$PWD" "$program" "${training[@]}" \
    --dry-run --ranks "$2" --quiet 2>&1 >/dev/null </dev/null) && return 0
  why=$(sed -nE '/^switchyard: warning: /d; s/^switchyard: //p' <<<"$why" | head -n 1)
  why=${why:-the dry run on $1 failed}
  return 1
}
# Chooses the hosts of the next attempt: all that answer, or as many of them as have a layout.
before_attempt() {
  local first_reason='' answers missing_since=$SECONDS
  current=("${ranks:-}") missing=()
  make_base
  [[ -n $hostfile ]] || return 0
  while [[ -z $request ]]; do
    mapfile -t answers < <(answering "${hosts[@]}")
    mapfile -t missing < <(printf '%s\n' "${hosts[@]}" | grep -vxF -f <(printf '%s\n' "${answers[@]}"))
    first_reason=''
    while ((${#answers[@]} > 0)); do
      current=(--hostfile "$base/hosts" "$(slots_of "${answers[@]}")")
      if ((${#missing[@]} == 0)) || has_layout "${answers[0]}" "${current[2]}"; then
        for host in "${answers[@]}"; do echo "$host slots=${slots[$host]}"; done >"$base/hosts"
        ((${#missing[@]} == 0)) || say "${missing[*]} does not answer: going on with ${current[2]} ranks"
        return 0
      fi
      first_reason=${first_reason:-$why}
      unset 'answers[-1]'
    done
    cause="${missing[*]} does not answer, and there is no layout without it: ${first_reason:-no host answers}"
    ((SECONDS - missing_since < host_wait)) || return 1
    sleep "$((host_check < 5 ? host_check : 5))"
  done
  return 1
}
# Ends the attempt with a checkpoint if a missing host answers again.
watch_hosts() {  # JOB
  while sleep "$host_check" && kill -0 "$1" 2>/dev/null; do
    [[ -n $(answering "${missing[@]}") ]] || continue
    touch "$base/back"
    kill -USR1 "$1"
    return
  done
}

# ---- attempts ----

# Removes the files of dead jobs on this host, or also on the hosts of the host file.
collect() {  # [HOST...]
  local host collectors=()
  "$launch/collect-leftovers.sh" "$base"
  for host in "$@"; do
    on_host "$host" "$launch/collect-leftovers.sh" "$base" >/dev/null 2>&1 </dev/null &
    collectors+=($!)
  done
  ((${#collectors[@]} == 0)) || wait "${collectors[@]}" || true
}
start_ranks() {  # [SETTING...]
  exec setpriv --pdeathsig TERM "$launch/mpirun.sh" "${current[@]}" "$program" "${training[@]}" "$@" {lock}>&-
}
attempt_started() {  # JOB
  watcher=''
  ((${#missing[@]} > 0)) || return 0
  watch_hosts "$1" {lock}>&- &
  watcher=$!
}
after_attempt() {
  local is_back=''
  [[ -z $watcher ]] || kill -KILL -- "-$watcher" 2>/dev/null || true
  if [[ -e $base/back && $code -eq 3 && -z $request ]]; then
    is_back=1 cause="stopped with a checkpoint, as ${missing[*]} answers again"
    say "$cause"
  fi
  rm -f "$base/back"
  collect "${hosts[@]}"
  [[ -z $is_back ]]
}

set -m  # a terminal's Ctrl-C reaches this script alone
collect "${hosts[@]}"
code=0
supervise "$run" start_ranks || code=$?
rm -f "$base"/{hosts,answers,back}
rmdir "$base" 2>/dev/null || true  # not empty, or deleted
[[ $code -ne 3 ]] || code=0
exit "$code"
