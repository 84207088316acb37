"""Task specs as an evaluator needs them: parsed once, kept while in use.

Guarantees: a version's content never changes, so what is kept is right for ever.
Does not: keep more than `KEPT` versions."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from tiltyard.contracts.document import parse
from tiltyard.contracts.task_spec import HiddenSpec, PublicSpec
from tiltyard.store import gradings

KEPT = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSpec:
    """Both halves of a version, and the hash of the hidden one."""

    public: PublicSpec
    hidden: HiddenSpec
    verifier: str


class Specs:
    """The versions that were asked for lately."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, FullSpec] = OrderedDict()

    def load(self, session: Session, version_ids: Iterable[str]) -> dict[str, FullSpec]:
        """The specs of these versions; absent where a version has no row."""
        wanted = set(version_ids)
        missing = [v for v in wanted if v not in self._kept]
        for row in gradings.specs(session, missing) if missing else []:
            self._kept[row.version_id] = FullSpec(
                public=parse(PublicSpec, row.public, what=f"task version {row.version_id}"),
                hidden=parse(HiddenSpec, row.hidden, what=f"verifier of task version {row.version_id}"),
                verifier=row.verifier,
            )
        found = {v: self._kept[v] for v in wanted if v in self._kept}
        for version_id in found:
            self._kept.move_to_end(version_id)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found
