#!/usr/bin/env bash
# Tests training that is stopped, killed or started twice: no work is lost, and a folder has one
# run.
source "$2/tests/cli/lib/lib.sh"

make_data 60
small_config <<'INI'
[train]
steps = 100000
global_batch = 6
micro_batch = 1
[run]
backend = cpu
checkpoint_every = 20
resume = true
INI
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
set -m  # background processes receive SIGINT, and $! is the command
on_mpirun() { exec "${bare_mpirun[@]}" 3 "$switchyard" train config.ini "$@"; }
on_script() { exec "$root/launch/mpirun.sh" 3 "$switchyard" train config.ini "$@"; }
alone() { exec "$switchyard" train config.ini "$@"; }
# Starts a launcher in the background. The files are empty before it starts, so that nobody reads
# what the run before it printed.
in_background() {  # LAUNCHER OPTION...
  : >out
  : >err
  "$@" >out 2>err &
}

wait_for_steps() {  # RUN STEPS PID
  for _ in $(seq 1200); do
    [[ $(steps "$1") -lt $2 ]] || return 0
    kill -0 "$3" 2>/dev/null || die "the run ended before step $2: $(cat out err)"
    sleep 0.05
  done
  die "no step $2 within a minute"
}
in_order() {  # checks that each step occurs once
  sed -E 's/^\{"step":([0-9]+),.*\}$/\1/' "$1/metrics.jsonl" | awk '$1 != NR { exit 1 }' || die "the steps of $1 are not in order"
}
whole() {  # checks that the newest checkpoint is that of the last step
  expect_file "$1/checkpoints/step-$(printf %08d "$(steps "$1")")/manifest.json"
}

# The first signal causes a checkpoint, a message how to continue, and its own exit code.
try() {  # CODE LAUNCHER SIGNAL NAME
  rm -rf run
  in_background "$2" --run.dir=run
  wait_for_steps run 3 $!
  kill "-$3" $!
  code=0; wait $! || code=$?
  [[ $code -eq $1 ]] || die "exit code $code instead of $1 after SIG$3 to $2: $(cat out err)"
  grep -q "stopped at step $(steps run) as SIG$4 asked; continue with --run.resume=true" out || die "no word of the stop: $(cat out err)"
  in_order run
  whole run
  expect_no_file run/switchyard.lock
}
for signal in INT TERM HUP USR1; do try 3 alone $signal $signal; done
# A second SIGUSR1 does not end the run, so that the message is shorter. A fast machine may have
# read all samples before the signal, and then warns of it.
[[ $(grep -v "^switchyard: warning: .*domain" err) == "stopping after this step" ]] || die "SIGUSR1 is answered by: $(cat err)"
[[ $mpi == mpich ]] || try 3 on_mpirun USR1 USR1  # mpiexec of MPICH 4.0 may lose the exit code then
for signal in INT TERM HUP USR1; do try 3 on_script $signal USR1; done

# A signal before the first step, or before MPI starts, is not lost and leaves no obstacle.
rm -rf early
for pause in 0.03 0.06 0.1 0.3; do  # mpirun has no ranks yet, or they do not handle signals
  in_background on_script --run.dir=early --run.checkpoint_first=true
  sleep $pause
  kill -USR1 $!
  for _ in $(seq 600); do kill -0 $! 2>/dev/null || break; sleep 0.1; done
  ! kill -0 $! 2>/dev/null || die "a request $pause s after the start is lost"
  code=0; wait $! || code=$?
  # Exit code 138 without output: the script had not set its trap yet.
  [[ $code -eq 3 || ($code -eq 138 && ! -s err) ]] || die "exit code $code $pause s after the start: $(cat out err)"
  rm -rf early
done
for signal in USR1 TERM; do
  for pause in 0.02 0.1 0.3; do
    in_background alone --run.dir=early --train.steps=1
    sleep $pause
    kill -$signal $! 2>/dev/null || true
    code=0; wait $! || code=$?
    # Exit codes 138 and 143: the shell had not executed the command yet.
    [[ $code == [03] || $code -eq 138 || $code -eq 143 ]] || die "exit code $code after an early SIG$signal: $(cat out err)"
  done
done
expect_ok "$switchyard" train config.ini --run.dir=early --train.steps=1

# A run under nohup survives the end of its terminal.
rm -rf run
(trap '' HUP; alone --run.dir=run >out 2>err) &
wait_for_steps run 3 $!
kill -HUP $!
wait_for_steps run $(($(steps run) + 20)) $!
kill -TERM $!
code=0; wait $! || code=$?
[[ $code -eq 3 ]] || die "exit code $code of a run that ignores SIGHUP"

# A second signal ends the run at once, during a long step. A signal that is sent twice at the same
# time counts once.
rm -rf run
in_background alone --run.dir=run --train.global_batch=1200000
for _ in $(seq 1200); do [[ -e run/metrics.jsonl ]] && break; sleep 0.05; done
sleep 0.5  # it checks for a stop once more before the first step
for _ in 1 2; do kill -TERM $!; done
sleep 2.5
kill -0 $! || die "a signal that is sent twice ends the run"
grep -q "stopping after this step; a second signal ends the run at once" err || die "no answer to the signal"
kill -TERM $!
code=0; wait $! || code=$?
[[ $code -eq 143 && $(steps run) -eq 0 ]] || die "exit code $code after a second signal, at step $(steps run)"

wait_for_checkpoint() {  # RUN PID
  for _ in $(seq 1200); do
    compgen -G "$1/checkpoints/step-????????/manifest.json" >/dev/null && return
    kill -0 "$2" 2>/dev/null || die "the run ended before its first checkpoint: $(cat out err)"
    sleep 0.05
  done
  die "no checkpoint within a minute"
}

# mpirun is killed, and the same command starts at once.
rm -rf run
in_background on_mpirun --run.dir=run
for trial in 1 2 3 4 5; do
  wait_for_steps run $(($(steps run) / 20 * 20 + 25)) $!
  wait_for_checkpoint run $!  # it may be complete some steps after its own
  kill -9 $!
  wait $! 2>/dev/null || true
  in_background on_mpirun --run.dir=run
  for _ in $(seq 1200); do grep -q "^resumed from" out && break; kill -0 $! 2>/dev/null || break; sleep 0.05; done
  grep -q "^resumed from" out || die "trial $trial: the same command, sent at once, failed: $(cat out err)"
done
# A second start is refused, and the run continues.
holder=$(head -n 1 run/switchyard.lock)
[[ $holder == "$(uname -n), process "* ]] || die "the lock says '$holder'"
here=$(steps run)
for launcher in alone on_mpirun; do
  expect_exit 2 bash -c "$(declare -f $launcher; declare -p bare_mpirun); switchyard=$switchyard; $launcher --run.dir=run"
  [[ $(grep '^switchyard: ' .err) == "switchyard: run.dir = run is in use by $holder: wait for it, or choose another run.dir" ]] ||
    die "another message"
done
wait_for_steps run $((here + 20)) $!
kill -USR1 $!
code=0; wait $! || code=$?
[[ $code -eq 3 || ($mpi == mpich && $code -eq 0) ]] || die "exit code $code: $(cat out err)"
in_order run
whole run
expect_ok "$switchyard" inspect run --verify

# If a launcher dies, its ranks end at once, before MPI notices. The lock is free then.
rm -rf run
in_background on_script --run.dir=run
wait_for_steps run 3 $!
rank=$(sed -E 's/.*process ([0-9]+).*/\1/' run/switchyard.lock)
kill -9 $!
wait $! 2>/dev/null || true
for _ in $(seq 100); do kill -0 "$rank" 2>/dev/null || break; sleep 0.1; done
! kill -0 "$rank" 2>/dev/null || die "a rank outlives its launcher"

# An unusable folder of checkpoints is an error before the first step.
mkdir -p odd && echo x >odd/checkpoints
expect_error "odd/checkpoints" "$switchyard" train config.ini --run.dir=odd
expect_no_file odd/metrics.jsonl
if [[ $(id -u) -eq 0 ]]; then  # root can write anywhere
  rm -rf odd && mkdir -p odd/checkpoints && chmod 755 "$work" && chmod 777 odd && chmod 555 odd/checkpoints
  expect_error "odd/checkpoints cannot be written (Permission denied)" \
    setpriv --reuid 65534 --clear-groups "$switchyard" train config.ini --run.dir=odd
  expect_no_file odd/metrics.jsonl
fi

# A checkpoint of step 0, on request.
expect_ok "$switchyard" train config.ini --run.dir=zero --train.steps=2
expect_no_file zero/checkpoints/step-00000000
expect_ok "$switchyard" train config.ini --run.dir=first --train.steps=2 --run.checkpoint_first=true
expect_ok "$switchyard" diff first zero
expect_ok "$switchyard" inspect first/checkpoints/step-00000000 --verify
rm -r first/checkpoints/step-00000002
expect_ok "$switchyard" train config.ini --run.dir=first --train.steps=2 --run.checkpoint_first=true
expect_output "(step 0)"
expect_ok "$switchyard" diff first zero

# If the folder of a run is removed, the run does not create it again.
"$switchyard" train config.ini --run.dir=gone --train.steps=1000000 --run.checkpoint_every=0 >gone.out 2>gone.err &
pid=$!
for _ in $(seq 600); do [[ -s gone/metrics.jsonl ]] && break; sleep 0.1; done
rm -r gone
kill -USR1 "$pid"
code=0; wait "$pid" || code=$?
[[ $code -eq 1 && $(cat gone.err) == *"gone was removed or replaced while it was trained in"* ]] ||
  die "exit code $code: $(cat gone.err)"
expect_no_file gone

# On a terminal, with and without mpirun: the lines of every log_every steps stay, others are
# rewritten.
if ! script -qec true /dev/null >/dev/null 2>&1; then
  echo "there is no pseudo-terminal here: the progress line is not tested"
  exit 0
fi
for ranks in 0 2; do
  start="'$switchyard'"
  [[ $ranks -eq 0 ]] || start="'$root/launch/mpirun.sh' $ranks $start"
  rm -rf seen
  script -qec "$start train config.ini --run.dir=seen --train.steps=12 --run.log_every=5" /dev/null </dev/null >screen
  [[ $(wc -l <seen/metrics.jsonl) -eq 12 ]] || die "the run on a terminal failed: $(cat screen)"
  # The text after the last \r of a line stays on the screen.
  tr -d '\n' <screen >flow
  for step in 4 9 11; do grep -q $'\r'"step *$step/12[^"$'\r'"]*"$'\e' flow || die "no rewritten line of step $step: $(cat -v screen)"; done
  sed -E 's/\r*$//; s/.*\r//; s/\x1b\[K//g' screen | grep -oE "^step +[0-9]+/12" | tr -d ' ' | tr '\n' ' ' >stay
  [[ $(cat stay) == "step1/12 step5/12 step10/12 step12/12 " ]] || die "other lines stay: $(cat stay); $(cat -v screen)"
  # In a file, the lines are plain.
  rm -rf seen
  script -qec "$start train config.ini --run.dir=seen --train.steps=12 --run.log_every=5 >plain 2>other" /dev/null </dev/null >screen
  ! grep -q $'\r' plain other || die "a file gets a terminal's lines: $(cat -v plain other)"
  [[ $(grep -c "^step" plain) -eq 4 ]] || die "not four lines: $(cat plain)"
done

# run.max_hours: a run stops in time with a checkpoint, makes at least one step, and resumes.
for n in 1 2; do
  expect_exit 3 ranks $n train config.ini --run.dir=limited$n --run.checkpoint_every=0 --run.max_hours=0.0005
  expect_output "as run.max_hours = 0.0005 asked; continue with --run.resume=true"
  whole limited$n
done
first=$(steps limited1)
expect_exit 3 "$switchyard" train config.ini --run.dir=limited1 --run.checkpoint_every=0 --run.max_hours=1e-9
[[ $(steps limited1) -eq $((first + 1)) ]] || die "$(steps limited1) steps instead of one more than $first"
expect_ok "$switchyard" train config.ini --run.dir=limited1 --train.steps=$((first + 2)) --run.max_hours=1
expect_error "run.max_hours" "$switchyard" train config.ini --run.max_hours=-1
