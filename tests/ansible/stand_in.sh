#!/bin/sh
# Stands in for the program pollux of a cluster's scripts; its process is a real one. What it says is in files beside it: `status` has
# the status, `more` other fields of it, `members` what `ha query` says, `history` the activations; `hung`, `refuse`, `suspects`, `broken`, `deaf` make it hang, refuse (but for `--discard`), end at once, or ignore SIGTERM.
cd "$(dirname "$0")" || exit 1
case "$1 $2" in
run*)
    [ -e broken ] && exit 1
    echo joining >status
    [ -e deaf ] && trap '' TERM || trap 'kill $!; rm -f status; exit 0' TERM
    while :; do sleep 1000 & wait; done ;;
esac
[ -e hung ] && exit 3
[ -s status ] || exit 3
[ "$1" = status ] && { printf '{"activation": {"replication": {"complete": true},
    "active_passive": {"status": "%s", "number": "%s"%s}}}' \
    "$(cat status)" "$(cat number 2>/dev/null)" "$(cat more 2>/dev/null)"; exit; }
[ "$1" = history ] && { cat history; exit; }
case "$2 $3" in
ping*) ;;
query*) cat members ;;
"status --is-primary") grep -qxE 'active|recovering' status ;;
status*) cat status ;;
promote*) case "$*" in *--discard*) ;; *) [ -e suspects ] && { echo "Refused: may have newer data"; exit 2; } ;; esac
    [ -e refuse ] && { echo "Refused: still catching up"; exit 2; }; shift 3
    echo "$*" | sed 's/ *--pollux-exit-codes.*//' >promoted; echo recovering >status ;;
demote*) [ -e refuse ] && exit 2; echo joining >status ;;
grant*) echo "$*" >>asked; echo '{"grant_left_ms": 5}' ;;
esac
