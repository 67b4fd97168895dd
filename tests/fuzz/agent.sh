#!/bin/sh
# Stands for ssh, for `moonshard run --hosts`: every host is this machine.
shift
exec "$@"
