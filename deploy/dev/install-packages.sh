#!/usr/bin/env bash
# install-packages.sh PACKAGE…: Debian packages, without starting the system services that they bring.
set -euo pipefail

if ((EUID != 0)); then
    non_interactive=()
    [[ -t 0 ]] || non_interactive=(-n)
    exec sudo "${non_interactive[@]}" "${BASH_SOURCE[0]}" "$@"
fi

# Two installations at once would stand in each other's way.
exec 9>/run/lock/runherd-install
flock 9

# Packages ask this program whether they may start a service; 101 is "no". One that is already there stays.
policy=/usr/sbin/policy-rc.d
if (set -o noclobber && printf '#!/bin/sh\nexit 101\n' >"$policy") 2>/dev/null; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
log=$(mktemp)
run() {
    "$@" </dev/null >"$log" 2>&1 9<&- && return 0
    tail -n 30 "$log" >&2
    return 1
}
options=(-o DPkg::Lock::Timeout=600 -o Acquire::Retries=3)
run apt-get "${options[@]}" update || echo "apt-get update failed; trying with the package lists that are here" >&2
run apt-get "${options[@]}" install --yes --no-install-recommends "$@"
rm -f "$log"
