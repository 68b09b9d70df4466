# shellcheck shell=bash disable=SC2154
# launch/sites/job.sh: functions of the job scripts in this folder. A script sets these variables,
# which a profile of a site may replace, and then calls start_job:
#   ranks_per_node, cpus_per_rank, gpus_per_node   numbers
#   hours                                          time limit of the job
#   binding                                        array: the launcher's options that bind ranks

# shellcheck source=launch/supervision.sh
source "$(dirname "${BASH_SOURCE[0]}")/../supervision.sh"

# Prints the comment at the beginning of the script, if its first argument is --help.
help_or_go_on() {  # ARGUMENTS...
  [[ ${1:-} == --help ]] || return 0
  sed -nE '2,/^$/s/^# ?//p' "$0"
  exit 0
}

# Sets `arguments` and `program`, loads the profile, and sets the variables of OpenMP. Batch systems
# that pass no arguments to a script pass SWITCHYARD_ARGUMENTS.
start_job() {  # ARGUMENTS...
  arguments=("$@")
  if (($# == 0)); then
    read -ra arguments <<<"${SWITCHYARD_ARGUMENTS:?names no configuration: set it to CONFIG [--section.key=value ...]}"
  fi
  if [[ -n ${SWITCHYARD_SITE:-} ]]; then
    local profile=$SWITCHYARD_SITE
    [[ $profile == */* ]] || profile=${SWITCHYARD_LAUNCH:-launch}/sites/profiles/$profile.sh
    # shellcheck source=/dev/null
    source "$profile"
  fi
  ranks_per_node=${SWITCHYARD_RANKS_PER_NODE:-$ranks_per_node}
  cpus_per_rank=${SWITCHYARD_CPUS_PER_RANK:-$cpus_per_rank}
  hours=${SWITCHYARD_HOURS:-$hours}
  program=${SWITCHYARD:-build/switchyard}
  [[ -x $program ]] || program=switchyard  # the installed program
  [[ -n $cpus_per_rank ]] || return 0      # launch/mpirun.sh sets the variables
  export OMP_NUM_THREADS=$cpus_per_rank
  # Not with GPUs: the main thread would stay on one core, and so would the threads that NCCL starts
  # from it.
  ((gpus_per_node > 0)) || export OMP_PROC_BIND=close OMP_PLACES=cores
}

# Starts the ranks of the training, with the rest of the job's time as run.max_hours. The job began
# with this script, and the limit of the program begins with the program.
start_training() {  # [SETTING...]
  local limit=()
  [[ -z $hours ]] ||
    limit=("--run.max_hours=$(hours_left "$hours" "$SECONDS")")
  exec "${launcher[@]}" "$program" train "${limit[@]}" "${arguments[@]}" --run.resume=true "$@"
}

# Trains under the launcher, again after a failure, and exits with the exit code. The run writes a
# checkpoint and stops before the limit of the job, with exit code 3 (run.max_hours).
train_under() {  # LAUNCHER...
  local code=0
  launcher=("$@")
  supervise "$(config_value run.dir "$program" "${arguments[@]}")" start_training || code=$?
  if ((code == 3)); then
    echo "the run stopped with a checkpoint: submit the same job again to go on" >&2
  fi
  exit "$code"
}
