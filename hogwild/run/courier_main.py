"""What the courier's process does, from its start to its end; see `hogwild.nodes.courier`."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing import connection

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hogwild.errors import NodeError, one_line
from hogwild.nodes.courier import Courier
from hogwild.nodes.gloo import GlooMail
from hogwild.nodes.party import Invitation, connect
from hogwild.nodes.peer import Lost
from hogwild.shared.arena import Arena
from hogwild.shared.file_locks import set_locks
from hogwild.shared.state import SharedState, StatePlan
from hogwild.workers.process_main import leave_with_parent

_FORMING = 120.0  # seconds for the couriers to find each other


@dataclass(frozen=True)
class Ended:
    """The courier has ended: all machines have all versions, or `why` it cannot go on."""

    why: str = ""


def courier_main(
    plan: StatePlan,
    arena: Arena,
    start: int,
    per_update: int,
    invitation: Invitation,
    prefix: str,
    pipe: connection.Connection,
) -> None:
    """Connect to the couriers of the other machines, and carry gradients; `prefix`: of the run's keys in the store.

    The process ends without destructors, which may wait for machines that are gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what ends
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        state = SharedState(plan, arena)
        set_locks(state.control, arena, 0)
        dealing = plan.dealing
        store = PrefixStore(f"{prefix}/couriers", connect(invitation))
        mail = GlooMail(store, dealing.node, dealing.nodes, _FORMING)
        Courier(state, start, per_update, mail, invitation.timeout, lambda lost: _tell(pipe, lost)).run()
        _tell(pipe, Ended())
    except (ConnectionError, NodeError) as error:
        _tell(pipe, Ended(one_line(error)))
    except BaseException as error:
        _tell(pipe, Ended(f"{type(error).__name__}: {one_line(error)}"))
    os._exit(0)


def _tell(pipe: connection.Connection, news: Lost | Ended) -> None:
    pipe.send(news)
