#!/bin/sh
# Leaves its environment and its arguments in DIRECTORY, by rank.
env -0 > "$1/environment.$RANK"
shift
printf '%s\n' "$0" "$@" > "$PWD/arguments.$RANK"
