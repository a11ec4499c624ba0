#!/bin/sh
# environment.sh DIRECTORY [ARGUMENT...]: leaves its environment and its arguments there, by rank.
directory=$1
env -0 > "$directory/environment.$RANK"
shift
printf '%s\n' "$0" "$@" > "$directory/arguments.$RANK"
