"""One run at a time in a sync folder: another one would delete weights that servers are reading.

The claim is a POSIX lock on a file, which also works on NFS, and which the system gives back when
the process ends, however it ends. So whatever a killed run left in the folder is nobody's.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

from agentgym.errors import TrainingError

logger = logging.getLogger(__name__)

LOCK = ".agentgym-run.lock"

_held: dict[Path, tuple[int | None, FolderClaim]] = {}
"""Open lock files of this process; None where files can't be locked. Such a lock is the process's,
and closing any handle of its file gives it back: one handle serves all that claim a folder."""


class FolderClaim:
    """The right to write and delete weights in a folder.

    Within one process a later claim takes over from an earlier one: a notebook whose first attempt
    failed has it still.

    Args:
        folder: It must be there when the claim is taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / LOCK

    def take(self) -> None:
        """Claim the folder.

        Raises:
            TrainingError: If another process has it.
        """
        earlier = _held.get(self._path)
        handle = earlier[0] if earlier is not None else self._locked()
        _held[self._path] = (handle, self)

    @property
    def is_ours(self) -> bool:
        """Whether it was taken, and neither given back nor taken over."""
        return self._path in _held and _held[self._path][1] is self

    def require(self) -> None:
        """See that nobody has taken the folder over.

        Raises:
            TrainingError: If a later run of this process has.
        """
        if not self.is_ours:
            raise TrainingError(
                f"the sync folder {self._folder} was taken over by a later run in this process; "
                "give each run a folder of its own"
            )

    def release(self) -> None:
        """Give the folder back, if it is ours."""
        if not self.is_ours:
            return
        handle, _ = _held.pop(self._path)
        self._path.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)

    def _locked(self) -> int | None:
        """A handle of the locked file; None where files can't be locked."""
        while True:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise TrainingError(
                    f"the sync folder {self._folder} can't be claimed ({error.strerror or error})"
                ) from error
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = os.pread(handle, 200, 0).decode(errors="replace").strip()
                os.close(handle)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    logger.warning(
                        "%s can't be locked (%s): see that no other run has the sync folder",
                        self._path,
                        error.strerror,
                    )
                    return None
                raise TrainingError(
                    f"the sync folder {self._folder} is another run's ({owner or 'unknown'}), "
                    "which goes on: give each run a folder and servers of its own, or end that one"
                ) from error
            if self._is_there(handle):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                return handle
            os.close(handle)  # whoever had it deleted the file in between

    def _is_there(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._path.stat())
        except FileNotFoundError:
            return False
