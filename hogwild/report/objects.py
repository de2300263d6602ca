"""Results as JSON objects."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hogwild.experiment import Findings, Study


def to_json(value: Any) -> str:
    """JSON text; numbers that JSON does not have become null."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def study_object(study: Study, findings: Findings, *, seconds: float, seed: int, out: Path) -> dict[str, Any]:
    """What `findings.json` and `hogwild run STUDY --json` hold."""
    return {
        "name": study.name,
        "question": study.question,
        "settled": all(claim.settled for claim in findings.claims),
        "claims": [
            {
                "claim": claim.text,
                "measured": claim.measured,
                "holds": claim.holds,
                "expected": claim.expected,
                "settled": claim.settled,
            }
            for claim in findings.claims
        ],
        "tables": [{"headings": table.headings, "rows": table.rows} for table in findings.tables],
        "answer": findings.answer,
        "figures": list(findings.figures),
        "seconds": seconds,
        "seed": seed,
        "out": out,
    }
