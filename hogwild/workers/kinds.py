"""The kinds of workers: for each name in `hogwild.config.KINDS` the team of that kind, which says what it is like."""

from __future__ import annotations

from collections.abc import Mapping

from hogwild.workers.process.spawn import refuse_removed_folder
from hogwild.workers.processes import ProcessTeam
from hogwild.workers.surroundings.interpreter import likely_kind
from hogwild.workers.threads import ThreadTeam

TEAMS: Mapping[str, type[ThreadTeam] | type[ProcessTeam]] = {"threads": ThreadTeam, "processes": ProcessTeam}


def warm_up(kind: str) -> None:
    """Begin what workers of that kind need to start, ahead of the first one. Where it is still open, that is what those
    need that are likely to be chosen.

    Raises:
        ArgumentError: none can be started here.
    """
    refuse_removed_folder()
    TEAMS[likely_kind(kind)].warm_up()
