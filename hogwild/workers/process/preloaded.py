"""What workers find imported: torch, the rules, and all that they stand on; and torch asks for huge pages, and MKL's
vector functions have been called."""

import multiprocessing.popen_forkserver  # noqa: F401 - of which each process is that a fork server has forked
import pickle

import torch

import hogwild.workers.loop
import hogwild.workers.process.process_main  # noqa: F401
from hogwild.rules.registry import NAMES, rule_class
from hogwild.workers.surroundings.allocator import ask_for_huge_pages
from hogwild.workers.surroundings.vector_math import call_vector_functions

ask_for_huge_pages()
for name in NAMES:
    rule_class(name)
pickle.loads(pickle.dumps(torch.zeros(1)))  # for which torch imports more
call_vector_functions()
