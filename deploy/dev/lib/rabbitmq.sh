# shellcheck shell=bash
# A private RabbitMQ from an installed package: its own node name, cookie, port mapper (epmd) and data, all of it
# listening on 127.0.0.1 only, with the management API.

rabbitmq_package() { echo rabbitmq-server; }

# The folder with the server's own scripts, in $rabbit_bin. What Debian puts into /usr/sbin is a wrapper that changes
# user and folder, so it is not that.
rabbitmq_find() {
    local folder
    rabbit_bin=
    for folder in /usr/lib/rabbitmq/bin /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin /opt/rabbitmq/sbin; do
        if [[ -x $folder/rabbitmq-server ]]; then
            rabbit_bin=$folder
            break
        fi
    done
    [[ -n $rabbit_bin ]] && command -v epmd >/dev/null
}

rabbitmq_home() { echo "$(<"$instance/data-root")/rabbitmq"; }

# Nothing of the caller's environment reaches the server: RABBITMQ_* and ERL_* variables would change what it does.
rabbitmq_environment() {
    local home amqp api dist epmd node
    home=$(rabbitmq_home)
    read -r amqp api dist epmd node <"$instance/rabbitmq.ports"
    rabbit_env=(
        env -i "PATH=$PATH" "HOME=$home" LANG=C.UTF-8 "RUNHERD_INSTANCE=$instance"
        "ERL_EPMD_PORT=$epmd" ERL_EPMD_ADDRESS=127.0.0.1
        "RABBITMQ_NODENAME=$node" "RABBITMQ_NODE_PORT=$amqp" RABBITMQ_NODE_IP_ADDRESS=127.0.0.1
        "RABBITMQ_DIST_PORT=$dist"
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}"
        RABBITMQ_CTL_DIST_PORT_MIN=20000 RABBITMQ_CTL_DIST_PORT_MAX=32000
        "RABBITMQ_CONF_ENV_FILE=$home/rabbitmq-env.conf"
        "RABBITMQ_CONFIG_FILE=$home/rabbitmq.conf" "RABBITMQ_ADVANCED_CONFIG_FILE=$home/advanced.config"
        "RABBITMQ_ENABLED_PLUGINS_FILE=$home/enabled_plugins"
        "RABBITMQ_MNESIA_BASE=$home/mnesia" "RABBITMQ_LOG_BASE=$home/log" RABBITMQ_LOGS=-
        "RABBITMQ_GENERATED_CONFIG_DIR=$home/config" "RABBITMQ_SCHEMA_DIR=$home/schema"
        "RABBITMQ_PID_FILE=$home/pid"
    )
    : "$api"
}

rabbitmq_create() {
    local home
    home=$(rabbitmq_home)
    (umask 077 && mkdir -p "$home"/{mnesia,log,config,schema}) || return 1
    (umask 077 && head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$home/.erlang.cookie")
    chmod 400 "$home/.erlang.cookie"
    : >"$home/rabbitmq-env.conf"
    echo '[rabbitmq_management].' >"$home/enabled_plugins"
    # Tests read queue depths through the API: figures that are renewed every 5 s would make each of them wait.
    cat >"$home/advanced.config" <<'CONF'
[{rabbit, [{collect_statistics_interval, 200}, {quorum_tick_interval, 200}]}].
CONF
}

rabbitmq_choose_ports() {
    local home api
    home=$(rabbitmq_home)
    api=$(free_port)
    echo "$(free_port) $api $(free_port) $(free_port) runherd-$BASHPID-$RANDOM@localhost" >"$instance/rabbitmq.ports"
    cat >"$home/rabbitmq.conf" <<CONF
management.tcp.ip = 127.0.0.1
management.tcp.port = $api
log.console = true
log.console.level = info
raft.wal_max_size_bytes = 67108864
CONF
    rm -rf "$home/mnesia" && mkdir -m 700 "$home/mnesia"
}

rabbitmq_pid() { cat "$(rabbitmq_home)/pid" 2>/dev/null; }

rabbitmq_running() {
    local pid
    pid=$(rabbitmq_pid) && is_alive "$pid"
}

# The API's own word: it is this node that answers, and it takes AMQP connections.
rabbitmq_is_ready() {
    local amqp api node answer
    read -r amqp api _ _ node <"$instance/rabbitmq.ports"
    # shellcheck disable=SC2016
    answer=$(timeout 5 bash -c '
        exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
        printf "GET /api/overview HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n" >&3
        cat <&3
    ' probe "$api" 2>/dev/null) || return 1
    [[ $answer == *"\"node\":\"$node\""* && $answer == *"\"protocol\":\"amqp\""* && $answer == *"\"port\":$amqp"* ]]
}

rabbitmq_start() {
    local epmd
    rabbitmq_running && return 0
    rabbitmq_find && rabbitmq_environment
    rm -f "$(rabbitmq_home)/pid"
    read -r _ _ _ epmd _ <"$instance/rabbitmq.ports"
    # Our own, in the foreground, so that it ends with the instance; the server would start one as a daemon.
    if ! epmd -port "$epmd" -names >/dev/null 2>&1; then
        spawn "$instance/rabbitmq.log" epmd -port "$epmd" -address 127.0.0.1
    fi
    spawn "$instance/rabbitmq.log" "${rabbit_env[@]}" "$rabbit_bin/rabbitmq-server"
    wait_ready "$spawned" rabbitmq_is_ready
}

rabbitmq_stop() {
    local pid
    pid=$(rabbitmq_pid) || return 0
    rabbitmq_continue
    signal_all TERM "$pid"
    wait_gone 60 "$pid"
}

rabbitmq_kill() {
    local pid
    pid=$(rabbitmq_pid) || return 0
    signal_all KILL "$pid"
    wait_gone 20 "$pid"
}

rabbitmq_pause() {
    local pid
    pid=$(rabbitmq_pid) && freeze "$pid"
}

rabbitmq_continue() {
    local pid pids
    pid=$(rabbitmq_pid) || return 1
    mapfile -t pids < <(process_tree "$pid")
    signal_all CONT "${pids[@]}"
}

rabbitmq_discard() { :; } # a SIGKILL is as good: it shares nothing that would stay

rabbitmq_ctl() {
    rabbitmq_find && rabbitmq_environment
    "${rabbit_env[@]}" "$rabbit_bin/rabbitmqctl" "$@"
}

rabbitmq_env() {
    local amqp api
    read -r amqp api _ <"$instance/rabbitmq.ports"
    echo "export RUNHERD_TEST_AMQP_URL='amqp://guest:guest@127.0.0.1:$amqp/%2f'"
    echo "export RUNHERD_TEST_AMQP_API_URL='http://guest:guest@127.0.0.1:$api'"
}

rabbitmq_given_env() {
    printf 'export RUNHERD_TEST_AMQP_URL=%q\n' "$RUNHERD_TEST_AMQP_URL"
    [[ -z ${RUNHERD_TEST_AMQP_API_URL:-} ]] || printf 'export RUNHERD_TEST_AMQP_API_URL=%q\n' "$RUNHERD_TEST_AMQP_API_URL"
}
