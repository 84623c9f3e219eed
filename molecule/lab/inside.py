"""A `docker` command that runs commands in containers without asking the engine.

`docker exec` is a client, three requests, and four processes that give the command its namespaces: a tenth of a second
of a processor, and Ansible's connection asks for the engine's version twice before each. That was an eighth of what
scenarios cost. Where the engine is the lab's own, a script of this name comes first in PATH. It takes the same way as
the engine (control groups, namespaces, capabilities, environment), and leaves to the engine whatever it does not know:
another command, another user, a container that is paused or not running or has settings of its own.

What it was told of a container is kept in the engine's runtime directory, with the process that the container began as.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from lab.places import LabError

if TYPE_CHECKING:
    from pathlib import Path

    from lab.places import Places

_SCRIPT = r"""#!/bin/sh
# Runs commands in containers without asking the engine; whatever else it is told goes to docker itself (lab/inside.py).
docker='@DOCKER@' engine='@ENGINE@' kept='@KEPT@' groups='@GROUPS@'
programs=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec 3>&2 2> /dev/null

# The engine's version does not change while it runs.
version() {
    [ -s "$kept/$1" ] || { "$docker" -H="$engine" $2 > "$kept/$1.$$" && mv "$kept/$1.$$" "$kept/$1"; } || return
    cat "$kept/$1" && exit
}

# When a process that has not ended began: field 22 of its status; the second may have blanks in it.
began() {
    read -r status < "/proc/$1/stat" || return
    set -- ${status##*) }
    began=${20}
    [ "$1" != Z ]
}

# Ask the engine about a container, and keep it.
learn() {
    form='{{.State.Pid}} {{.Config.Hostname}} <{{.Config.User}}> <{{.Config.WorkingDir}}> {{len .Config.Env}}'
    told=$("$docker" -H="$engine" inspect --type container --format "$form" "$1") || return
    set -- "$1" $told
    [ "$2" != 0 ] && [ "$4 $5 $6" = '<> <> 0' ] && began "$2" || return
    while read -r name value; do
        [ "$name" != CapBnd: ] || mask=$((0x$value))
    done < "/proc/$2/status"
    number=0 may=-all
    while [ $number -lt 63 ]; do
        [ $((mask >> number & 1)) = 0 ] || may=$may,+cap_$number
        number=$((number + 1))
    done
    echo "$2 $began $3 $may" > "$kept/$1.$$" && mv "$kept/$1.$$" "$kept/$1" && read -r pid at host may < "$kept/$1"
}

# Whether the container is not paused, and this process is now in its control groups.
join() {
    places=
    while IFS=: read -r number names path; do
        case $number in
            0) place=$groups$path
                [ -e "$place/cgroup.procs" ] || place=$groups/unified$path ;;
            *) place=$groups/${names#name=}${path%/init.scope} ;;
        esac
        [ "$path" = / ] || places="$places $place"
    done < "/proc/$1/cgroup"
    for place in $places; do
        state=THAWED
        [ ! -e "$place/freezer.state" ] || read -r state < "$place/freezer.state"
        [ "$state" = THAWED ] || return
        while read -r name value; do
            [ "$name $value" != 'frozen 1' ] || return
        done 2> /dev/null < "$place/cgroup.events"
    done
    for place in $places; do
        echo $$ > "$place/cgroup.procs" || return
    done
}

enter() {
    if [ "$1" = "-H=$engine" ]; then shift; else [ "$DOCKER_HOST" = "$engine" ] || return; fi
    case $1$2$3 in
        version) version version.text version ;;
        "version--format'{{.Server.Version}}'") version version.server "version --format '{{.Server.Version}}'" ;;
    esac
    [ "$1" = exec ] || return
    shift
    input=
    while :; do
        case $1 in
            -u | --user) [ "$2" = root ] || return; shift 2 ;;
            --user=root) shift ;;
            -i | --interactive) input=yes; shift ;;
            *) break ;;
        esac
    done
    case $1 in -* | */* | '') return ;; esac
    container=$1
    shift
    [ $# -gt 0 ] || return
    read -r pid at host may < "$kept/$container" && began "$pid" && [ "$began" = "$at" ] || learn "$container" || return
    join "$pid" || return
    umask 022
    [ "$input" ] || exec < /dev/null
    exec nsenter --all --target "$pid" -- env -i PATH="$programs" HOSTNAME="$host" HOME=/root \
        setpriv --bounding-set="$may" --inh-caps=-all "$@" 2>&3 3>&-
}

enter "$@"
exec "$docker" "$@" 2>&3 3>&-
"""


def script(docker: str, engine: str, kept: Path, groups: str = "/sys/fs/cgroup") -> str:
    """The text of the command.

    `docker`: the real one; `engine`: its address; `kept`: a directory of its own; `groups`: where control groups are.
    """
    values = {"DOCKER": docker, "ENGINE": engine, "KEPT": str(kept), "GROUPS": groups}
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def path_in(places: Places) -> str:
    """A directory for PATH with the command, made in the own engine's runtime directory, which ends with the engine."""
    directory = places.runtime / "inside"
    kept = directory / "kept"
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    others = os.pathsep.join(each for each in os.environ.get("PATH", "").split(os.pathsep) if each != str(directory))
    docker = shutil.which("docker", path=others)
    if docker is None:
        raise LabError("there is no docker command in PATH")
    unfinished = directory / f".docker.{os.getpid()}"
    unfinished.write_text(script(docker, f"unix://{places.socket}", kept), encoding="utf-8")
    unfinished.chmod(0o755)
    unfinished.replace(directory / "docker")
    return str(directory)
