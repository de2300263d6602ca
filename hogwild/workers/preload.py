"""What the fork server imports, so that workers find it imported: torch, and what its first optimizer would import."""

import torch._dynamo  # noqa: F401

import hogwild.workers.processes  # noqa: F401
