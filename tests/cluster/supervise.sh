#!/usr/bin/env bash
# Six ranks on three simulated hosts lose a host, go on with four, and get the host back. Arguments
# as of tests/cli. Exit code 77 with the reason if there are no network namespaces.
source "$2/tests/cli/lib/lib.sh"
# shellcheck source=tests/cli/lib/supervised.sh
source "$2/tests/cli/lib/supervised.sh"
# shellcheck source=tests/cluster/lib/hosts.sh
source "$2/tests/cluster/lib/hosts.sh"
make_hosts 3
printf '%s slots=2\n' "$net.1" "$net.2" "$net.3" >hostfile

make_data 60
small_config <<'INI'
[moe]
capacity_factor = 1
[train]
steps = 1000000
schedule = constant
lr = 1e-4
global_batch = 12
micro_batch = 2
[parallel]
tp = auto
ep = auto
etp = auto
[run]
backend = cpu
checkpoint_every = 5
log_every = 20
INI
perl -0pi -e 's/\n\[moe\]\ncapacity_factor = 1\n/\n/; s/d_model = 32/d_model = 64/; s/\[moe\]\n/[moe]\ncapacity_factor = 1\n/' config.ini
export OMP_NUM_THREADS=1 SWITCHYARD_TIMEOUT=8 TMPDIR=$work/temporary
mkdir temporary
run=$work/run  # unique among all tests on this machine
supervise() { on "${hosts[0]}" "$root/launch/supervise.sh" --hostfile hostfile --host-check 1 "$@"; }

supervise "$switchyard" train config.ini --run.dir="$run" >out 2>err &
supervisor=$!
wait_until "checkpoint" saved "$run"
ip -n "${hosts[2]}" link set network down
wait_until "start on two hosts" started "$run" 2 6
ip -n "${hosts[2]}" link set network up
wait_until "start on three hosts" started "$run" 3 6
kill -TERM "$(pgrep -P "$supervisor" -f launch/supervise.sh || echo "$supervisor")"
code=0; wait "$supervisor" || code=$?
[[ $code -eq 0 ]] || die "exit code $code: $(cat out err)"

# The log has the attempts, with their causes. A rank or the launcher may be the first to miss the
# host, and a start may fail on a busy machine. The product dp * train.micro_batch stays.
[[ $(column "$run" 2) =~ ^([1-9][0-9]*\|)+3\|3$ ]] || die "other exit codes: $(cat "$run/supervisor.log")"
[[ $(column "$run" 5) =~ ^("rank "[0-9]" on ${hosts[2]} does not answer"|"the launcher: ORTE ").*"|stopped with a checkpoint, as $net.3 answers again|stopped with a checkpoint, as SIGTERM asked"$ ]] ||
  die "other causes: $(cat "$run/supervisor.log")"
grep -q "^supervisor: $net.3 does not answer: going on with 4 ranks$" err || die "the lost host is not named: $(cat err)"
[[ $(sed -nE 's/^layout +dp ([0-9]+) .*\(([0-9]) ranks.*/\2/p' out | uniq | paste -sd' ') == "6 4 6" ]] || die "other layouts: $(cat out)"
paste -d' ' <(sed -nE 's/^auto .*micro_batch = ([0-9]+).*/\1/p' out) <(sed -nE 's/^layout +dp ([0-9]+) .*/\1/p' out) |
  awk 'NR == 1 { n = $1 * $2 } $1 * $2 != n { exit 1 }' || die "another dp * train.micro_batch: $(cat out)"
! grep -qE '^(tp|ep|etp) = auto' "$run/config.ini" || die "config.ini has no layout: $(cat "$run/config.ini")"

# Losses and counts are those of a run of one rank that was not disturbed.
last=$(steps "$run")
expect_ok "$switchyard" train config.ini --run.dir=alone --train.steps="$last" --quiet
numbers() { sed -E 's/.*"step":([0-9]+).*"loss":([0-9.e-]+),.*"routed":([0-9]+),"dropped":([0-9]+).*/\1 \3 \4 \2/' "$1/metrics.jsonl"; }
paste -d' ' <(numbers alone) <(numbers "$run") |
  awk '$1 != NR || $1 != $5 || $2 != $6 || $3 != $7 || $4 - $8 > 1e-5 || $8 - $4 > 1e-5 { print; exit 1 } { dropped += $3 } END { exit dropped == 0 }' ||
  die "the losses or counts differ after $last steps"

# If results depend on the number of ranks, the loss of a host ends the run with a sentence.
sed -i 's/^steps = .*/steps = 200/' config.ini
ip -n "${hosts[2]}" link set network down
scopes=(--moe.capacity_scope=rank --moe.aux_scope=global_batch)
expect_exit 1 supervise --host-wait 0 "$switchyard" train config.ini --run.dir="$run" --train.steps="$((last + 5))" "${scopes[@]}"
sentence="$net.3 does not answer, and there is no layout without it: moe.capacity_scope = rank makes results depend on train.micro_batch"
[[ $err == *"supervisor: $sentence"*": resume on another number of ranks" ]] || die "another message"
[[ $(column "$run" 5) == *"$sentence"* ]] || die "the log lacks it: $(cat "$run/supervisor.log")"
# Files of dead jobs are left on no host.
ip -n "${hosts[2]}" link set network up
for host in "${hosts[@]}"; do
  [[ -z $(on "$host" ls /dev/shm) ]] || die "$host has $(on "$host" ls /dev/shm)"
done
