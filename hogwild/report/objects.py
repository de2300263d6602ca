"""Results as JSON objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hogwild.experiment import Findings, Study
from hogwild.run.saved.metrics import json_values


def to_json(value: Any) -> str:
    """JSON text; numbers that JSON does not have become null."""
    return json.dumps(json_values(value), indent=2, allow_nan=False)


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
