# shellcheck shell=bash
# A private PostgreSQL from an installed package. It listens on 127.0.0.1 only and trusts whoever connects.

postgres_package() { echo postgresql; }

# The folder with the server's programs, version 15 or newer, in $pg_bin.
postgres_find() {
    local folder best=0 version
    pg_bin=${RUNHERD_PG_BIN:-}
    [[ -n $pg_bin ]] && return 0
    for folder in /usr/lib/postgresql/*/bin; do
        version=${folder%/bin}
        version=${version##*/}
        if [[ -x $folder/postgres && $version =~ ^[0-9]+$ ]] && ((version >= 15 && version > best)); then
            best=$version
            pg_bin=$folder
        fi
    done
    [[ -n $pg_bin ]]
}

# PostgreSQL refuses to run as root: there it runs as its package's user, or as nobody.
postgres_as() {
    if ((EUID == 0)); then
        local user=postgres
        id -u "$user" >/dev/null 2>&1 || user=nobody
        pg_as=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --clear-groups)
        pg_owner=$user
    else
        pg_as=()
        pg_owner=
    fi
}

postgres_create() {
    local data
    postgres_find && postgres_as
    data=$(postgres_data)
    mkdir -m 700 "$data" || return 1
    [[ -z $pg_owner ]] || chown "$pg_owner" "$data" || return 1
    (
        cd "$data" || exit 1
        env RUNHERD_INSTANCE="$instance" LC_ALL=C "${pg_as[@]}" "$pg_bin/initdb" --pgdata="$data" --username=postgres --auth=trust \
            --encoding=UTF8 --locale=C --no-sync --no-instructions
    ) </dev/null >"$instance/postgres.log" 2>&1 8<&- || return 1
    cat >>"$data/postgresql.conf" <<CONF
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
fsync = $(<"$instance/fsync")
full_page_writes = $(<"$instance/fsync")
# Segments in a file go with the data, also after a kill -9.
dynamic_shared_memory_type = mmap
logging_collector = off
log_line_prefix = '%m [%p] %d %a '
log_lock_waits = on
timezone = 'UTC'
log_timezone = 'UTC'
CONF
}

postgres_choose_ports() { free_port >"$instance/postgres.port"; }

postgres_data() { echo "$(<"$instance/data-root")/postgres"; }

# The first line of postmaster.pid is the server's pid, the eighth tells when it takes connections.
postgres_pid() { head -n 1 "$(postgres_data)/postmaster.pid" 2>/dev/null; }

postgres_running() {
    local pid
    pid=$(postgres_pid) && is_alive "$pid"
}

postgres_is_ready() {
    [[ $(sed -n 8p "$(postgres_data)/postmaster.pid" 2>/dev/null) == ready* ]]
}

postgres_start() {
    local data
    postgres_running && return 0
    postgres_find && postgres_as
    data=$(postgres_data)
    rm -f "$data/postmaster.pid"
    cd "$data" || return 1
    spawn "$instance/postgres.log" "${pg_as[@]}" "$pg_bin/postgres" -D "$data" -p "$(<"$instance/postgres.port")"
    cd "$clone" || return 1
    wait_ready "$spawned" postgres_is_ready
}

postgres_stop() {
    local pid
    pid=$(postgres_pid) || return 0
    postgres_continue
    signal_all INT "$pid"
    wait_gone 60 "$pid"
}

# The server and its children together: a child that outlives the server would still hold its shared memory.
postgres_kill() {
    local pid pids
    pid=$(postgres_pid) || return 0
    mapfile -t pids < <(process_tree "$pid")
    signal_all KILL "${pids[@]}"
    wait_gone 20 "${pids[@]}"
}

postgres_pause() {
    local pid
    pid=$(postgres_pid) && freeze "$pid"
}

postgres_continue() {
    local pid pids
    pid=$(postgres_pid) || return 1
    mapfile -t pids < <(process_tree "$pid")
    signal_all CONT "${pids[@]}"
}

# An immediate shutdown: the server takes its children and its shared memory with it.
postgres_discard() {
    local pid pids shared
    [[ -f $instance/data-root ]] && pid=$(postgres_pid) || return 0
    if is_alive "$pid"; then
        mapfile -t pids < <(process_tree "$pid")
        signal_all CONT "${pids[@]}"
        signal_all QUIT "$pid"
        wait_gone 5 "$pid" || true
    fi
    # What a killed server could not remove.
    read -r _ shared < <(sed -n 7p "$(postgres_data)/postmaster.pid" 2>/dev/null) || return 0
    ipcrm --shmem-id "$shared" 2>/dev/null || true
}

postgres_env() { echo "export RUNHERD_TEST_PG_URL='postgres://postgres@127.0.0.1:$(<"$instance/postgres.port")/postgres'"; }
postgres_given_env() { printf 'export RUNHERD_TEST_PG_URL=%q\n' "$RUNHERD_TEST_PG_URL"; }
