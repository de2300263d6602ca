"""A state, whoever made it: the tensors of a module, a state dict or a file, one at a time, as plain bytes.

Nothing here runs code from a file: safetensors files hold none, and `torch.save` files are read with
`weights_only=True`.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from torch import nn

from hogwild.determinism.ulp import FORMATS, Bits, Format
from hogwild.errors import ArgumentError, HogwildError, RunDirectoryError, a_type, printable, short_traceback
from hogwild.shared.hashing import header, is_extra

StateLike: TypeAlias = nn.Module | Mapping[str, object] | str | os.PathLike[str]

_MAX_DEPTH = 64
_MAX_ENTRIES = 1_000_000
_MAX_EXPANDED_BYTES = 1 << 30


@dataclass(frozen=True)
class StateEntry:
    """One tensor of a state.

    Attributes:
        dtype: its name as torch and numpy write it, such as `bfloat16`.
        shape: its shape.
        data: its bytes in row-major order, flat uint8; a view of the tensor's own memory where that is
            contiguous.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def format(self) -> Format:
        """How the bytes read as real numbers."""
        return FORMATS[self.dtype]

    @property
    def bits(self) -> Bits:
        """The bytes as unsigned integers `(V,)`, one for each real number."""
        return self.data.view(self.format.bits)


class OpenedState:
    """The tensors of one state by name.

    Attributes:
        names: of all tensors, sorted.
        unmeasured: names of entries that are no tensors (numbers, text, objects), sorted.
    """

    def __init__(
        self,
        label: str,
        tensors: Mapping[str, Callable[[], object]],
        unmeasured: list[str],
        error: type[HogwildError],
    ) -> None:
        self.names = sorted(tensors)
        self.unmeasured = sorted(unmeasured)
        self._label = label
        self._tensors = tensors
        self._error = error

    def value(self, name: str) -> object:
        """One tensor or array as it is."""
        return self._tensors[name]()

    def entry(self, name: str) -> StateEntry:
        """Read one tensor.

        Raises:
            ArgumentError: the tensor has no dense bytes (sparse, quantized, meta) or an unknown dtype.
            RunDirectoryError: the same in a file, or the file is damaged there.
        """
        try:
            return entry_of(self._tensors[name]())
        except ArgumentError as error:
            raise self._error(f"{self._label}: entry {printable(name)!r} {error}") from None
        except safetensors.SafetensorError as error:
            raise RunDirectoryError(
                f"{self._label}: entry {printable(name)!r} cannot be read: {printable(str(error))}"
            ) from error


def entry_of(value: object) -> StateEntry:
    """The bytes of one tensor, numpy array or numpy scalar of any shape and strides.

    Raises:
        ArgumentError: it has no dense bytes, or a dtype that cannot be measured.
    """
    if isinstance(value, torch.Tensor):
        if nn.parameter.is_lazy(value):
            raise ArgumentError("is not initialised yet; run the module once first")
        return _entry_of_tensor(value.detach())
    array = np.asarray(value)
    if array.dtype.name not in FORMATS:
        raise ArgumentError(f"has the dtype {array.dtype}, which cannot be measured")
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return StateEntry(native.dtype.name, array.shape, native.reshape(-1).view(np.uint8))


def _entry_of_tensor(tensor: torch.Tensor) -> StateEntry:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else str(tensor.layout)
        raise ArgumentError(f"is a {kind} tensor, which has no dense bytes; convert it first, as with to_dense()")
    if dtype not in FORMATS:
        raise ArgumentError(f"has the dtype {dtype}, which cannot be measured")
    row_major = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    return StateEntry(dtype, tuple(tensor.shape), row_major.reshape(-1).view(torch.uint8).numpy())


@short_traceback
def digest(state: StateLike) -> str:
    """SHA-256 of a state: equal exactly when names, dtypes, shapes and bytes of all tensors are.

    For each tensor in the order of its name (by code point) the hash takes name, dtype and shape as text, such
    as `0.weight\\0torch.float32\\0[2, 3]\\0` in UTF-8, and then the tensor's bytes: row-major whatever its
    strides, in the machine's byte order. Entries that are no tensors do not count, nor do tensors inside a
    module's extra state. A module, its `state_dict()`, the same as numpy arrays and a file of it have one
    digest. A contiguous tensor in CPU memory is hashed without a copy, any other with a copy of that tensor
    alone.

    Args:
        state: a module, a state dict (see `opened` for nested ones), or the path of a file.

    Returns:
        64 hexadecimal digits.

    Raises:
        ArgumentError: a tensor has no dense bytes or an unknown dtype, or the argument is no state.
        RunDirectoryError: a file is missing or damaged.
    """
    sha = hashlib.sha256()
    with opened(state) as tensors:
        for name in tensors.names:
            entry = tensors.entry(name)
            sha.update(header(name, f"torch.{entry.dtype}", entry.shape))
            sha.update(entry.data.data)
    return sha.hexdigest()


@contextmanager
def opened(state: StateLike, label: str = "the state") -> Iterator[OpenedState]:
    """Open a state for reading, tensor by tensor.

    Containers inside a state dict (a checkpoint `{"model": …, "optimizer": …}`) are entered, and their
    tensors named with dots: `model.0.weight`; what a module keeps as extra state is not.

    Args:
        state: a module, a mapping of tensors or numpy arrays, or the path of a safetensors or `torch.save`
            file.
        label: what error messages call it, unless it is a file, which is called by its path.

    Raises:
        ArgumentError: it is no state, or none of its entries is a tensor.
        RunDirectoryError: the file is missing, damaged, or would have to run code to be loaded.
    """
    if isinstance(state, nn.Module):
        yield _from_mapping(label, state.state_dict(), ArgumentError)
    elif isinstance(state, Mapping):
        yield _from_mapping(label, state, ArgumentError)
    elif isinstance(state, (str, os.PathLike)):
        path = Path(state)
        if _is_safetensors(path):
            with _safetensors_state(path) as found:
                yield found
        else:
            yield _from_mapping(str(path), _load_torch(path), RunDirectoryError, check=_refuse_expanded)
    else:
        raise ArgumentError(
            f"{label} is {a_type(state)}; give a module, a state dict, or the path of a safetensors or torch.save file"
        )


def _from_mapping(
    label: str,
    mapping: object,
    error: type[HogwildError],
    check: Callable[[torch.Tensor], None] = lambda _: None,
) -> OpenedState:
    if not isinstance(mapping, Mapping):
        raise error(f"{label}: holds {a_type(mapping)}, not a state dict; save model.state_dict()")
    tensors: dict[str, object] = {}
    others: list[str] = []
    for name, value in _leaves(label, mapping, error):
        if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            others.append(name)
            continue
        if "\0" in name:
            raise error(f"{label}: the name {printable(name)!r} contains a zero byte")
        if name in tensors:
            raise error(f"{label}: two entries have the name {printable(name)!r}")
        tensors[name] = value
    if not tensors and (others or error is RunDirectoryError):
        raise error(f"{label}: none of its {len(others)} entries is a tensor")

    def reader(value: object) -> Callable[[], object]:
        def read() -> object:
            if isinstance(value, torch.Tensor):
                check(value)
            return value

        return read

    return OpenedState(label, {name: reader(value) for name, value in tensors.items()}, others, error)


def _leaves(label: str, root: object, error: type[HogwildError]) -> Iterator[tuple[str, object]]:
    """Walk nested containers, but for those that are a module's extra state; the limits end the walk where a hostile
    file's containers hold themselves."""
    pending: list[tuple[str, int, object]] = [("", 0, root)]
    for _ in range(_MAX_ENTRIES):
        if not pending:
            return
        name, depth, value = pending.pop()
        if is_extra(name) and not isinstance(value, torch.Tensor):
            yield name, None
            continue
        if isinstance(value, Mapping):
            children = list(value.items())
        elif isinstance(value, (list, tuple)):
            children = list(enumerate(value))
        else:
            yield name, value
            continue
        if depth == _MAX_DEPTH:
            raise error(f"{label}: containers more than {_MAX_DEPTH} deep are no state dict")
        pending += [(f"{name}.{key}" if depth else str(key), depth + 1, child) for key, child in children]
    raise error(f"{label}: more than {_MAX_ENTRIES:,} entries are no state dict")


def _is_safetensors(path: Path) -> bool:
    """Tell the two kinds of file apart by content: the JSON header of safetensors opens at byte 8."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
            raise RunDirectoryError(f"{path}: is not a plain file")
        with path.open("rb") as file:
            return file.read(9)[8:] == b"{"
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror}") from error


@contextmanager
def _safetensors_state(path: Path) -> Iterator[OpenedState]:
    try:
        handle: Any = safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise RunDirectoryError(f"{path}: not a whole safetensors file: {printable(str(error))}") from error

    def reader(name: str) -> Callable[[], object]:
        return lambda: handle.get_tensor(name)

    with handle:
        names = handle.keys()
        if not names:
            raise RunDirectoryError(f"{path}: none of its 0 entries is a tensor")
        if any("\0" in name for name in names):
            raise RunDirectoryError(f"{path}: the name of an entry contains a zero byte")
        yield OpenedState(str(path), {name: reader(name) for name in names}, [], RunDirectoryError)


def _load_torch(path: Path) -> object:
    """Read a `torch.save` file; in the zip format (torch 1.6 and later) tensors stay on disk until used."""
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
        if zipped:
            with zipfile.ZipFile(path) as archive:
                packed = any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist())
            if packed:
                raise RunDirectoryError(f"{path}: a compressed zip file, which torch.save does not write")
        loaded: object = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except RunDirectoryError:
        raise
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise RunDirectoryError(f"{path}: {_why_not_loaded(error)}") from error
    return loaded


def _why_not_loaded(error: Exception) -> str:
    refused = re.search(r"Unsupported (?:global|class): (?:GLOBAL )?([\w.]+)", str(error))
    if refused:
        return f"needs {refused[1]} to load, but only tensors are loaded; save model.state_dict()"
    cause = f"{type(error).__name__}: {printable(str(error))}"
    return f"neither a safetensors file nor a whole torch.save file of tensors ({cause})"


def _refuse_expanded(tensor: torch.Tensor) -> None:
    """Refuse the tensor of a file that repeats a little memory over sizes that would fill this machine's."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return
    size = tensor.numel() * tensor.element_size()
    if size > max(_MAX_EXPANDED_BYTES, tensor.untyped_storage().nbytes()):
        raise ArgumentError(f"claims {size:,} bytes, more than the file holds")
