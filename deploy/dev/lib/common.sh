# shellcheck shell=bash
# Processes, ports and folders: what every server of an instance needs. Linux only (it reads /proc).

say() { printf 'servers: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

timeout_seconds=${RUNHERD_SERVERS_TIMEOUT_SECONDS:-120}

# --- processes

# Clock ticks between boot and the process's start; with the pid it names a process for ever. Fails for a zombie.
started_at() {
    local line fields
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    read -ra fields <<<"${line##*) }"
    [[ ${fields[0]} != Z && ${fields[0]} != X ]] || return 1
    echo "${fields[19]}"
}

is_alive() { # PID [STARTED_AT]
    local start
    [[ -n ${1:-} ]] && start=$(started_at "$1") && [[ -z ${2:-} || $start == "$2" ]]
}

# PID and everything below it, parents first.
process_tree() {
    local stat line fields pids=("$1") index=0
    local -A children=()
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        read -ra fields <<<"${line##*) }"
        children[${fields[1]}]+=" ${line%% *}"
    done
    while ((index < ${#pids[@]})); do
        # shellcheck disable=SC2206
        pids+=(${children[${pids[index]}]:-})
        index=$((index + 1))
    done
    printf '%s\n' "${pids[@]}"
}

# Every process of the instance carries RUNHERD_INSTANCE in its environment, so that none is missed: not one whose pid
# was not written down yet, not one that made itself a daemon.
marked_processes() {
    local file pid
    while IFS= read -r file; do
        pid=${file#/proc/}
        pid=${pid%%/*}
        [[ $pid == "$$" || $pid == "$BASHPID" ]] || echo "$pid"
    done < <(grep -lzxF "RUNHERD_INSTANCE=$instance" /proc/[0-9]*/environ 2>/dev/null)
}

signal_all() { # SIGNAL PID…: those that are gone are no error
    local signal=$1
    shift
    (($# == 0)) || kill "-$signal" "$@" 2>/dev/null || true
}

wait_gone() { # SECONDS PID…
    local deadline=$((SECONDS + $1)) pid
    shift
    for pid in "$@"; do
        while is_alive "$pid"; do
            ((SECONDS < deadline)) || return 1
            sleep 0.02
        done
    done
}

# Stops PID and everything below it, and returns when all of it has stopped: a signal takes effect a little later.
freeze() {
    local pids pid state frozen deadline=$((SECONDS + 20))
    # The first one first: then it starts no child that would be missed.
    signal_all STOP "$1"
    while ((SECONDS < deadline)); do
        mapfile -t pids < <(process_tree "$1")
        signal_all STOP "${pids[@]}"
        frozen=1
        for pid in "${pids[@]}"; do
            { read -r state <"/proc/$pid/stat"; } 2>/dev/null || continue
            [[ ${state##*) } == [TZX]* ]] || frozen=0
        done
        ((frozen)) && return 0
    done
    return 1
}

# A server detached from the terminal: a Ctrl-C meant for the caller does not reach it, and it outlives this script.
# The pid is in $spawned. Descriptor 8 is the instance's lock.
spawn() { # LOG COMMAND…
    local log=$1
    shift
    env RUNHERD_INSTANCE="$instance" setsid "$@" </dev/null >>"$log" 2>&1 8<&- &
    spawned=$!
}

# Waits until a check succeeds, as long as the process lives and the time is not over.
wait_ready() { # PID CHECK…
    local pid=$1 deadline=$((SECONDS + timeout_seconds))
    shift
    until "$@"; do
        is_alive "$pid" || return 1
        if ((SECONDS >= deadline)); then
            say "not ready after $timeout_seconds s"
            return 1
        fi
        sleep 0.05
    done
}

# Ends all processes of the instance at once; its data is of no more use.
kill_processes() {
    local service pids deadline=$((SECONDS + 20))
    for service in postgres rabbitmq; do
        if has "$service" && [[ $(<"$instance/$service.backend") == compose ]]; then
            compose_remove "$service"
        elif has "$service"; then
            "${service}_discard"
        fi
    done
    while mapfile -t pids < <(marked_processes) && ((${#pids[@]} > 0)); do
        signal_all KILL "${pids[@]}"
        wait_gone 1 "${pids[@]}" || true
        ((SECONDS < deadline)) || die "processes that cannot be ended: ${pids[*]}"
    done
}

# --- the owner: an instance with one is taken down when that process is gone, however it ended

watch_owner() {
    setsid bash -c '
        tail --pid="$1" -f /dev/null
        RUNHERD_WATCHER=1 exec "$3" --instance "$2" down
    ' runherd-watcher "$owner" "$instance" "$dev_dir/servers.sh" </dev/null >/dev/null 2>&1 8<&- &
    echo "$! $(started_at "$!")" >"$instance/watcher"
}

stop_watching() {
    local pid start
    [[ -z ${RUNHERD_WATCHER:-} && -f $instance/watcher ]] || return 0
    read -r pid start <"$instance/watcher" || return 0
    if is_alive "$pid" "$start"; then
        # shellcheck disable=SC2046
        signal_all KILL $(process_tree "$pid")
    fi
}

# --- folders and ports

# Two scripts may act on one instance at once (its watcher, a sweep, its owner): the folder itself is the lock. A script
# that had to wait may find the folder gone.
lock_instance() {
    { exec 8<"$instance"; } 2>/dev/null || return 0
    flock 8
}

# Where the servers keep their data: in the instance's folder, except where a server could not live there. PostgreSQL
# refuses to run as root, and the user it runs as instead may be barred from the clone by a folder above it (/root has
# mode 0700); RabbitMQ's scripts break on blanks in a path. There it is a folder in /var/tmp, with a pointer to it
# here and a pointer back there, so that neither side outlives the other unnoticed.
make_data_root() {
    local root=$instance/data
    if ((EUID == 0)) || [[ $instance =~ [^A-Za-z0-9._/-] ]]; then
        root=$(mktemp -d /var/tmp/runherd.XXXXXXXX)
        printf '%s\n' "$root" >"$instance/data-root"
        printf '%s\n' "$instance" >"$root/instance"
        chmod 711 "$root"
    else
        mkdir "$root"
        printf '%s\n' "$root" >"$instance/data-root"
    fi
}

remove_data() {
    local root
    [[ -f $instance/data-root ]] || return 0
    root=$(<"$instance/data-root")
    [[ -z $root ]] || rm -rf -- "$root"
}

# Data whose instance folder was deleted by hand, with whatever still runs on it.
sweep_data() {
    local root here=$instance pids
    for root in /var/tmp/runherd.*/; do
        root=${root%/}
        [[ -O $root && ! -L $root && -f $root/instance ]] || continue
        instance=$(<"$root/instance")
        [[ -n $instance && ! -d $instance ]] || continue
        mapfile -t pids < <(marked_processes)
        signal_all KILL "${pids[@]}"
        rm -rf -- "$root"
    done
    instance=$here
}

# A port nobody listens on, below the range that outgoing connections draw theirs from. It may be taken before it is
# used: whoever starts a server on it tries again.
free_port() {
    local port
    while true; do
        port=$((20000 + ${SRANDOM:-$((RANDOM * 32768 + RANDOM))} % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return 0
        fi
    done
}

can_install() {
    command -v apt-get >/dev/null && { ((EUID == 0)) || command -v sudo >/dev/null; }
}
