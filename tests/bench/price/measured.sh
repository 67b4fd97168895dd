#!/bin/bash
# Calibrates this machine, then trains some 70 configurations of GPT and Llama on 1, 2 and 4 ranks and compares the
# measured steps with their prices.
#
#   tests/bench/price/measured.sh BUILD [CLUSTER.lua]     with CLUSTER.lua no calibration is made
#
# The machine should do nothing else meanwhile; it takes about four minutes. DEVICE=cuda: on a GPU, which has one rank.
set -eu
build=$1 cluster=${2:-$1/price/this-machine.lua}
moonshard=$build/release/moonshard
mkdir -p "$build/price"
device=${DEVICE:-cpu} most=4 worlds=(1 2 4)
[ "$device" = cpu ] || most=1 worlds=(1)
[ $# -gt 1 ] || "$moonshard" calibrate --device "$device" -n $most --out "$cluster"
files=()
for ranks in "${worlds[@]}"; do
  files+=("$build/price/measured-$ranks.json")
  "$moonshard" run tests/bench/price/measured.lua -n "$ranks" "cluster=$cluster" "device=$device" \
    >"${files[-1]}"
done
luajit tests/bench/price/measured_table.lua "${files[@]}"
