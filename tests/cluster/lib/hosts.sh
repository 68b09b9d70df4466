# shellcheck shell=bash disable=SC2154
# Simulated hosts on this machine: network namespaces with their own host name and /dev/shm, joined
# by a bridge. A test sources it after tests/cli/lib/lib.sh, and calls make_hosts. Exit code 77 with
# the reason if there are no namespaces.
[[ $mpi == openmpi ]] || skip "this test starts ranks with options of Open MPI"
[[ $(id -u) -eq 0 ]] || skip "network namespaces need root"
for program in ip unshare nsenter mpirun; do command -v $program >/dev/null || skip "there is no $program: apt-get install iproute2 util-linux"; done

net=10.213.$(($$ % 250))
hub=sy$$hub
hosts=()  # names; the address of hosts[i] is $net.(i + 1)
keepers=()
remove_hosts() {
  set +e  # clean up everything, also after errors
  # shellcheck disable=SC2046 # numbers
  kill "${keepers[@]}" $(jobs -p) 2>/dev/null || true
  local name
  for name in "${hosts[@]}" "$hub"; do
    ip netns pids "$name" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns delete "$name" 2>/dev/null
  done
  cd / && rm -rf "$work" 2>/dev/null
}

# Makes hosts, and `agent`, which runs a command on a host, as ssh does: agent ADDRESS COMMAND...
# It fails for a host whose network is down. It removes the hosts at the end.
make_hosts() {  # NUMBER
  local i name
  trap remove_hosts EXIT
  for i in $(seq "$1"); do hosts+=("sy$$$(printf "\\x$(printf %x $((96 + i)))")"); done
  for name in "${hosts[@]}" "$hub"; do ip netns add "$name" 2>.err || skip "no network namespace: $(cat .err)"; done
  ip -n "$hub" link add bridge type bridge 2>.err || skip "no network bridge: $(cat .err)"
  ip -n "$hub" link set bridge up
  for i in $(seq "$1"); do
    name=${hosts[$((i - 1))]}
    ip link add network netns "$name" type veth peer name "host$i" netns "$hub" 2>.err || skip "no pair of network devices: $(cat .err)"
    ip -n "$hub" link set "host$i" master bridge up
    ip -n "$name" address add "$net.$i/24" dev network
    ip -n "$name" link set network up
    ip -n "$name" link set lo up
    # The host's name and memory live as long as this process.
    ip netns exec "$name" unshare --uts --mount sh -c \
      'hostname "$1" && mount -t tmpfs none /dev/shm && echo ready >"$2" && exec sleep 3600' sh "$name" "$work/$name.ready" 2>.err &
    keepers+=($!)
    for _ in $(seq 200); do [[ -s $name.ready ]] && break; sleep 0.05; done
    [[ -s $name.ready ]] || skip "a host cannot have a name and memory of its own: $(cat .err)"
    echo "$!" >"$work/$net.$i.pid"
  done
  cat >agent <<AGENT
#!/usr/bin/env bash
address=\$1
shift
run() { exec nsenter --target "\$(cat "$work/\$address.pid")" --net --uts --mount -- "\$@"; }
(run ip -brief link show network) | grep -q ' UP ' || exit 255
run sh -c "\$*"
AGENT
  chmod +x agent
  export OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_mpi_yield_when_idle=1
  export OMPI_MCA_btl_tcp_if_include=$net.0/24 OMPI_MCA_oob_tcp_if_include=$net.0/24
}
# Runs a command in the work folder of a host.
on() {  # HOST COMMAND...
  local i
  for i in "${!hosts[@]}"; do [[ ${hosts[$i]} != "$1" ]] || break; done
  nsenter --target "$(cat "$work/$net.$((i + 1)).pid")" --net --uts --mount -- env --chdir="$work" "${@:2}"
}
