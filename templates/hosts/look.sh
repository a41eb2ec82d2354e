#!/bin/sh
# From templates/hosts/look.sh of verl-ingest; edit that.
# What a host has, a fact a line. Run as root, or as the agent's user.
#
#   look.sh logs USER PATTERN...                     which log files USER may read, and what closes the others
#   look.sh host USER FLUENT_BIT STATE PATTERN...    this, and: name, version of Fluent Bit, room at the state folder
set -u

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
logs)
    shift
    logs "$@"
    ;;
host)
    user=$2 fluent_bit=$3 state=$4
    shift 4
    echo "node $(uname -n)"
    echo "version $("$fluent_bit" --version 2>/dev/null | sed -n 's/^Fluent Bit v//p')"
    room "$state"
    logs "$user" "$@"
    ;;
*)
    echo "look.sh: say logs or host." >&2
    exit 1
    ;;
esac
