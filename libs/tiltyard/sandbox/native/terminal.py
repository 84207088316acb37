"""A pseudo-terminal for a command in a box: the slave is the command's, the master ours.

Guarantees: whatever the command does to it reaches this pair alone; descriptors are closed once.
Does not: exist as a file in the box. Programs find it on their streams and at /dev/tty, without a name."""

import fcntl
import os
import struct
import termios

from tiltyard.sandbox.errors import InvalidExec


class Terminal:
    """Two ends, of so many rows and columns."""

    def __init__(self, rows: int, columns: int) -> None:
        """Raises InvalidExec."""
        self.master, self.slave = os.openpty()
        try:
            set_size(self.master, rows, columns)
        except InvalidExec:
            self.close()
            raise
        os.set_blocking(self.master, False)

    @property
    def ends(self) -> tuple[int, int]:
        return self.master, self.slave

    def hand_over(self) -> None:
        """The command has the slave: while we held it too, the terminal would never end."""
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1

    def take_master(self) -> int:
        """The master, from now on the caller's to close."""
        master, self.master = self.master, -1
        return master

    def close(self) -> None:
        self.hand_over()
        if self.master >= 0:
            os.close(self.take_master())


def set_size(fd: int, rows: int, columns: int) -> None:
    """Raises InvalidExec for a size that no terminal has."""
    if not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
        raise InvalidExec(f"a terminal of {rows} rows and {columns} columns: give 1 to 65535 of each")
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("=4H", rows, columns, 0, 0))
