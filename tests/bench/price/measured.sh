#!/bin/bash
# Calibrates this machine, then trains some 70 configurations of GPT and Llama on 1, 2 and 4 ranks and compares the
# measured steps with their prices.
#
#   tests/bench/price/measured.sh BUILD [CLUSTER.lua]     with CLUSTER.lua no calibration is made
#
# The machine should do nothing else meanwhile; it takes about four minutes.
set -eu
build=$1 cluster=${2:-$1/price/this-machine.lua}
moonshard=$build/release/moonshard
mkdir -p "$build/price"
[ $# -gt 1 ] || "$moonshard" calibrate -n 4 --out "$cluster"
for ranks in 1 2 4; do
  "$moonshard" run tests/bench/price/measured.lua -n $ranks cluster="$cluster" >"$build/price/measured-$ranks.json"
done
luajit tests/bench/price/measured_table.lua "$build"/price/measured-{1,2,4}.json
