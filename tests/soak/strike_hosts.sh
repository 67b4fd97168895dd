#!/bin/bash
# One training run over several hosts that is struck while it runs: for struck_hosts.lua, which says what the variables
# are. Hosts are network namespaces with an address each; a bridge in one more namespace joins them. Leaves in $D:
# out.I, err.I, status.I and seconds.I (from the strike to its end) of each command, and what the recipe writes there.
set -m # else bash starts its jobs with SIGINT ignored
export TMPDIR=$D/tmp MOONSHARD_JOB_ID=$MARK MOONSHARD_TOKEN=a-token-for-these-hosts OMP_NUM_THREADS=1
unset pid

children() { cat /proc/$1/task/*/children 2>/dev/null; }
child() { # the K-th child of a process, once there is one
  local list
  for _ in {1..1000}; do
    [ -n "$1" ] && [ -d /proc/$1 ] || return
    list=($(children "$1"))
    [ ${#list[@]} -ge $2 ] && { echo ${list[$2 - 1]}; return; }
    sleep 0.01
  done
}
remote_of() { [ $NODES = 1 ] || child ${pid[0]} $1; }
launcher_of() { if [ $NODES = 1 ]; then echo ${pid[$1 - 1]}; else child "$(remote_of $1)" 1; fi; }
rank_of() { child "$(launcher_of $1)" $2; }
all_of() { echo $(remote_of $1) $(launcher_of $1) $(children $(launcher_of $1)); }

strike() {
  case $STRIKE in
    kill_rank) kill -9 $(rank_of $VICTIM_HOST $VICTIM);;
    kill_launcher) kill -9 $(launcher_of $VICTIM_HOST);;
    kill_host) kill -9 $(all_of $VICTIM_HOST);;
    stop_rank) kill -STOP $(rank_of $VICTIM_HOST $VICTIM);;
    stop_launcher) kill -STOP $(launcher_of $VICTIM_HOST);;
    # As one without power: nothing answers, nothing is closed.
    lose_host) all=$(all_of $VICTIM_HOST); ip -n $P$VICTIM_HOST link set veth0 down; kill -STOP $all;;
    cut_link) ip -n $P$VICTIM_HOST link set veth0 down;;
    # Packets are lost at the switch, for longer than TCP takes to double its pauses to some seconds.
    blink_link)
      ip -n ${P}s link set $P$VICTIM_HOST nomaster; sleep 3.5; ip -n ${P}s link set $P$VICTIM_HOST master bridge;;
    # All hosts but the first reach only the first, as behind a firewall.
    part_hosts) for h in $(seq 2 $HOSTS); do ip -n ${P}s link set $P$h type bridge_slave isolated on; done;;
    lag_rank) late=$(rank_of $VICTIM_HOST $VICTIM); kill -STOP $late; sleep 1; kill -CONT $late;;
    term) kill -TERM ${pid[0]};;
    term_launcher) kill -TERM $(launcher_of $VICTIM_HOST);;
    term_rank) kill -TERM $(rank_of $VICTIM_HOST $VICTIM);;
    int) kill -INT ${pid[0]};;
    none) ;;
  esac
}

ip netns add ${P}s && ip -n ${P}s link add bridge type bridge && ip -n ${P}s link set bridge up || exit 1
for h in $(seq 1 $HOSTS); do
  ip netns add $P$h && ip link add $P$h netns ${P}s type veth peer name veth0 netns $P$h &&
    ip -n ${P}s link set $P$h master bridge up && ip -n $P$h link set lo up && ip -n $P$h link set veth0 up &&
    ip -n $P$h addr add 10.99.0.$h/24 dev veth0 || exit 1
done

WORDS=${WORDS//\$D/$D}
run="$MOONSHARD_BIN run tests/lua/hosts/recipes/struck.lua $WORDS"
if [ $NODES = 1 ]; then
  for h in $(seq 1 $HOSTS); do
    ip netns exec $P$h $run -n $RANKS --nodes $HOSTS --node-rank $((h - 1)) --rendezvous tcp://10.99.0.1:29540 \
      >$D/out.$((h - 1)) 2>$D/err.$((h - 1)) </dev/null & pid[h - 1]=$!
  done
else
  list=$(for h in $(seq 1 $HOSTS); do echo -n ,$P$h:$RANKS; done)
  MOONSHARD_INTERFACE=veth0 $run --hosts ${list#,} --agent 'ip netns exec' >$D/out.0 2>$D/err.0 </dev/null & pid[0]=$!
fi

# A run that has ended by itself is not waited for.
[ $AT = start ] || while kill -0 ${pid[0]} 2>/dev/null && [ ! -e $D/$AT ]; do sleep 0.01; done
sleep $DELAY
strike 2>$D/strike
began=${EPOCHREALTIME/./}
for i in ${!pid[@]}; do
  (
    timeout $LIMIT tail -s 0.02 -f /dev/null --pid=${pid[i]} || { echo >$D/hung.$i; kill -9 ${pid[i]}; }
    echo $((${EPOCHREALTIME/./} - began)) >$D/microseconds.$i
  ) & waiter[i]=$!
done
for i in ${!pid[@]}; do
  wait ${waiter[i]}
  wait ${pid[i]} 2>/dev/null
  echo $? >$D/status.$i
done
# What is left of a host without power is left there alone.
[ $STRIKE = lose_host ] && kill -9 $all 2>/dev/null
exit 0
