#!/usr/bin/env bash
# Private PostgreSQL and RabbitMQ servers for development and tests, on free ports of 127.0.0.1, beside any that
# already run. Everything about one set of servers (an instance) is in one folder under .run/, and `down` leaves
# nothing of it: no process, no data.
#
# What lib/*.sh share: $dev_dir, $clone, $instance (an absolute path), and the functions of lib/common.sh.
set -euo pipefail

dev_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
clone=$(cd "$dev_dir/../.." && pwd -P)
# shellcheck source=lib/common.sh
source "$dev_dir/lib/common.sh"
# shellcheck source=lib/postgres.sh
source "$dev_dir/lib/postgres.sh"
# shellcheck source=lib/rabbitmq.sh
source "$dev_dir/lib/rabbitmq.sh"
# shellcheck source=lib/compose.sh
source "$dev_dir/lib/compose.sh"

usage() {
    cat <<'USAGE'
usage: servers.sh [OPTIONS] COMMAND

  up                 start the servers, wait until they are ready
  down               stop the servers, delete their data
  env                print the variables that tests read, as shell `export` lines
  status             print what runs, where, and where the logs are
  sweep              take down the instances whose owner is gone

  start|stop|kill|pause|continue  postgres|rabbitmq
                     one server of an instance that is up; ports and data stay
                     (kill is SIGKILL, pause SIGSTOP, continue SIGCONT)
  ctl ARGUMENTS…     rabbitmqctl for this instance's RabbitMQ

options
  --instance DIR     the instance's folder (.run/dev)
  --only SERVICE     `up` starts just this one: postgres or rabbitmq
  --while PID        `up`: the instance is taken down when process PID is gone
  --fsync on|off     `up`: PostgreSQL's fsync (on); off is safe against kill -9, not against a power cut

environment
  RUNHERD_TEST_PG_URL, RUNHERD_TEST_AMQP_URL
                     servers of your own: where one is set, nothing is started in its place
  RUNHERD_TEST_AMQP_API_URL
                     the management API of your own RabbitMQ
  RUNHERD_PG_BIN     the folder with initdb and postgres, if not the newest installed one
  RUNHERD_SERVERS_TIMEOUT_SECONDS
                     how long `up` and `start` wait for one server (120)
USAGE
}

# The instance's own marker is for its processes; one inherited from a caller must not reach what is started here.
unset RUNHERD_INSTANCE

instance=$clone/.run/dev
services=(postgres rabbitmq)
owner=
fsync=on

given() { # SERVICE: does the environment name a server to use instead of starting one?
    case $1 in
    postgres) [[ -n ${RUNHERD_TEST_PG_URL:-} ]] ;;
    rabbitmq) [[ -n ${RUNHERD_TEST_AMQP_URL:-} ]] ;;
    esac
}

has() { # SERVICE: was it started as part of this instance?
    [[ -f $instance/$1.backend ]]
}

backend() { # SERVICE VERB: call the function that does it, for a native server or for one in a container
    local service=$1 verb=$2
    if [[ $(<"$instance/$service.backend") == compose ]]; then
        "compose_$verb" "$service"
    else
        "${service}_$verb"
    fi
}

# Installed → Debian's packages → containers. Sets the backend of each service of $@.
choose_backends() {
    local service missing=()
    for service in "$@"; do
        "${service}_find" || missing+=("$("${service}_package")")
    done
    if ((${#missing[@]} > 0)) && can_install; then
        say "installing ${missing[*]} (Debian packages; their system services are not started)"
        "$dev_dir/install-packages.sh" "${missing[@]}" || say "the packages could not be installed"
    fi
    for service in "$@"; do
        if "${service}_find"; then
            echo native >"$instance/$service.backend"
        elif compose_find; then
            echo compose >"$instance/$service.backend"
        else
            die "no $service: not installed, no way to install its Debian package ($("${service}_package")), no docker compose"
        fi
    done
}

# Creates and starts one service; a port that somebody else took in the meantime is a reason to try others.
launch() {
    local service=$1 attempt
    backend "$service" create || return 1
    for attempt in 1 2 3; do
        backend "$service" choose_ports
        if backend "$service" start; then
            return 0
        fi
        if ! grep -qiE 'eaddrinuse|already in use|could not bind|port is already allocated' "$instance/$service.log"; then
            break
        fi
        say "$service: a port was taken (attempt $attempt of 3)"
        mv "$instance/$service.log" "$instance/$service.log.$attempt"
    done
    say "$service did not start. The end of $instance/$service.log:"
    tail -n 30 "$instance/$service.log" >&2 || true
    return 1
}

up() {
    local service wanted=() pids=() pid failed=0 started=$SECONDS
    for service in "${services[@]}"; do
        given "$service" || wanted+=("$service")
    done
    if ((${#wanted[@]} == 0)); then
        say "the environment names the servers to use; nothing to start"
        return 0
    fi
    sweep
    mkdir -p "$instance"
    lock_instance
    if [[ -f $instance/ready ]]; then
        for service in postgres rabbitmq; do
            has "$service" && { backend "$service" running || backend "$service" start; }
        done
        say "already up: $instance"
        return 0
    fi
    wipe
    printf '%s\n' "$fsync" >"$instance/fsync"
    if [[ -n $owner ]]; then
        printf '%s %s\n' "$owner" "$(started_at "$owner")" >"$instance/owner" || die "there is no process $owner"
        watch_owner
    fi
    choose_backends "${wanted[@]}"
    make_data_root
    for service in "${wanted[@]}"; do
        launch "$service" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
    done
    if ((failed)); then
        # The logs stay for whoever has to find out why; the next `up` or `sweep` removes them.
        kill_processes
        die "not up; logs: $instance"
    fi
    touch "$instance/ready"
    say "up in $((SECONDS - started)) s: ${wanted[*]} (logs: $instance)"
}

# Ends every process of the instance and empties its folder, keeping the folder (and with it the lock).
wipe() {
    stop_watching
    kill_processes
    remove_data
    find "$instance" -mindepth 1 -delete
}

down() {
    [[ -d $instance ]] || return 0
    lock_instance
    [[ -d $instance ]] || return 0
    wipe
    rmdir "$instance"
    exec 8<&-
}

sweep() {
    local folder pid start here=$instance
    for folder in "$clone"/.run/*/; do
        folder=${folder%/}
        [[ -f $folder/owner ]] || continue
        read -r pid start <"$folder/owner" || continue
        is_alive "$pid" "$start" && continue
        instance=$folder
        down
    done
    instance=$here
    sweep_data
}

print_env() {
    local service
    for service in postgres rabbitmq; do
        if has "$service"; then
            "${service}_env"
        elif given "$service"; then
            "${service}_given_env"
        fi
    done
}

status() {
    local service
    print_env | sed 's/^export //'
    for service in postgres rabbitmq; do
        if has "$service"; then
            if backend "$service" running; then echo "$service: up, log $instance/$service.log"
            else echo "$service: down, log $instance/$service.log"; fi
        elif given "$service"; then
            echo "$service: given by the environment"
        else
            echo "$service: not part of $instance"
        fi
    done
}

one_server() { # VERB SERVICE
    local verb=$1 service=${2:-}
    [[ $service == postgres || $service == rabbitmq ]] || die "$verb: which one, postgres or rabbitmq?"
    has "$service" || die "$service is not part of $instance"
    lock_instance
    backend "$service" "$verb" && return 0
    say "$service: $verb failed. The end of $instance/$service.log:"
    tail -n 30 "$instance/$service.log" >&2
    exit 1
}

while [[ ${1:-} == --* ]]; do
    case $1 in
    --instance) instance=$(realpath -m -- "$2") && shift 2 ;;
    --only) services=("$2") && shift 2 ;;
    --while) owner=$2 && shift 2 ;;
    --fsync) fsync=$2 && shift 2 ;;
    --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done

command=${1:-}
(($# > 0)) && shift
case $command in
up) up ;;
down) down ;;
env) print_env ;;
status) status ;;
sweep) sweep ;;
start | stop | kill | pause | continue) one_server "$command" "$@" ;;
ctl)
    has rabbitmq || die "rabbitmq is not part of $instance"
    if [[ $(<"$instance/rabbitmq.backend") == compose ]]; then compose_ctl "$@"; else rabbitmq_ctl "$@"; fi
    ;;
*) usage >&2 && exit 2 ;;
esac
