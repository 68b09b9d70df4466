#!/usr/bin/env bash
# launch/collect-leftovers.sh FOLDER: removes the files of dead jobs of Open MPI on this host.
# These are the folders of the jobs in FOLDER, their folder for temporary files (orte_tmpdir_base),
# and their shared memory in /dev/shm. Files of other users stay. If the launcher of a job lives, or
# a process maps its memory, its files stay, too. launch/supervise.sh calls it.
set -euo pipefail
[[ -n ${1:-} ]] || { echo "usage: launch/collect-leftovers.sh FOLDER" >&2; exit 2; }
shopt -s nullglob

# Prints the number of the job family of a job's folder; empty if it is not known.
family_of() {  # FOLDER
  local number=''
  case $1 in
    */pid.*) IFS=. read -r number _ 2>/dev/null <"$1/contact.txt" && [[ $number =~ ^[0-9]+$ ]] && echo $((number >> 16)) ;;
    */jf.*) echo "${1##*.}" ;;
  esac
  return 0
}
# Returns whether the launcher of a job's folder, or its daemon on this host, lives.
lives() {  # FOLDER FAMILY
  if [[ $1 == */pid.* ]]; then [[ -e /proc/${1##*.} ]]; else daemon_lives $(($2 << 16)); fi
}
daemon_lives() {  # JOBID
  local process
  for process in /proc/[0-9]*; do
    [[ $(tr '\0' ' ' 2>/dev/null <"$process/cmdline" || true) != *"ess_base_jobid $1 "* ]] || return 0
  done
  return 1
}
maps_any() {  # FILE...
  local file patterns=()
  for file in "$@"; do patterns+=(-e "$file"); done
  # grep fails if a process ends meanwhile.
  [[ -n $(grep -lsF "${patterns[@]}" /proc/[0-9]*/maps 2>/dev/null || true) ]]
}

for job in "$1"/ompi.*/pid.* "$1"/ompi.*/jf.*; do
  [[ -d $job && -O $job && ! -L $job ]] || continue
  family=$(family_of "$job")
  ! lives "$job" "${family:-0}" || continue
  segments=()
  if [[ -n $family ]]; then
    # vader_segment.HOST.UID.JOBID.RANK; the upper half of JOBID is the family.
    for file in /dev/shm/*."$(printf %x "$family")"[0-9a-f][0-9a-f][0-9a-f][0-9a-f].*; do [[ ! -O $file ]] || segments+=("$file"); done
  fi
  for _ in {1..20}; do  # a killed rank may take a moment
    if ((${#segments[@]} == 0)) || ! maps_any "${segments[@]}"; then break; fi
    sleep 0.1
  done
  if ((${#segments[@]} > 0)); then
    ! maps_any "${segments[@]}" || continue
    rm -f -- "${segments[@]}"
  fi
  rm -rf -- "$job"
done
find "$1" -mindepth 1 -type d -name 'ompi.*' -empty -delete 2>/dev/null || true
