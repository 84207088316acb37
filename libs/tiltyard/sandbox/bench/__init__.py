"""How fast boxes are on this machine, beside others in the same run."""

from .effort import Effort
from .measure import measure

__all__ = ["Effort", "measure"]
