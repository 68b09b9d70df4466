#!/usr/bin/env bash
# Tests the rules of launch/supervision.sh with a program that fails as planned: limits, pauses, and
# which ends of the ranks a restart follows. Tests with fake hosts where launch/supervise.sh looks
# for a layout. No MPI takes part. tests/cli/supervise.sh tests restarts of real ranks.
source "$2/tests/cli/lib/lib.sh"
# shellcheck source=tests/cli/lib/supervised.sh
source "$2/tests/cli/lib/supervised.sh"

# Its line of `plan` for each attempt: an exit code, steps, and the error or the reason of a stop.
# Steps are "LAST" from step 0, or "FIRST-LAST", such as "7-6" for no step after step 6. "7-" fails
# before it cuts later steps off from metrics.jsonl, and "-" before its start.
cat >program <<'SH'
#!/usr/bin/env bash
echo "$*" >>attempts
read -r code steps text < <(sed -n "$(wc -l <attempts)p" plan)
mkdir -p planned
if [[ $steps != - ]]; then
  first=1 last=${steps#*-}
  [[ $steps != *-* ]] || first=${steps%-*}
  echo "{\"first_step\":$first}" >>planned/provenance.jsonl
  echo "== start $(wc -l <attempts)" >>planned/train.log
  [[ -z $last ]] || echo "{\"step\":$last,\"loss\":1}" >>planned/metrics.jsonl
fi
if [[ $code == 3 && $text != unknown ]]; then
  printf '%s\n' "stopped at step $last as $text asked; continue with --run.resume=true" "performance: steps=1" >>planned/train.log
elif [[ -n $text && $code != 3 ]]; then
  echo "switchyard: $text" >&2
fi
exit "$code"
SH
chmod +x program
export SWITCHYARD_RESTART_PAUSES="0 0 0"
# shellcheck disable=SC2016
supervise='source "$0"; supervise planned "./program" train'
follow_plan() {  # CODE [VARIABLE=VALUE...] (the plan is the standard input)
  rm -rf planned attempts
  cat >plan
  expect_exit "$1" env "${@:2}" bash -euo pipefail -c "$supervise" "$root/launch/supervision.sh"
}
expect_codes() {  # CODES
  [[ $(column planned 2) == "$1" ]] || die "other attempts than $1: $(cat planned/supervisor.log)"
}
expect_message() {  # TEXT
  [[ $err == *"supervisor: $1"* ]] || die "no message '$1'"
}

# ---- limits ----

# The number of restarts in a period is limited.
follow_plan 1 SWITCHYARD_RESTARTS=3 < <(for i in 1 2 3 4 5 6; do echo "1 $i machine $i is broken"; done)
expect_codes "1|1|1|1"
expect_message "3 restarts in 3600 s: no further one after step 4: machine 4 is broken"
[[ $(lines planned | cut -f 4,5 | tail -n 1) == $'4\tmachine 4 is broken' ]] || die "another line: $(cat planned/supervisor.log)"
[[ $(lines planned | head -n 1) =~ ^20[0-9-]{8}T[0-9:]{8}Z$'\t' ]] || die "no time: $(cat planned/supervisor.log)"
# Older restarts do not count.
follow_plan 0 SWITCHYARD_RESTARTS=1 SWITCHYARD_RESTART_PERIOD=0 < <(for i in 1 2 3; do echo "1 $i machine $i is broken"; done; echo 0 4)
expect_codes "1|1|1|0"
[[ $(sort attempts | uniq -c | sed 's/^ *//' | paste -sd'|') == "1 train|3 train --run.resume_step=-1" ]] || die "other commands: $(cat attempts)"

# ---- the same failure ----

# The same message at another step, or another one at the same step, is another failure.
follow_plan 1 < <(printf '%s\n' "1 5 a" "1 6 a" "1 6 b" "1 6 a" "1 6 a" "0 9")
expect_codes "1|1|1|1|1"
expect_message "step 7 failed twice in the same way: a"
# Times and process numbers do not make another failure.
follow_plan 1 < <(printf '%s\n' "1 5 rank 1 on b has waited 4.5 s" "1 5 rank 1 on b has waited 4.7 s" "0 9")
expect_message "step 6 failed twice in the same way: rank 1 on b has waited 4.7 s"
# A step that diverges after a checkpoint is computed, although it has no metrics.
follow_plan 1 < <(printf '%s\n' "1 5 step 6: the loss is nan" "1 6-5 step 6: the loss is nan" "0 9")
expect_codes "1|1"
expect_message "step 6 failed twice in the same way: step 6: the loss is nan"
# Starts without a step may fail alike during an outage.
follow_plan 0 < <(printf '%s\n' "1 5 network" "1 6-5 network" "1 - network" "0 6-9")
expect_codes "1|1|1|0"
# They may leave later steps of an older attempt in metrics.jsonl.
follow_plan 0 < <(printf '%s\n' "1 8 network" "1 6- network" "1 6- network" "0 6-9")
expect_codes "1|1|1|0"
# A step fails twice only if it is computed again.
follow_plan 1 < <(printf '%s\n' "1 5 network" "1 - network" "1 5-5 network" "0 9")
expect_codes "1|1|1"
expect_message "step 6 failed 3 times in the same way: network: no further restart"
# After the last pause they are named. Another cause is not.
follow_plan 1 < <(printf '%s\n' "1 5 a" "1 - a" "1 - b" "1 - c" "1 - d" "1 - e" "1 - e" "0 9")
expect_codes "1|1|1|1|1|1|1"
expect_message "the start after step 5 failed twice in the same way: e: no further restart"
follow_plan 1 < <(echo "1 5 b"; for _ in 1 2 3 4 5; do echo "1 - a"; done)
expect_codes "1|1|1|1|1"
expect_message "the start after step 5 failed 4 times in the same way: a: no further restart"
# The limit of restarts counts them, too.
follow_plan 1 SWITCHYARD_RESTARTS=2 < <(echo "1 5 b"; for _ in 1 2 3 4 5; do echo "1 - a"; done)
expect_codes "1|1|1"
expect_message "2 restarts in 3600 s: no further one after step 5: a"
# If no step was ever made, no pause waits for the end of an outage.
follow_plan 1 < <(for _ in 1 2 3; do echo "1 - no device"; done)
[[ $(wc -l <attempts) -eq 2 ]] || die "$(wc -l <attempts) attempts"
expect_message "the start after step 0 failed twice in the same way: no device"

# ---- pauses ----

# A restart after a step comes at once. The pauses grow, and begin anew after a step.
begin=$EPOCHREALTIME
follow_plan 0 SWITCHYARD_RESTART_PAUSES="1 2" < <(printf '%s\n' "1 5 a" "1 6 b" "1 7-6 b" "1 - c" "1 7-8 d" "1 - e" "0 9-9")
expect_codes "1|1|1|1|1|1|0"
[[ $(sed -nE 's/^supervisor: restart [0-9] of 10 in 3600 s, after (.*): .$/\1/p' .err | paste -sd'|') == \
  "step 5|step 6|step 6 and a pause of 1 s|step 6 and a pause of 2 s|step 8|step 8 and a pause of 1 s" ]] || die "other pauses"
awk -v begin="$begin" -v now="$EPOCHREALTIME" 'BEGIN { exit now - begin < 4 }' || die "the pauses are too short"
# A request to stop ends a pause.
rm -rf planned attempts
printf '%s\n' "1 5 a" "1 - b" "0 9" >plan
SWITCHYARD_RESTART_PAUSES=100 bash -euo pipefail -c "$supervise" "$root/launch/supervision.sh" >out 2>err &
supervisor=$!
wait_until "pause" grep -q "pause of 100 s" err
kill -TERM "$supervisor"
begin=$SECONDS code=0
wait "$supervisor" || code=$?
[[ $code -eq 3 && $((SECONDS - begin)) -lt 60 && $(wc -l <attempts) -eq 2 ]] || die "exit code $code after $((SECONDS - begin)) s: $(cat err attempts)"
for pauses in "1 x" 08 -1 " "; do
  follow_plan 2 SWITCHYARD_RESTART_PAUSES="$pauses" < <(echo "0 9")
  expect_message "SWITCHYARD_RESTART_PAUSES = '${pauses% }': give numbers of seconds"
  expect_no_file attempts
done

# ---- exit code 3: stopped with a checkpoint ----

# The run's own limit of time ends the supervisor. A signal that only the ranks got does not.
follow_plan 3 < <(echo "3 5 run.max_hours = 0.5"; echo "0 9")
expect_codes 3
[[ $(column planned 5) == "stopped with a checkpoint, as run.max_hours = 0.5 asked" ]] || die "another cause: $(cat planned/supervisor.log)"
follow_plan 0 < <(printf '%s\n' "3 5 SIGTERM" "3 6-7 unknown" "0 8-9")
expect_codes "3|3|0"
[[ $(column planned 5) == "stopped with a checkpoint, as SIGTERM to a rank asked|stopped with a checkpoint, as a signal asked|"* ]] ||
  die "another cause: $(cat planned/supervisor.log)"
# The reason of an older start does not count.
follow_plan 3 < <(printf '%s\n' "3 5 SIGTERM" "3 6-6 run.max_hours = 1" "0 9")
expect_codes "3|3"
rm -rf planned attempts
mkdir planned
printf '%s\n' "== start" "stopped at step 3 as run.max_hours = 1 asked; continue with --run.resume=true" >planned/train.log
printf '%s\n' "3 - unknown" "0 9" >plan
expect_exit 0 bash -euo pipefail -c "$supervise" "$root/launch/supervision.sh"
expect_codes "3|0"
# If the ranks stop again and again, the end is no success.
follow_plan 1 SWITCHYARD_RESTARTS=2 < <(for i in 1 2 3 4; do echo "3 $i-$i SIGTERM"; done)
expect_codes "3|3|3"
expect_message "2 restarts in 3600 s: no further one after step 3: stopped with a checkpoint, as SIGTERM to a rank asked"
# Slurm signals the ranks, and queues the job again.
supervise="ranks_get_requests=1; $supervise" follow_plan 3 < <(echo "3 5 SIGUSR1"; echo "0 9")
expect_codes 3

# ---- exit code 2: bad input ----

# If no step was made, it is not tried again.
follow_plan 2 < <(echo "2 - unknown key"; echo "0 9")
expect_codes 2
[[ $(column planned 5) == "unknown key" ]] || die "another cause: $(cat planned/supervisor.log)"
# After a step the same configuration was good: its files may be away for a while.
follow_plan 0 < <(printf '%s\n' "1 5 a" "2 - data.path = x is no data set" "2 - data.path = x is no data set" "0 9")
expect_codes "1|2|2|0"
# If they stay away, it is named.
follow_plan 2 < <(echo "1 5 a"; for _ in 1 2 3 4 5; do echo "2 - data.path = x is no data set"; done)
expect_codes "1|2|2|2|2"
expect_message "the start after step 5 failed 4 times in the same way: data.path = x is no data set: no further restart"
# A job that was killed may hold the folder of a run without a step.
follow_plan 0 < <(printf '%s\n' "1 1-0 a" "2 - planned is in use by process 7" "0 9")
expect_codes "1|2|0"
follow_plan 2 < <(echo "2 - planned is in use by process 7"; echo "0 9")
expect_codes 2

# ---- where a layout is looked for ----

# Hosts "lost" and "other". The program finds a device on "other" alone.
cat >agent <<SH
#!/bin/sh
[ "\$1" = other ] || exit 255
shift
cd / && HAS_DEVICE=1 sh -c "\$*"
SH
cat >launcher <<SH
#!/bin/sh
[ "\$1" = --version ] || echo "\$*" >>"$work/launched"
SH
cat >on_device <<SH
#!/bin/sh
[ "\$1" != config ] || exec "$switchyard" "\$@"
echo "switchyard: warning: this is no reason" >&2
[ -n "\$HAS_DEVICE" ] || { echo "switchyard: run.backend = cuda, but there is no GPU" >&2; exit 2; }
[ -z "\$IS_TOO_LARGE" ] || { echo "switchyard: it is too large" >&2; exit 1; }
SH
chmod +x agent launcher on_device
small_config <<'INI'
[parallel]
tp = auto
INI
printf '%s slots=2\n' lost other >hostfile
export OMPI_MCA_plm_rsh_agent=$work/agent SWITCHYARD_MPIEXEC=$work/launcher TMPDIR=$work
expect_ok "$root/launch/supervise.sh" --hostfile hostfile --host-wait 0 ./on_device train config.ini --run.dir=hosts
expect_message "lost does not answer: going on with 2 ranks"
# Between two attempts, the system may delete the folder of the launcher's files.
cat >cleaner <<SH
#!/bin/sh
[ "\$1" != --version ] || exit 0
echo "\$*" >>"$work/launched"
rm -r "$work"/switchyard-*
[ "\$(wc -l <"$work/launched")" -ge 2 ]
SH
chmod +x cleaner
rm launched
SWITCHYARD_MPIEXEC=$work/cleaner expect_ok "$root/launch/supervise.sh" --hostfile hostfile --host-wait 0 ./on_device train config.ini \
  --run.dir=hosts --run.resume_step=3
[[ $(wc -l <launched) -eq 2 ]] || die "other attempts: $(cat launched)"
rm launched
expect_ok "$root/launch/supervise.sh" --hostfile hostfile --host-wait 0 ./on_device train config.ini --run.dir=hosts
[[ $(cat launched) == *" -np 2 ./on_device train config.ini --run.dir=hosts --run.resume=true" ]] || die "other ranks: $(cat launched)"
# A request to stop that comes while hosts are asked ends the supervisor without a start.
sed -i '2i case "$2" in true*) touch asked; sleep 3 ;; esac' agent
rm launched
"$root/launch/supervise.sh" --hostfile hostfile --host-wait 0 ./on_device train config.ini --run.dir=hosts 2>err &
supervisor=$!
wait_until "question to a host" test -e asked
kill -TERM "$supervisor"
code=0
wait "$supervisor" || code=$?
[[ $code -eq 0 && ! -e launched ]] || die "exit code $code, or a start after a request to stop: $(cat err launched)"
sed -i 2d agent
IS_TOO_LARGE=1 expect_exit 1 "$root/launch/supervise.sh" --hostfile hostfile --host-wait 0 ./on_device train config.ini --run.dir=hosts
expect_message "lost does not answer, and there is no layout without it: it is too large"
