#!/bin/bash
# Two hosts on one machine: network namespaces that a veth pair joins, with a link whose speed tc limits.
#
#   recipes/two_hosts.sh COMMAND...      makes them, runs the command, and removes them however it ends
#   recipes/two_hosts.sh --shape SPEED   sets the speed of their link: 1gbit, 200mbit, or none for no limit
#   recipes/two_hosts.sh --remove        removes those that a killed run left behind
#
# The hosts are named ms-host-a and ms-host-b; a program runs there as `ip netns exec ms-host-a PROGRAM`, which is what
# `moonshard run --agent 'ip netns exec'` does, and they reach each other through their interface `wire`. Needs root.
set -u
a=ms-host-a b=ms-host-b

fail() { echo "two_hosts: $1" >&2; exit 2; }

remove() {
  ip netns del $a 2>/dev/null
  ip netns del $b 2>/dev/null
  return 0
}

shape() {
  local host
  for host in $a $b; do
    ip netns exec $host tc qdisc del dev wire root 2>/dev/null
    [ "$1" = none ] && continue
    ip netns exec $host tc qdisc add dev wire root tbf rate "$1" burst 256kb latency 50ms ||
      fail "tc cannot limit the link to $1"
  done
}

add() { # add HOST
  ip netns add "$1" && ip -n "$1" link set lo up
}

make_hosts() {
  add $a && add $b && ip link add name wire netns $a type veth peer name wire netns $b &&
    ip -n $a addr add 10.98.0.1/24 dev wire && ip -n $b addr add 10.98.0.2/24 dev wire &&
    ip -n $a link set wire up && ip -n $b link set wire up
}

[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
[ "$(id -u)" = 0 ] || fail "network namespaces need root: run it with sudo"
command -v ip >/dev/null && command -v tc >/dev/null || fail "ip and tc are missing: install the package iproute2"
case $1 in
  --shape) shape "${2:?the speed of the link}"; exit 0 ;;
  --remove) remove; exit 0 ;;
esac
[ -e /run/netns/$a ] && fail "$a is there already: another run uses it, or was killed; $0 --remove removes it"
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
make_hosts || fail "cannot make network namespaces (this needs root with CAP_SYS_ADMIN)"
MOONSHARD_INTERFACE=wire "$@"
