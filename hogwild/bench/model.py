"""A model of a step, fitted to a profile: how many updates a second more workers on more cores would make.

It is a closed network of queues, solved by mean value analysis (Reiser & Lavenberg 1980, doi:10.1145/322186.322195).
Each of W workers goes round and round:

    pad  ──▶  compute, on one of C cores  ──▶  commit: one at a time, or no queue  ──▶  memory, shared by all
     p              T(W)                            S(W) + h                                b / B

    W     workers; at most τ + 1 of them count where the rule has a staleness τ
    C     cores
    p     seconds of a wait that is part of each gradient and takes no core (`--pad-ms`)
    T(W)  seconds of a step that workers spend side by side: every phase of the profile but wait and commit
    S(W)  seconds of a commit; where the rule lets commits overlap they are part of T(W), and S = 0
    h     seconds of the hand-over from one commit to the next: what W = 2 took longer than all else explains
    b, B  bytes that a commit moves at least, and bytes a second of all cores together: 0 for what caches hold

T and S grow with W, for the lines that a worker reads lie in another's cache with a chance of (W − 1) / W. With the
measured a₁ at one worker and a₂ at two: a(W) = a₁ + 2 (a₂ − a₁) (W − 1) / W, never below a₁.

A station of demand D with n − 1 others in the network takes R(n) = D (1 + q(n) / c), where c serve at once and
q(n) = max(0, Q(n − 1) + 1 − c) wait before it: c = C for the cores, 1 for commits and for memory. From n = 1 up,
X(n) = n / (p + Σ R(n)) and Q(n) = X(n) R(n). A commit takes a core too, so X is never above C / (T + S).

What it leaves out: what waiting costs, caches that a wait leaves cold, other programs, several sockets, clocks that
fall when all cores are busy.
It is fitted at one worker and at two, to the fastest repeat of each phase, and says more the nearer to these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

WAIT, COMMIT = "wait", "commit"
CACHED = 32 << 20  # bytes; a commit that moves less finds most of them in a cache
_STEPS = 60  # of the bisection


@dataclass(frozen=True)
class StepModel:
    """The numbers of one rule on one problem, in seconds; `compute` and `commit` at one worker and at two.

    Attributes:
        compute: T(1) and T(2).
        commit: S(1) and S(2).
        handover: h.
        memory: b / B.
        most: workers that can be busy at once; None where any number can.
    """

    compute: tuple[float, float]
    commit: tuple[float, float]
    handover: float = 0.0
    memory: float = 0.0
    most: int | None = None

    @classmethod
    def fitted(
        cls,
        one: Mapping[str, float],
        two: Mapping[str, float] | None,
        *,
        in_turn: bool,
        cores: int,
        commit_bytes: float = 0.0,
        bandwidth: float = float("inf"),
        most: int | None = None,
    ) -> StepModel:
        """From the phases of a step at one worker and at two, in seconds; without the second nothing grows with W.

        `in_turn`: one commit is made at a time; `cores`: of the machine that was profiled; `bandwidth`: B.
        """
        other = one if two is None else two
        commit = (one[COMMIT], max(one[COMMIT], other[COMMIT])) if in_turn else (0.0, 0.0)
        compute = _beside(one, in_turn), max(_beside(one, in_turn), _beside(other, in_turn))
        moved = commit_bytes / bandwidth if commit_bytes > CACHED else 0.0
        model = cls(compute, commit, memory=0.0, most=most)
        if two is not None and in_turn:
            model = replace(model, handover=model._handover(sum(two.values()), cores))
        return replace(model, memory=moved)

    def updates_per_second(self, workers: int, cores: int, pad: float = 0.0) -> float:
        """X(W): what so many workers on so many cores make."""
        busy = workers if self.most is None else min(workers, self.most)
        compute = _grown(self.compute, busy)
        commit = _grown(self.commit, busy)
        in_turn = commit + (self.handover if busy > 1 else 0.0)
        stations = [(compute, cores), (in_turn, 1), (self.memory, 1)]
        return min(_throughput(stations, pad, busy), cores / (compute + commit))

    def _handover(self, step: float, cores: int) -> float:
        """The h at which two workers take as long as they did."""
        low, high = 0.0, step
        for _ in range(_STEPS):
            middle = (low + high) / 2
            fast = replace(self, handover=middle).updates_per_second(2, cores) > 2 / step
            low, high = (middle, high) if fast else (low, middle)
        return low if low > 1e-9 else 0.0


def _beside(phases: Mapping[str, float], in_turn: bool) -> float:
    """What workers do side by side."""
    return sum(seconds for name, seconds in phases.items() if name != WAIT and not (in_turn and name == COMMIT))


def _grown(measured: tuple[float, float], workers: int) -> float:
    one, two = measured
    return one + 2 * (two - one) * (workers - 1) / workers


def _throughput(stations: Sequence[tuple[float, int]], pad: float, customers: int) -> float:
    """Mean value analysis: rounds a second of that many customers; a station is its demand and how many it serves."""
    queues, found = [0.0] * len(stations), 0.0
    for number in range(1, customers + 1):
        times = [
            demand * (1 + max(0.0, queue + 1 - servers) / servers)
            for (demand, servers), queue in zip(stations, queues, strict=True)
        ]
        found = number / (pad + sum(times))
        queues = [found * seconds for seconds in times]
    return found
