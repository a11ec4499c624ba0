#!/bin/sh
# Says a line on each stream and ends with one that has no end.
echo "out-$RANK"
echo "err-$RANK" >&2
printf 'no newline at end %s' "$RANK"
