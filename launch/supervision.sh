# shellcheck shell=bash
# launch/supervision.sh: functions that start a training again after a failure. launch/supervise.sh,
# launch/slurm.sbatch and launch/sites/job.sh source it. Their variables, from the environment:
#   SWITCHYARD_RESTARTS        number of restarts that SWITCHYARD_RESTART_PERIOD may have (10)
#   SWITCHYARD_RESTART_PERIOD  seconds (3600)
#   SWITCHYARD_RESTART_PAUSES  seconds before the restarts after attempts without a step
#                              (1 5 15 60 300 600 1200)
# docs/guide/clusters.md has the rules as a table.

# Prints the value of a key of CONFIG and its settings, as `switchyard config` knows it, in a run
# that resumes. Prints nothing if the configuration is invalid.
config_value() {  # KEY PROGRAM CONFIG [--section.key=value ...]
  local key=$1 program=$2 argument settings=()
  for argument in "${@:4}"; do [[ $argument != --*.*=* ]] || settings+=("$argument"); done
  { "$program" config "$3" "${settings[@]}" --run.resume=true --json 2>/dev/null || true; } |
    sed -n "/^  \"$key\": {/{n;s/^ *\"value\": \"\{0,1\}\(.*[^\",]\)\"\{0,1\},\{0,1\}\$/\1/p}"
}

# The first expression that matches a line of the job's standard error makes the cause of a failure.
# A line of the launcher about a signal precedes errors of other ranks, which are its consequences.
causes=(
  's/.*process rank ([0-9]+) with PID [0-9]+ on node ([^ ]+) exited on signal ([0-9]+) *\(?([^).]*).*/rank \1 on \2 was ended by signal \3 (\4)/p'
  's/^srun: error: ([^:]+): tasks? ([0-9,-]+): (.*)/rank \2 on \1: \3/p'
  's/^ +(rank [0-9]+ on .* does not answer).*/\1/p'
  's/^switchyard: (.*)/\1/p'
  's/.*EXIT STRING: (.*)/a rank was ended: \1/p'
  's/^(ORTE .*|There are not enough slots.*)/the launcher: \1/p'
  's/^launch\/mpirun\.sh: (.*)/\1/p'
  's/.*mpirun noticed .* exited .*/a rank has left early/p'
)

# Prints the cause of the end of a job as one line.
cause_of() {  # CODE FILE_WITH_STANDARD_ERROR
  local expression cause='' rank
  case $1 in
    0) echo "the training is complete" && return ;;
    3) echo "stopped with a checkpoint, as ${request:-${stopped_by:-a signal}} asked" && return ;;
  esac
  for expression in "${causes[@]}"; do
    cause=$(grep -av '^switchyard: warning: ' "$2" | sed -nE "$expression" | head -n 1) || true
    [[ -z $cause ]] || break
  done
  if [[ -z $cause ]]; then
    (($1 > 128)) && cause="the launcher was ended by signal $(($1 - 128))" || cause="no message"
  fi
  rank=$(sed -nE 's/.*Process name: \[\[[0-9]+,[0-9]+\],([0-9]+)\].*/\1/p' "$2" | head -n 1) || true
  [[ -z $rank || $1 -eq 2 || $cause == *"rank "[0-9]* ]] || cause+=" (rank $rank ended first)"
  tr -s '[:cntrl:]' ' ' <<<"$cause" | sed 's/ *$//'
}

# Prints the last step in RUN/metrics.jsonl; 0 if there is none.
step_reached() {
  local step
  step=$(tail -n 2 "$run/metrics.jsonl" 2>/dev/null | sed -nE 's/^\{"step":([0-9]+),.*\}$/\1/p' | tail -n 1) || true
  echo "${step:-0}"
}

# Prints text that changes when a step is added to RUN/metrics.jsonl.
metrics_state() { stat -c '%s %.9Y' "$run/metrics.jsonl" 2>/dev/null || true; }

# Prints HOURS without SECONDS, in hours, as a value of run.max_hours: at least 0.001.
hours_left() {  # HOURS SECONDS
  LC_ALL=C awk -v hours="$1" -v seconds="$2" 'BEGIN { rest = hours - seconds / 3600; printf "%.3f", (rest > 0.001 ? rest : 0.001) }'
}

# Prints the number of starts of the run, and the step from which the latest start resumed.
starts() {
  { sed -nE 's/^\{"first_step": *([0-9]+).*/\1/p' "$run/provenance.jsonl" 2>/dev/null || true; } | awk 'END { print NR, $1 - 1 }'
}

# Prints the number of this batch job, as the program records it in RUN/provenance.jsonl. Prints
# nothing outside of a job.
batch_job() { echo "${SLURM_JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-${JOB_ID:-}}}}"; }

# Returns whether the batch system runs this job again, after it has trained RUN.
job_runs_again() {
  local job
  job=$(batch_job)
  [[ -n $job && -n $run ]] || return 1
  [[ -z ${SLURM_JOB_ID:-} || ${SLURM_RESTART_COUNT:-0} -gt 0 ]] || return 1  # Slurm counts
  grep -qsF "\"job\":\"$job\"" <(tr -d ' ' <"$run/provenance.jsonl" 2>/dev/null)
}

# Prints why the latest start has stopped with a checkpoint: "run.max_hours = H" or "SIGTERM to a
# rank". Prints nothing if it has not stopped so.
stop_reason() {
  { tail -n 50 "$run/train.log" 2>/dev/null || true; } | awk '
    /^== / { reason = "" }
    sub(/^stopped at step [0-9]+ as /, "") { sub(/ asked; .*/, ""); reason = $0 }
    END { print reason (reason ~ /^SIG/ ? " to a rank" : "") }'
}

# Appends a line about the latest attempt to RUN/supervisor.log, on the disk.
log_attempt() {
  local log=$run/supervisor.log
  [[ -n $run && -d $run ]] || return 0  # an input error before there was a run
  [[ -s $log ]] || printf 'time\texit_code\tresumed_from\treached\tcause\n' >>"$log"
  printf '%(%Y-%m-%dT%H:%M:%SZ)T\t%s\t%s\t%s\t%s\n' -1 "$code" "$resumed" "$reached" "$cause" >>"$log"
  sync "$log" "$run" || true
}

say() { echo "supervisor: $1" >&2; }

# Passes a signal on to the job. The first one is a request to stop: no restart follows.
request='' job=''
pass_on() {  # NAME SIGNAL
  request=$1
  [[ -z $job ]] || kill "-$2" "$job" 2>/dev/null || true
}

# Runs the command that starts the ranks once. Sets code, cause, resumed and reached. Sets
# stopped_by to the reason of a stop with a checkpoint, and computed to 1 if a step was computed.
attempt() {  # COMMAND...
  local errors copy before after metrics
  errors=$(mktemp)
  before=$(starts)
  metrics=$(metrics_state)
  exec {copied}> >(trap '' INT TERM HUP USR1; exec tee "$errors" >&2)
  copy=$!
  "$@" 2>&"$copied" {copied}>&- &
  job=$!
  exec {copied}>&-
  ! declare -F attempt_started >/dev/null || attempt_started "$job"
  # A request may come before the job's number is known.
  [[ -z $request ]] || kill -TERM "$job" 2>/dev/null || true
  while kill -0 "$job" 2>/dev/null; do wait "$job" || true; done  # a signal ends `wait`, too
  code=0
  wait "$job" || code=$?
  job=''
  for _ in {1..100}; do  # a process that the job left behind may keep the pipe open
    kill -0 "$copy" 2>/dev/null || break
    sleep 0.02
  done
  after=$(starts)
  resumed=- stopped_by='' computed=''
  [[ ${after% *} == "${before% *}" ]] || resumed=${after#* }
  reached=$(step_reached)
  [[ $code -ne 3 || $resumed == - ]] || stopped_by=$(stop_reason)
  cause=$(cause_of "$code" "$errors")
  rm -f "$errors"
  # metrics.jsonl may end with later steps of an older attempt, and lacks a step that diverges.
  [[ $resumed == - || $(metrics_state) == "$metrics" ]] || ((reached <= resumed)) || computed=1
  [[ $cause != "step $((reached + 1)): "* ]] || computed=1
}

# Returns whether the job has stopped on request: the supervisor got a signal, or the time is over.
# It is a failure if all ranks stop because a host that is shut down sent SIGTERM to its own ones.
stopped_on_request() {
  [[ -n $request || (-z $run && $code -eq 3) ]] && return
  [[ $code -eq 3 && (-n ${ranks_get_requests:-} || $stopped_by == run.max_hours*) ]]
}

# Waits, but not after a request to stop.
pause() {  # SECONDS
  local i
  for ((i = 0; i < $1; ++i)); do
    [[ -z $request ]] || return 0
    sleep 1 &  # in the foreground, it would get a terminal's Ctrl-C
    wait $! || true
  done
}

# Runs a command that starts the ranks until the training is complete (0), was asked to stop (3),
# has bad input (2), or fails for good. Returns the exit code of the last attempt, or 1 if that is 3
# without a request. The commands of later attempts end with a further setting.
# It reads this variable of the script, if it exists:
#   ranks_get_requests   if not empty, the batch system signals the ranks: exit code 3 is requested
# It calls these functions of the script, if they exist:
#   before_attempt       fails, and sets cause, if no attempt can be made
#   attempt_started JOB  gets the process of the command
#   after_attempt        fails, and sets cause, if another attempt follows that no failure causes
supervise() {  # RUN COMMAND...
  local limit=${SWITCHYARD_RESTARTS:-10} period=${SWITCHYARD_RESTART_PERIOD:-3600} pauses
  local failure last_failure='' restarts=() recent at newest=()
  # trained: a step was computed. idle: number of latest attempts without a step. same: number of
  # latest attempts that failed in the same way.
  local trained='' idle=0 same=0 seconds subject times
  read -ra pauses <<<"${SWITCHYARD_RESTART_PAUSES:-1 5 15 60 300 600 1200}"
  if [[ ! ${pauses[*]} =~ ^(0|[1-9][0-9]*)(" "(0|[1-9][0-9]*))*$ ]]; then
    say "SWITCHYARD_RESTART_PAUSES = '${pauses[*]}': give numbers of seconds, such as '1 5 15'"
    return 2
  fi
  run=$1
  if job_runs_again; then
    say "job $(batch_job) has trained $run before: it goes on from the newest checkpoint, whatever run.resume_step says"
    newest=(--run.resume_step=-1)
  fi
  trap 'pass_on SIGTERM TERM' TERM
  trap 'pass_on SIGINT TERM' INT
  trap 'pass_on SIGHUP TERM' HUP
  trap 'pass_on SIGUSR1 USR1' USR1
  while [[ -z $request ]]; do
    if declare -F before_attempt >/dev/null && ! before_attempt; then
      [[ -z $request ]] || break
      code=1 resumed=- reached=$(step_reached)
      log_attempt
      say "$cause"
      return 1
    fi
    [[ -z $request ]] || break
    attempt "${@:2}" "${newest[@]}"
    # The caller's run.resume_step is that of the first start.
    [[ $resumed == - ]] || newest=(--run.resume_step=-1)
    [[ -z $computed ]] || trained=1 idle=0
    if declare -F after_attempt >/dev/null && ! after_attempt; then
      log_attempt
      continue
    fi
    log_attempt
    if [[ $code -eq 0 ]] || stopped_on_request; then return "$code"; fi
    # A job that was killed may hold its folder for some seconds.
    if [[ $code -eq 2 && -z $trained ]] && ! [[ ${#restarts[@]} -gt 0 && $cause == *" is in use by "* ]]; then
      return 2
    fi
    failure="$reached $(sed -E 's/[0-9.]+ s\b/N s/g; s/(process|PID) [0-9]+/\1 N/g; s/ \(rank [0-9]+ ended first\)//' <<<"$cause")"
    if [[ $failure == "$last_failure" ]]; then same=$((same + 1)); else same=1; fi
    last_failure=$failure
    seconds=0
    if [[ -z $computed ]]; then
      idle=$((idle + 1))
      seconds=${pauses[idle > ${#pauses[@]} ? -1 : idle - 1]}
    fi
    # During an outage, starts fail alike for a while. A step that is computed again fails for good.
    if ((same > 1)) && { [[ -n $computed ]] || ((idle > ${#pauses[@]})) || [[ -z $trained && $code -ne 2 ]]; }; then
      subject="step $((reached + 1))" times=twice
      [[ -n $computed ]] || subject="the start after step $reached"
      ((same == 2)) || times="$same times"
      say "$subject failed $times in the same way: $cause: no further restart"
      break
    fi
    recent=()
    for at in "${restarts[@]}"; do ((at <= SECONDS - period)) || recent+=("$at"); done
    restarts=("${recent[@]}")
    if ((${#restarts[@]} >= limit)); then
      say "$limit restarts in $period s: no further one after step $reached: $cause"
      break
    fi
    restarts+=("$SECONDS")
    subject="step $reached"
    ((seconds == 0)) || subject+=" and a pause of $seconds s"
    say "restart ${#restarts[@]} of $limit in $period s, after $subject: $cause"
    pause "$seconds"
  done
  [[ -z $request ]] || return 3
  return $((code == 3 ? 1 : code))
}
