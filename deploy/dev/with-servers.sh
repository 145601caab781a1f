#!/usr/bin/env bash
# with-servers.sh COMMAND…: runs the command with a PostgreSQL and a RabbitMQ of its own, named to it by
# RUNHERD_TEST_PG_URL, RUNHERD_TEST_AMQP_URL and RUNHERD_TEST_AMQP_API_URL, and takes them down when it ends: by itself,
# by Ctrl-C, by a signal to this script. The exit status is the command's. Servers that the environment already names
# are used as they are (see servers.sh --help).
#
# RUNHERD_DEV_FSYNC=on makes PostgreSQL sync to disk, which tests do not need.
set -euo pipefail

if (($# == 0)); then
    echo "usage: with-servers.sh COMMAND…" >&2
    exit 2
fi

dev_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
clone=$(cd "$dev_dir/../.." && pwd -P)
# shellcheck source=lib/common.sh
source "$dev_dir/lib/common.sh"
servers=("$dev_dir/servers.sh" --instance "$clone/.run/run.$$")

child=
signal=

# In the background and waited for, so that a signal to this script is acted on at once; with the terminal's input and
# with Ctrl-C, which the shell would otherwise withhold from a command in the background.
run() {
    env --default-signal=INT,QUIT "$@" <&0 &
    child=$!
    local status=0
    wait "$child" || status=$?
    child=
    return "$status"
}

end_child() {
    local pids
    [[ -n $child ]] && is_alive "$child" || return 0
    # Ctrl-C has reached the command as well: it may end in its own way. A signal to this script alone has not.
    if [[ $signal != INT ]] || ! wait_gone 5 "$child"; then
        mapfile -t pids < <(process_tree "$child")
        signal_all TERM "${pids[@]}"
        if ! wait_gone 10 "${pids[@]}"; then
            signal_all KILL "${pids[@]}"
        fi
    fi
}

finish() {
    local status=$?
    trap '' INT TERM HUP
    trap - EXIT
    end_child
    "${servers[@]}" down || status=$((status ? status : 1))
    # What the command started for itself, if it could not take it down.
    "${servers[@]}" sweep || true
    exit "$status"
}

trap finish EXIT
trap 'signal=INT; exit 130' INT
trap 'signal=TERM; exit 143' TERM
trap 'signal=HUP; exit 129' HUP

run "${servers[@]}" --while "$$" --fsync "${RUNHERD_DEV_FSYNC:-off}" up
variables=$("${servers[@]}" env)
eval "$variables"
run env RUNHERD_INSTANCE="$clone/.run/run.$$" "$@"
