#!/usr/bin/env bash
# Two simulated hosts on this machine: network namespaces with their own host name and /dev/shm.
# On them, mpirun starts ranks over TCP from a host file. Arguments as of tests/cli; the third
# argument is the backend (default: cpu). Exit code 77 with the reason if there are no namespaces.
source "$2/tests/cli/lib/lib.sh"
# shellcheck source=tests/cluster/lib/hosts.sh
source "$2/tests/cluster/lib/hosts.sh"
backend=${3:-cpu}
make_hosts 2
printf '%s slots=2\n' "$net.1" "$net.2" >hostfile

make_data 60
small_config <<INI
[train]
steps = 20
global_batch = 8
micro_batch = 2
[run]
backend = $backend
log_every = 20
INI
export OMP_NUM_THREADS=1
# Ranks of a host may share a GPU: for NCCL they must look as if they were on different machines.
cat >rank.sh <<'SH'
#!/usr/bin/env bash
NCCL_HOSTID=$OMPI_COMM_WORLD_RANK exec "$@"
SH
chmod +x rank.sh
mpirun() { on "${hosts[0]}" timeout 120 "$root/launch/mpirun.sh" --hostfile hostfile "$1" "$work/rank.sh" "${@:2}"; }

# The ranks are on both hosts, which share the work folder but not /dev/shm.
call mpirun 4 "$switchyard" doctor
for i in 0 1 2 3; do
  [[ $(grep -cE "^ +$i +${hosts[$((i / 2))]} " .out) -eq 1 ]] || die "rank $i is not on ${hosts[$((i / 2))]}"
done
[[ $out != *"is not seen by"* ]] || die "the hosts share the folder"
expect_exit 1 mpirun 4 "$switchyard" doctor --dir /dev/shm
expect_output "what rank 0 writes in /dev/shm is not seen by ranks 2, 3 on ${hosts[1]}"
# With experts on both hosts, training has the losses of a single rank.
expect_ok "$switchyard" train config.ini --run.dir=alone --quiet
sent() { on "${hosts[0]}" ip -s link show dev network | sed -n '/TX:/{n;s/ *\([0-9]*\).*/\1/p}'; }
before=$(sent)
expect_ok mpirun 4 "$switchyard" train config.ini --run.dir=both --parallel.ep=4 --quiet
[[ $(($(sent) - before)) -gt 100000 ]] || die "only $(($(sent) - before)) bytes went from one host to the other"
losses() { sed -E 's/.*"step":([0-9]+).*"loss":([0-9.e-]+),.*/\1 \2/' "$1/metrics.jsonl"; }
paste <(losses alone) <(losses both) |
  awk '$1 != $3 || $2 - $4 > 1e-5 || $4 - $2 > 1e-5 { exit 1 } END { if (NR != 20) exit 1 }' || die "the losses differ"
# A node of the layout must be on one host.
# Round-robin ranks are refused; too small hosts are a warning.
dealt() {
  on "${hosts[0]}" timeout 120 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun --hostfile hostfile --oversubscribe --bind-to none --map-by node -np 4 "$work/rank.sh" "$@"
}
by_node=(config.ini --parallel.ep=4 --train.steps=2 --train.warmup=1 --quiet)
expect_error "parallel.ranks_per_node = 2 takes ranks 0 to 1 for one node, but rank 0 is on ${hosts[0]} and rank 1 on ${hosts[1]}: start consecutive ranks" \
  dealt "$switchyard" train "${by_node[@]}" --run.dir=dealt --parallel.ranks_per_node=2
expect_no_file dealt
expect_ok mpirun 4 "$switchyard" train "${by_node[@]}" --run.dir=by-node --parallel.ranks_per_node=2
[[ $err != *warning* ]] || die "a warning of nodes that are hosts"
expect_ok mpirun 4 "$switchyard" train "${by_node[@]}" --run.dir=large --parallel.ranks_per_node=4
[[ $err == *"warning: parallel.ranks_per_node = 4 takes ranks 0 to 3 for one node, but rank 0 is on ${hosts[0]} and rank 2 on ${hosts[1]}: set it to"* ]] ||
  die "no warning of hosts that are too small"
expect_ok dealt "$switchyard" evaluate by-node --max-windows 4 --backend "$backend"
# An error is printed once, with its exit code.
expect_error "model.layer" mpirun 4 "$switchyard" train config.ini --model.layer=3
expect_exit 2 "$root/launch/mpirun.sh" --hostfile nowhere 2 true
# Rank 0 alone reads the configuration: the other host may have another file of its name. The first
# rank of each host reads the data: other data of the same name are an error.
echo "no configuration" >no.ini
on "${hosts[1]}" mount --bind "$work/no.ini" "$work/config.ini"
expect_ok mpirun 4 "$switchyard" train "${by_node[@]}" --run.dir=by-rank-0
on "${hosts[1]}" umount "$work/config.ini"
make_text more-text 70
expect_ok "$switchyard" prepare --domain english=more-text --tokenizer bytes --output more-data
on "${hosts[1]}" mount --bind "$work/more-data" "$work/data"
expect_error "rank 2 on ${hosts[1]} has the digest of the data = " mpirun 4 "$switchyard" train "${by_node[@]}" --run.dir=mixed
[[ $err == *"rank 2 on ${hosts[1]} has train_tokens of domain english = "* && $err != *"rank 3"* ]] || die "another difference"
expect_no_file mixed
on "${hosts[1]}" umount "$work/data"

# A host that vanishes: the ranks of both hosts end, and so does mpirun.
lines() { if [[ -f $1/metrics.jsonl ]]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }
ranks_of() {  # RUN
  local process
  for process in /proc/[0-9]*; do
    grep -zqxF -e "--run.dir=$1" "$process/cmdline" 2>/dev/null || continue
    grep -zq '^OMPI_COMM_WORLD_RANK=' "$process/environ" 2>/dev/null && echo "${process#/proc/}"
  done || true
}
# A zombie counts as ended: the process that adopts the ranks of mpirun may never wait for them.
goes_on() { grep -qs '^State:.[^ZX]' "/proc/$1/status"; }
export SWITCHYARD_TIMEOUT=4
run=$work/vanishes  # unique among all tests on this machine
mpirun 4 "$switchyard" train config.ini --run.dir="$run" --parallel.ep=4 --train.steps=1000000 --run.log_every=1 >vanishes.out 2>.err &
job=$!
for _ in $(seq 600); do (($(lines "$run") >= 3)) && break; sleep 0.1; done
(($(lines "$run") >= 3)) || die "$(lines "$run") steps in a minute"
mapfile -t ranks < <(ranks_of "$run")
[[ ${#ranks[@]} -eq 4 ]] || die "${#ranks[@]} ranks in place of 4"
ip -n "${hosts[1]}" link set network down
SECONDS=0
for pid in "${ranks[@]}" "$job"; do
  while goes_on "$pid" && ((SECONDS < 2 * SWITCHYARD_TIMEOUT + 15)); do sleep 0.1; done
  ! goes_on "$pid" || { kill -KILL "${ranks[@]}" 2>/dev/null || true; die "process $pid goes on after $SECONDS s"; }
done
grep -q "^switchyard: rank [01] on ${hosts[0]} has waited .* step .* for .* with ranks " .err || die "no rank says what it waited for"
for rank in 2 3; do
  grep -q "rank $rank on ${hosts[1]} does not answer" .err || die "rank $rank is not named"
done
