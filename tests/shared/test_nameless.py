"""Files without a name: in memory where the system has such, whatever Python was built with."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import problems
import psutil
import pytest

import hogwild
from hogwild.shared import nameless
from hogwild.shared.arena import Arena

IN_MEMORY = pytest.mark.skipif(sys.platform != "linux", reason="there are files in memory on Linux only")


def only_files(folder, monkeypatch):
    """As in a sandbox that forbids those in memory."""

    def refused(*_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    monkeypatch.setattr(nameless, "_by_library", refused)
    monkeypatch.setattr(nameless, "_by_kernel", refused)
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def place_of(arena):
    return str(Path(f"/proc/self/fd/{arena.descriptor}").readlink())


@IN_MEMORY
@pytest.mark.parametrize("library", [True, False])
def test_a_python_built_with_an_old_c_library_shares_memory_and_no_file(library, monkeypatch):
    """conda's has no `os.memfd_create` on any kernel."""
    if not library and platform.machine() not in nameless._NUMBERS:
        pytest.skip("the number of that call is not known here")
    monkeypatch.delattr(os, "memfd_create")
    if not library:
        monkeypatch.setattr(nameless, "_by_library", lambda: os.memfd_create)
    arena = Arena(4096)
    assert place_of(arena).startswith("/memfd:hogwild")
    assert not os.get_inheritable(arena.descriptor)
    arena.words(0, 1)[0] = 42
    assert arena.words(0, 1)[0] == 42


@IN_MEMORY
def test_a_sandbox_that_forbids_files_in_memory_has_the_run_share_an_unlinked_one(tmp_path, monkeypatch):
    only_files(tmp_path, monkeypatch)
    arena = Arena(4096)
    assert place_of(arena).startswith(str(tmp_path))
    assert os.fstat(arena.descriptor).st_nlink == 0
    run = problems.train(kind="processes", update="ordered", updates=8)
    monkeypatch.undo()
    assert run.digest == problems.train(kind="processes", update="ordered", updates=8).digest


@IN_MEMORY
def test_what_the_kernel_or_the_c_library_refuses_is_an_error():
    """In a program of its own, for the limit holds for all of it."""
    script = (
        "import os, resource\n"
        "from hogwild.shared import nameless\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "for way in nameless._by_library, nameless._by_kernel:\n"
        "    try:\n"
        "        way()\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(errno.EMFILE)] * 2, done.stderr


def test_a_run_that_its_folder_has_no_space_for_is_refused_before_it_is_trained(tmp_path, monkeypatch):
    """A write past that would be a SIGBUS."""
    only_files(tmp_path, monkeypatch)
    space = {str(tmp_path): SimpleNamespace(free=10_000_000)}
    monkeypatch.setattr("shutil.disk_usage", space.__getitem__)
    before = psutil.Process().num_fds()
    wanted = rf"needs 16 MB of shared memory, over the 10 MB left of the space in {tmp_path}, where it is a file"
    with pytest.raises(hogwild.ArgumentError, match=wanted) as caught:
        Arena(16_000_000)
    assert "TMPDIR may name another folder" in str(caught.value)
    assert psutil.Process().num_fds() == before
    assert Arena(4096).words(0, 1)[0] == 0
