# shellcheck shell=bash
# The same servers in containers, for machines that have docker compose and neither the packages nor a way to them.

compose_find() { docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; }

compose() {
    local pg=0 amqp=0 api=0
    [[ ! -f $instance/postgres.port ]] || pg=$(<"$instance/postgres.port")
    [[ ! -f $instance/rabbitmq.ports ]] || read -r amqp api _ <"$instance/rabbitmq.ports"
    RUNHERD_PG_PORT=$pg RUNHERD_AMQP_PORT=$amqp RUNHERD_AMQP_API_PORT=$api RUNHERD_PG_FSYNC=$(<"$instance/fsync") \
        docker compose --project-name "runherd-$(cksum <<<"$instance" | cut -d' ' -f1)" \
        --file "$clone/deploy/compose.yaml" "$@" 8<&-
}

compose_create() { :; }

compose_choose_ports() {
    case $1 in
    postgres) free_port >"$instance/postgres.port" ;;
    rabbitmq) echo "$(free_port) $(free_port) 0 0 compose" >"$instance/rabbitmq.ports" ;;
    esac
}

compose_start() { compose up --detach --no-deps --wait --wait-timeout "$timeout_seconds" "$1" >>"$instance/$1.log" 2>&1; }
compose_stop() { compose stop "$1" >>"$instance/$1.log" 2>&1; }
compose_kill() { compose kill --signal KILL "$1" >>"$instance/$1.log" 2>&1; }
compose_pause() { compose pause "$1" >>"$instance/$1.log" 2>&1; }
compose_continue() { compose unpause "$1" >>"$instance/$1.log" 2>&1; }
compose_running() { [[ -n $(compose ps --quiet --status running "$1" 2>/dev/null) ]]; }
compose_ctl() { compose exec --no-TTY rabbitmq rabbitmqctl "$@"; }

compose_remove() {
    compose logs --no-color "$1" >>"$instance/$1.log" 2>&1 || true
    compose rm --force --stop --volumes "$1" >>"$instance/$1.log" 2>&1 || true
    # The network goes with the last container.
    [[ -n $(compose ps --all --quiet 2>/dev/null) ]] || compose down --volumes >>"$instance/$1.log" 2>&1 || true
}
