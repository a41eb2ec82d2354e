#!/bin/sh
# From templates/hosts/look.sh of verl-ingest; edit that.
# What a host has, a fact a line. Run as root, or as the agent's user.
#
#   look.sh agent FOLDER STATE       the host's name, and whether its agent runs (since when), or what is said of it
#   look.sh logs USER PATTERN...     which log files USER may read, and what closes the others
#   look.sh host USER FLUENT_BIT FOLDER STATE METRICS_PORT FORWARD_PORT PATTERN...
#                                    both, and: version of Fluent Bit, room at the state folder, ports that are taken
#   look.sh up STATE PORT LOG_BYTES  wait until someone listens on the port; 1 once the agent has ended, or after 30 s
set -u

# `since` is in seconds since 1970.
agent() {
    folder=$1 state=$2
    echo "node $(uname -n)"
    if [ -d /run/systemd/system ]; then
        echo "log journalctl -u verl-ingest"
        if said=$(systemctl is-active verl-ingest.service 2>&1); then
            since=$(TZ=UTC systemctl show --property ExecMainStartTimestamp --value verl-ingest.service)
            echo "since $(date -d "$since" +%s)"
        else
            echo "stopped systemd says $said"
        fi
        return
    fi
    echo "log $state/agent.log"
    if ! [ -e "$folder/agent.sh" ]; then
        echo "stopped $folder/agent.sh is not there"
        return
    fi
    said=$(sh "$folder/agent.sh" status 2>&1)
    case $? in
    0) echo "since $(stat -c %Y "$state/agent.pid")" ;;
    3) echo "stopped" ;;
    4) echo "orphan $said" ;;
    *) echo "stopped $said" ;;
    esac
}

# Whether anyone listens on a port, at whatever address.
is_taken() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v port=":$(printf '%04X' "$1")$" '$4 == "0A" && $2 ~ port {found = 1} END {exit !found}'
}

# Whether another program has a port; an agent that runs has those that it was started with, where these are known.
is_anothers() {
    is_taken "$1" || return
    [ -z "$stopped" ] || return 0
    started=$(tar -x -O -f "$folder/started" fluent-bit.yaml 2>/dev/null)
    [ -n "$started" ] && ! printf '%s\n' "$started" | grep -Eq "^ +(http_)?port: $1( |\$)"
}

# What supervises it would start it again and again. LOG_BYTES: of the log at its start.
up() {
    state=$1 port=$2 log_bytes=$3 left=30
    until is_taken "$port"; do
        if [ -d /run/systemd/system ]; then
            [ "$(systemctl show --property NRestarts --value verl-ingest.service)" = 0 ] &&
                systemctl is-active --quiet verl-ingest.service
        else
            ! tail -c "+$((log_bytes + 1))" "$state/agent.log" | grep -q 'scheduling restart'
        fi || return 1
        [ "$left" -gt 0 ] || return 1
        left=$((left - 1))
        sleep 1
    done
}

# Of the first 1,000 files. The patterns are split by the shell, at no character.
list() {
    IFS=
    for pattern; do
        for file in $pattern; do
            [ ! -f "$file" ] || printf '%s\n' "$file"
        done
    done | head -n 1000
}

logs() {
    user=$1
    shift
    if ! id "$user" >/dev/null 2>&1; then
        echo "user none"
        return
    fi
    as=
    [ "$(id -un)" = "$user" ] || as="runuser -u $user --"
    # shellcheck disable=SC2016 # the other user's shell expands it
    list "$@" | $as sh -c '
        set -f
        readable=0
        while IFS= read -r file; do
            folder=${file%/*}
            if [ -r "$file" ] && [ -r "${folder:-/}" ]; then
                readable=$((readable + 1))
                continue
            fi
            at=
            closed=$file
            IFS=/
            for name in ${folder#/}; do
                at=$at/$name
                if ! [ -r "$at" ] || ! [ -x "$at" ]; then
                    closed=$at
                    break
                fi
            done
            unset IFS
            printf "closed %s\n" "$closed"
        done
        printf "readable %s\n" "$readable"
    ' | sort -u
}

# What the nearest folder that is there has free, and what the state takes by now, in KB.
room() {
    at=$1
    while [ ! -e "$at" ]; do
        at=$(dirname "$at")
    done
    df -Pk "$at" | awk 'NR == 2 {print "free_kb", $4}'
    echo "used_kb $(du -sk "$1" 2>/dev/null | cut -f 1)"
}

case ${1-} in
agent)
    agent "$2" "$3"
    ;;
logs)
    shift
    logs "$@"
    ;;
up)
    up "$2" "$3" "$4"
    ;;
host)
    user=$2 fluent_bit=$3 folder=$4 state=$5 metrics_port=$6 forward_port=$7
    shift 7
    found=$(agent "$folder" "$state")
    printf '%s\n' "$found"
    stopped=$(printf '%s\n' "$found" | grep '^stopped')
    ! is_anothers "$metrics_port" || echo "taken metrics_port"
    ! is_anothers "$forward_port" || echo "taken forward_port"
    echo "version $("$fluent_bit" --version 2>/dev/null | sed -n 's/^Fluent Bit v//p')"
    room "$state"
    logs "$user" "$@"
    ;;
*)
    echo "look.sh: say agent, logs, host or up." >&2
    exit 1
    ;;
esac
