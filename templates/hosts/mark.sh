#!/bin/sh
# From templates/hosts/mark.sh of verl-ingest; edit that.
#
#   mark.sh write FILE LINE FOLDER...    append a line to a file, in folders that are made
#   mark.sh erase FILE LINE FOLDER...    remove the file, and those of the folders, the deepest first, that are empty
#
# Root acts as the owner of the nearest folder that is there, as a training run would: a shared file system may give
# root no rights.
set -u

command=$1 file=$2 line=$3
shift 3
at=$(dirname "$file")
while [ ! -e "$at" ]; do
    at=$(dirname "$at")
done
owner=$(stat -c %U "$at")
as=
[ "$(id -u)" != 0 ] || [ "$owner" = root ] || as="runuser -u $owner --"

case $command in
write)
    # shellcheck disable=SC2016 # the other user's shell expands it
    $as sh -c 'umask 022 && mkdir -p "$(dirname "$1")" && printf "%s\n" "$2" >>"$1"' sh "$file" "$line"
    ;;
erase)
    # shellcheck disable=SC2016
    $as sh -c 'rm -f -- "$1" && shift && rmdir -- "$@" 2>/dev/null || true' sh "$file" "$@"
    ;;
esac
