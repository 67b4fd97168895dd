#!/bin/bash
# Prices what `make two-hosts` has measured, after a calibration over the same two hosts. As root.
#
#   tests/bench/price/two_hosts.sh BUILD [CLUSTER.lua]     with CLUSTER.lua no calibration is made
#
# AT (1gbit) is the speed of the link at which CLUSTER.lua was, or will be, calibrated. The machine should do nothing else
# meanwhile; it takes about three minutes.
set -eu
build=$1 cluster=${2:-$1/price/two-hosts.lua} at=${AT:-1gbit}
mkdir -p "$build/price"
# shellcheck disable=SC2016 # the inner shell expands these
[ $# -gt 1 ] || recipes/two_hosts.sh bash -euc 'recipes/two_hosts.sh --shape "$1"
  "$2" calibrate --hosts ms-host-a:2,ms-host-b:2 --agent "ip netns exec" --out "$3"' - "$at" \
  "$build/release/moonshard" "$cluster"
luajit tests/bench/price/two_hosts.lua "$build" "$cluster" "$at"
