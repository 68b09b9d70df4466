#!/usr/bin/env bash
# Tests launch/supervise.sh with real ranks: restarts, the log of causes, signals, and the leftovers
# of killed launchers. The rules of restarts have tests in supervise_rules.sh. The loss of a host
# has them in tests/cluster/supervise.sh.
source "$2/tests/cli/lib/lib.sh"
# shellcheck source=tests/cli/lib/supervised.sh
source "$2/tests/cli/lib/supervised.sh"

make_data 60
small_config <<'INI'
[train]
steps = 1000000
schedule = constant
global_batch = 8
micro_batch = 2
[run]
backend = cpu
checkpoint_every = 5
log_every = 20
INI
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
mkdir temporary
export TMPDIR=$work/temporary
set -m  # background processes receive SIGINT
supervise() { timeout 300 "$root/launch/supervise.sh" "$@"; }
in_background() {  # ARGUMENTS...
  "$root/launch/supervise.sh" "$@" >out 2>err &
  supervisor=$!
}

# ---- failures of a real run ----

run=$work/run  # unique among all tests on this machine
past() { (($(steps "$run") >= $1)); }
in_background 2 "$switchyard" train config.ini --run.dir="$run" --quiet
wait_until "checkpoint" saved "$run"
# A rank is killed.
kill -KILL "$(processes_of "$run" switchyard | sort -n | tail -n 1)"
# A launcher is killed. Its files are collected, and those of others stay.
wait_until "first restart" started "$run" 2 3
records=$(echo "$TMPDIR"/switchyard-*/ompi.*/pid.*/switchyard-job)
foreign=/dev/shm/vader_segment.$(uname -n).$UID.7abc0001.0
if [[ $mpi == openmpi ]]; then
  [[ -f $records ]] || die "the launcher's folder is not below the run's own one: $(find "$TMPDIR")"
  segments=$(sed -n 's|.* \(/dev/shm/vader_segment\..*\)|\1|p' "$records")
  [[ $(wc -w <<<"$segments") -eq 2 ]] || die "the record is: $(cat "$records")"
  echo x >"$foreign"
fi
launcher=$(readlink -f "$(command -v "$mpiexec")")
launchers=$(processes_of "$run" "$(basename "$mpiexec")")
kill -KILL ${launchers:-$(processes_of "$run" "$(basename "$launcher")")}
# SIGTERM stops the run with a checkpoint, and is no failure. Another supervisor is refused.
wait_until "second restart" started "$run" 3 3
expect_exit 2 supervise 1 "$switchyard" train config.ini --run.dir="$run"
[[ $err == *"another supervisor runs $run"* ]] || die "two supervisors have a run"
kill -TERM "$supervisor"
code=0; wait "$supervisor" || code=$?
[[ $code -eq 0 ]] || die "exit code $code: $(cat out err)"
last=$(steps "$run")
[[ $(sed -E 's/^\{"step":([0-9]+),.*\}$/\1/' "$run/metrics.jsonl") == "$(seq "$last")" ]] || die "the steps are not in order"
[[ $(column "$run" 2) =~ ^[1-9][0-9]*\|[1-9][0-9]*\|3$ ]] || die "other exit codes: $(cat "$run/supervisor.log")"
[[ $(lines "$run" | tail -n 1 | cut -f 4,5) == "$last"$'\tstopped with a checkpoint, as SIGTERM asked' ]] ||
  die "another cause: $(cat "$run/supervisor.log")"
IFS="|" read -ra resumed <<<"$(column "$run" 3)"
IFS="|" read -ra reached <<<"$(column "$run" 4)"
[[ ${resumed[0]} -eq 0 && ${resumed[1]} -ge 5 && $((resumed[1] % 5 + resumed[2] % 5)) -eq 0 && ${reached[0]} -ge 5 &&
  ${reached[0]} -ge ${resumed[1]} && ${reached[1]} -gt ${resumed[1]} && ${reached[1]} -ge ${resumed[2]} ]] ||
  die "other steps: $(cat "$run/supervisor.log")"
# The weights are those of an undisturbed run.
expect_ok ranks 2 train config.ini --run.dir=alone --train.steps="$last" --quiet
expect_ok "$switchyard" diff alone "$run"
if [[ $mpi == openmpi ]]; then
  [[ $(lines "$run" | cut -f 5 | head -n 1) == "rank "[01]" on $(uname -n) was ended by signal 9 (Killed)" ]] ||
    die "another cause: $(cat "$run/supervisor.log")"
  for segment in $segments; do [[ ! -e $segment ]] || die "$segment is left"; done
  [[ -e $foreign ]] || die "a foreign file was removed"
  rm "$foreign"
fi
expect_no_file "$TMPDIR"/switchyard-*

# A step that diverges twice is named. It is not tried a third time.
expect_exit 1 supervise --restarts 5 --period 60 2 "$switchyard" train config.ini --run.dir=nan --train.lr=1e6 --train.warmup=0 --run.checkpoint_every=2 --quiet
[[ $err == *"supervisor: step "*" failed twice in the same way: step "*"the loss is nan"*": no further restart" ]] || die "another message"
[[ $(column nan 2) == "1|1" && $(column nan 3) == "0|"* ]] || die "other attempts: $(cat nan/supervisor.log)"

# A host that is shut down sends SIGTERM to its ranks. All ranks stop with a checkpoint, and start
# again. SIGINT to the supervisor is no failure, and neither is run.max_hours.
in_background 2 "$switchyard" train config.ini --run.dir="$work/interrupted" --quiet
run=$work/interrupted
wait_until "step 3" past 3
kill -TERM "$(processes_of "$run" switchyard | sort -n | tail -n 1)"
wait_until "restart" started "$run" 2 3
# A rank is killed while the data set is away, as if its file system was not mounted.
mv data away
kill -KILL "$(processes_of "$run" switchyard | sort -n | tail -n 1)"
wait_until "start without data" grep -q "a pause of 1 s: data.path = " err
mv away data
wait_until "restart with data" started "$run" 3 3
signal=INT  # bash cannot handle a signal that this test was started to ignore
((0x$(sed -n "s/^SigIgn:\t*//p" /proc/$$/status) & 2)) && signal=USR1 || true
kill -$signal "$supervisor"
code=0; wait "$supervisor" || code=$?
[[ $code -eq 0 && $(column "$run" 2) =~ ^3\|[1-9][0-9]*(\|2)+\|3$ &&
  $(column "$run" 5) == *"as SIGTERM to a rank asked|"*"data.path = "*"as SIG$signal asked" ]] ||
  die "exit code $code after SIG$signal: $(cat out err "$run/supervisor.log")"
expect_file "$run/checkpoints/step-$(printf %08d "$(steps "$run")")/manifest.json"
expect_ok supervise 1 "$switchyard" train config.ini --run.dir=limited --run.max_hours=1e-9 --quiet
[[ $(column limited 2) == 3 ]] || die "other attempts: $(cat limited/supervisor.log)"

# ---- input errors and usage ----

expect_exit 2 supervise 1 "$switchyard" train config.ini --run.dir=bad --model.layer=3
[[ $err == *"unknown key 'model.layer'"* ]] || die "another message"
expect_no_file bad
expect_exit 2 supervise 1 "$switchyard" train nowhere.ini
for arguments in "" "2" "2 program train" "--restarts x 2 program train config.ini" "program train config.ini" "--hostfile" "2 program generate x"; do
  # shellcheck disable=SC2086
  expect_exit 2 "$root/launch/supervise.sh" $arguments
  [[ $err == "usage: launch/supervise.sh "* ]] || die "no usage of supervise.sh $arguments"
done

# ---- leftovers ----

# The collector removes the files of dead jobs in its folder, and no others.
folder=$work/jobs/ompi.host.$UID
mkdir -p "$folder"
sleep 0 & dead=$!
wait "$dead"
name=/dev/shm/vader_segment.sytest$$.$UID
job() {  # FOLDER FAMILY
  mkdir "$folder/$1"
  echo "$((0x$2 << 16)).0;tcp://host" >"$folder/$1/contact.txt"
  echo x >"$name.${2}0001.0"
}
mapper=
trap 'kill $mapper $(jobs -p) 2>/dev/null || true; rm -f "$name".* "$foreign"; cd /; rm -rf "$work"' EXIT
job pid.$dead 7ab1
job pid.$$ 7ab2              # a process lives
job jf.$((0x7ab3)) 7ab3      # of a daemon of another host's launcher
mkdir "$folder/pid.0"        # it ended before it had a number
echo x >"$name.7ab40001.0"   # of a job elsewhere
if cp "$(command -v sleep)" "$name.7ab50001.0" && "$name.7ab50001.0" 0; then  # a process maps it
  "$name.7ab50001.0" 300 &
  mapper=$!
  disown
  mkdir "$folder/pid.00"
  echo "$((0x7ab5 << 16)).0;tcp://host" >"$folder/pid.00/contact.txt"
fi
expect_ok "$root/launch/collect-leftovers.sh" "$work/jobs"
left=$(cd /dev/shm && echo "${name##*/}".*)
[[ " $left " != *" ${name##*/}.7ab"[13]* ]] || die "files of dead jobs are left: $left"
for family in 7ab2 7ab4; do [[ -e $name.${family}0001.0 ]] || die "a file of $family was removed"; done
[[ -z $mapper || -e $name.7ab50001.0 ]] || die "a mapped file was removed"
for job in pid.$dead jf.$((0x7ab3)) pid.0; do expect_no_file "$folder/$job"; done
[[ -d $folder/pid.$$ ]] || die "the folder of a living job was removed"
