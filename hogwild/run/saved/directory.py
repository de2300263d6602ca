"""The directory that a run is saved in: made, locked, begun, written whole or not at all. Nothing in it is a pickle.

    occupied(out) → begin_directory(out, …) → the run → keep(out, files)

Files are written in a staging folder inside it. Once all are whole the staging folder gets another name: from that one
rename on the save is done, and its files are moved to their places by the saver, or by whoever opens the directory next
where the saver was killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, RunDirectoryError, printable, some_of
from hogwild.run.saved.writer import signed

FORMAT = 2  # of the run directory; 1 had no identities
SEALED_FILES = ("model.safetensors", "journal.npy")  # a changed byte in one of them is found
AVERAGED = "ema.safetensors"  # sealed too, in a run that keeps a moving average
ORIGIN = "origin.json"
CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"
WORKERS = "workers.jsonl"  # what befell them
BEST = "best.safetensors"
FAILURE = "failure.json"  # what the run failed by, until it is resumed
RUN_FILES = (
    *("run.json", CHECKPOINT, *SEALED_FILES, AVERAGED, BEST),
    *(METRICS, WORKERS, FAILURE, "run.png", ORIGIN, "config.toml"),
)
_EVENTS = "events.out.tfevents.*"  # what TensorBoard reads
SAVED = ".hogwild-saved"  # a save that is done, and whose files are not all moved yet
LOCK = ".hogwild-lock"  # signed by who writes in the folder
_STAGING = ".hogwild-saving-"
_LEFTOVERS = (LOCK, SAVED, _STAGING, f".{CHECKPOINT}.", ".saving-")  # the last two are of version 0.2.0


def begin_directory(
    out: Path, config: RunConfig, run: str = "", files: Mapping[str, str] | None = None, *, fresh: bool = True
) -> None:
    """Before training: config.toml and other files by name, so that a run that is killed can be resumed.

    Of a fresh run's folder, what another run has left is removed, its record first. A directory without run.json is
    not taken for a whole run.

    Raises:
        RunDirectoryError: nothing can be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        remove_files(out) if fresh else (out / FAILURE).unlink(missing_ok=True)
        with staging(out) as folder:
            for name, text in {**(files or {}), "config.toml": config.to_toml(run)}.items():
                (folder / name).write_text(text, encoding="utf-8")
                (folder / name).replace(out / name)
    except OSError as error:
        raise _unsaveable(out, error) from None


def _unsaveable(out: Path, error: OSError) -> RunDirectoryError:
    """Why no run can be saved there, which is all that there is to say of it."""
    why = printable(error.strerror or str(error))
    return RunDirectoryError(f"a run cannot be saved in {out} ({why}); name another one")


def remove_files(out: Path, but: Collection[str] = ()) -> None:
    """Remove the files of a run from a folder, its record first, but for some."""
    for path in (*(out / name for name in RUN_FILES if name not in but), *out.glob(_EVENTS)):
        path.unlink(missing_ok=True)


def identity_in_config(path: Path) -> str | None:
    """The run that a config.toml is of; None where it is missing, cannot be read, or says nothing of it."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("run") if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def refuse_taken(out: Path, *, replaces: bool = True) -> None:
    """Refuse to begin a run, or where none `replaces` another a sweep, in a folder that holds anything.

    Raises:
        ArgumentError: it does; the message names some of it, and the ways out.
    """
    if not out.is_dir():
        return
    held = sorted(path.name for path in out.iterdir() if not _is_leftover(path.name))
    if held:
        way_out = "overwrite=True (--overwrite) replaces the run in it, or " if replaces else ""
        raise ArgumentError(f"out {str(out)!r} is not empty (it holds {some_of(held)}); {way_out}name another folder")


# --- one writer


@contextmanager
def occupied(out: Path | None) -> Iterator[None]:
    """Inside, the folder is there, and no other program or run writes in it; None is no folder.

    What is still empty when the block is left is removed.

    Raises:
        RunDirectoryError: somebody else writes there, or it cannot be made.
    """
    if out is None:
        yield
        return
    folder = out.absolute()  # the current folder may be another one in the end
    ours = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder, out)
    except OSError as error:
        raise _unsaveable(out, error) from None
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        os.close(lock)
        _remove_empty(ours)


def _lock(folder: Path, out: Path) -> int:
    """A descriptor of the folder's lock file, locked until it is closed; the file is removed before that."""
    while True:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RunDirectoryError(
                f"another run is being written in {out} just now; wait for its end, or name another folder"
            ) from error
        except OSError:  # the file system knows no locks
            return signed(descriptor)
        with suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == (folder / LOCK).stat().st_ino:
                return signed(descriptor)
        os.close(descriptor)  # whoever had it removed it meanwhile


# --- whole or not at all


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A new folder in `out` for files that are not whole yet; removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=out))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def placed(out: Path, name: str) -> Iterator[Path]:
    """Inside, a path to write that file of `out` at; when the block is left, it takes the place of the one before."""
    with staging(out) as folder:  # safetensors makes a file of its own beside the one it writes
        yield folder / name
        (folder / name).chmod(mode_of(out, folder))
        (folder / name).replace(out / name)


def keep(out: Path, write: Callable[[Path], None]) -> None:
    """Replace the files of a run by those that `write` makes in a folder: all of them, or none."""
    finish_saving(out)
    with staging(out) as folder:
        write(folder)
        mode = mode_of(out, folder)
        for path in folder.iterdir():
            path.chmod(mode)
        folder.rename(out / SAVED)
    finish_saving(out)


def finish_saving(out: Path) -> None:
    """Move the files of a save that is done, and whose saver was killed, to their places; run.json last.

    Raises:
        RunDirectoryError: they cannot be moved.
    """
    saved = out / SAVED
    if not saved.is_dir():
        return
    try:
        for name in reversed(RUN_FILES):
            with suppress(FileNotFoundError):  # moved already
                (saved / name).replace(out / name)
        shutil.rmtree(saved, ignore_errors=True)
    except OSError as error:
        raise RunDirectoryError(f"{saved} cannot be moved to its place: {printable(str(error))}") from error


def mode_of(out: Path, folder: Path) -> int:
    """The mode that all files of the run have: that of its config.toml, or what a new file in `folder` gets."""
    for path in (out / "config.toml", folder / "config.toml"):
        with suppress(OSError):
            return stat.S_IMODE(path.stat().st_mode)
    new = folder / ".mode"
    new.touch()
    mode = stat.S_IMODE(new.stat().st_mode)
    new.unlink()
    return mode


def clear_leftovers(out: Path) -> None:
    """Finish a save that is done, and remove what savers that were killed have left."""
    finish_saving(out)
    for path in out.iterdir():
        if _is_leftover(path.name) and path.name != LOCK:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _is_leftover(name: str) -> bool:
    return name.startswith(_LEFTOVERS)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- a folder for a command's results


@contextmanager
def new_directory(name: str, out: Path | None = None) -> Iterator[Path]:
    """The folder that a run is saved in: `out`, or a new one, runs/<name>-<time>, that no other run has.

    What is still empty when the block is left, for whatever reason, is removed.

    Raises:
        ArgumentError: the folder cannot be made.
    """
    wanted = out if out is not None else Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    ours = [parent for parent in wanted.absolute().parents if not parent.exists()]
    kept = out is not None and out.exists()
    try:
        made = _made(wanted, fresh=out is None)
    except OSError as error:
        why = f"out {str(wanted)!r} cannot be made a folder ({error.strerror}); name another one"
        raise ArgumentError(why) from error
    place = made.absolute()  # the current folder may be another one in the end
    try:
        if not os.access(made, os.W_OK):
            raise ArgumentError(f"out {str(made)!r} is a folder that cannot be written to; name another one")
        yield made
    finally:
        _remove_empty(ours if kept else [place, *ours])


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not empty, or somebody else removed it
            folder.rmdir()


def _made(wanted: Path, *, fresh: bool) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(exist_ok=not fresh)
        except FileExistsError:
            if not fresh:
                raise
            number += 1
        else:
            return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Where a file is written inside: an error names it, which that of a full disk does not.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be written: {error.strerror or error}") from error


def append_lines(path: Path, lines: str) -> None:
    """Append whole lines to a file of a run that goes on.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise RunDirectoryError(f"the run cannot be saved in {path.parent}: {printable(str(error))}") from error
