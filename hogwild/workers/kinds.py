"""The kinds of workers: for each name in `hogwild.config.KINDS` the team of that kind, which says what it is like."""

from __future__ import annotations

from collections.abc import Mapping

from hogwild.workers.processes import ProcessTeam
from hogwild.workers.spawn import refuse_removed_folder
from hogwild.workers.threads import ThreadTeam

TEAMS: Mapping[str, type[ThreadTeam] | type[ProcessTeam]] = {"threads": ThreadTeam, "processes": ProcessTeam}


def warm_up(kind: str) -> None:
    """Begin what workers of that kind need to start, ahead of the first one.

    Raises:
        ArgumentError: none can be started here.
    """
    refuse_removed_folder()
    TEAMS[kind].warm_up()
