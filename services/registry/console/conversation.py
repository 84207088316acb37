"""A recorded attempt as a readable conversation.

Guarantees: text is shown as it was recorded; what is missing is named.
Does not: decode tokens; the record holds the text beside them."""

from dataclasses import dataclass

from tiltyard.contracts.records import AttemptRecord
from tiltyard.contracts.task_spec import PublicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message: who said it, and what."""

    who: str
    text: str
    note: str = ""
    code: bool = False


def turns_of(spec: PublicSpec | None, attempt: AttemptRecord) -> list[Said]:
    """The task's words, the policy's, and the file that its answer became."""
    said = [Said(who="task", text=spec.instruction)] if spec is not None else []
    for turn in attempt.turns:
        versions = sorted(set(turn.policy_versions))
        by = f"policy version {', '.join(map(str, versions))}" if versions else "no tokens"
        count = len(turn.token_ids)
        note = f"{count} token{'' if count == 1 else 's'} · {by} · {turn.finish_reason}"
        said.append(Said(who="policy", text=turn.text, note=note))
    if attempt.answer is not None and spec is not None:
        said.append(Said(who="file", text=spec.solution(attempt.answer), note=spec.interface.file, code=True))
    return said
