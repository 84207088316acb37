"""Task spec, version 1: one JSON document that says what to do, where, within what limits and how it is
graded.

Guarantees: everything a runner may see is in `TaskSpec.public()`; verifier and oracle never leave
`TaskSpec.hidden()`.
Does not: check that the tests work; admission does (services/evaluator/admission.py)."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from tiltyard.contracts.document import Document, content_hash
from tiltyard.contracts.network import NONE, NetworkDemand

MAX_TEXT = 1_000_000
MAX_FILES = 1_000


def _clean_text(text: str) -> str:
    if "\x00" in text:
        raise ValueError(f"NUL character at offset {text.index(chr(0))}; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not valid UTF-8 at offset {error.start}; remove the lone surrogate") from error
    return text


def _clean_json(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        _clean_text(value)
    elif isinstance(value, list):
        for item in value:
            _clean_json(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _clean_text(key)
            _clean_json(item)
    return value


def _inside(path: str) -> str:
    """A relative path that stays inside the folder it is written to, in its plain form."""
    pure = PurePosixPath(_clean_text(path))
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or len(path.encode()) > 255 or "\\" in path:
        raise ValueError(f"path {path!r} must be relative, inside the work folder and at most 255 characters")
    if str(pure) != path or not path.isprintable():
        raise ValueError(
            f"path {path!r} is not in its plain form; write it without '.', '//' and control signs"
        )
    return path


def _no_file_is_a_folder(files: dict[str, str]) -> dict[str, str]:
    for path in files:
        for folder in map(str, PurePosixPath(path).parents):
            if folder in files:
                raise ValueError(f"file {folder!r} is also the folder of {path!r}; rename one")
    return files


Text = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_clean_text)]
Json = Annotated[JsonValue, AfterValidator(_clean_json)]
RelativePath = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_inside)]
Files = Annotated[dict[RelativePath, Text], Field(max_length=MAX_FILES), AfterValidator(_no_file_is_a_folder)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._/-]*$")]


class Resources(Document):
    """What the sandbox may use."""

    memory_mb: int = Field(default=256, ge=16, le=65_536)
    pids: int = Field(default=64, ge=2, le=4_096)
    cpus: float = Field(default=1.0, gt=0, le=64)
    disk_mb: int = Field(default=64, ge=1, le=65_536)


class Environment(Document):
    """The sandbox that the task happens in."""

    image: Name = "host"
    files: Files = Field(default_factory=dict)
    """Text files in the work folder before the first turn."""
    resources: Resources = Resources()
    network: NetworkDemand = NONE
    """What the policy's code may reach."""


class Interface(Document):
    """How the policy answers: one message that becomes a file."""

    kind: Literal["answer"] = "answer"
    file: RelativePath = "solution.py"
    prefix: Text = ""
    """Put before the answer in the file."""
    suffix: Text = ""
    stop: tuple[Annotated[Text, Field(min_length=1, max_length=100)], ...] = Field(default=(), max_length=8)
    """Generation ends before any of these."""


class Limits(Document):
    """What an episode and a grading may take."""

    turns: int = Field(default=1, ge=1, le=1_000)
    max_tokens: int = Field(default=512, ge=1, le=1_000_000)
    """Tokens that the policy may generate in the whole episode."""
    episode_seconds: float = Field(default=120.0, gt=0, le=86_400)
    cpu_seconds: float = Field(default=5.0, gt=0, le=3_600)
    """CPU time of one run of the policy's code."""
    wall_seconds: float = Field(default=15.0, gt=0, le=7_200)
    """Wall-clock time of one run of the policy's code."""
    output_bytes: int = Field(default=1_000_000, ge=1_000, le=100_000_000)


class Case(Document):
    """One hidden call and what it must return, as JSON values."""

    args: tuple[Json, ...] = ()
    expected: Json


class ComponentBase(Document):
    """What every component of a verifier has."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_]+$")] = "tests"
    weight: float = Field(default=1.0, ge=0, le=1_000)
    gate: bool = False
    """A gate that is not fully passed makes the reward 0."""
    tier: int = Field(default=0, ge=0, le=9)
    """A tier counts only when every earlier tier is full."""


class CasesComponent(ComponentBase):
    """Calls of one function: the policy's process answers them, and the evaluator compares outside of the
    sandbox."""

    kind: Literal["cases"] = "cases"
    entry_point: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    cases: tuple[Case, ...] = Field(min_length=1, max_length=10_000)
    partial: bool = False
    """Score the share of cases passed, instead of all or nothing."""


class PythonTestsComponent(ComponentBase):
    """Python test functions in a sandbox of their own; they reach the solution only by calls over a
    socket."""

    kind: Literal["python_tests"] = "python_tests"
    files: Files = Field(min_length=1)
    """Test modules; each `test_…` function is one test, and `from solution import f` gives a proxy of the
    policy's f."""
    expected: tuple[Text, ...] = Field(min_length=1, max_length=10_000)
    """Exact ids (`module.function`) that must all pass; one missing is a failure."""
    partial: bool = False


class AnswerComponent(ComponentBase):
    """The answer's text itself against what is expected; needs no sandbox."""

    kind: Literal["answer"] = "answer"
    expected: Text
    match: Literal["exact", "stripped"] = "stripped"


Component = Annotated[CasesComponent | PythonTestsComponent | AnswerComponent, Field(discriminator="kind")]


class Verifier(Document):
    """What turns an outcome into scores."""

    components: tuple[Component, ...] = Field(min_length=1, max_length=32)
    network: NetworkDemand = NONE
    """What the sandbox of the tests themselves may reach; the policy's code has `environment.network`."""

    @model_serializer(mode="wrap")
    def _without_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A verifier without a network has the hash that it had before there were any."""
        data: dict[str, Any] = dump(self)
        if self.network == NONE:
            data.pop("network", None)
        return data

    @field_validator("components")
    @classmethod
    def _names_differ(cls, components: tuple[Component, ...]) -> tuple[Component, ...]:
        names = [c.name for c in components]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"component names must differ; {', '.join(twice)} stands twice")
        return components


class Oracle(Document):
    """An answer that must pass, and one that must fail."""

    answer: Text
    noop: Text = ""


class TaskSpec(Document):
    """A task, whole: what an author submits."""

    schema_version: Literal[1] = 1
    name: Name
    instruction: Text
    environment: Environment = Environment()
    interface: Interface = Interface()
    limits: Limits = Limits()
    verifier: Verifier
    oracle: Oracle
    tags: tuple[Name, ...] = Field(default=(), max_length=64)
    difficulty: float | None = Field(default=None, ge=0, le=1)
    """The author's estimate: the share of a beginner's tries that fail."""
    lineage: dict[Text, Text] = Field(default_factory=dict, max_length=32)
    """Where the task comes from: source, licence, parent, generator."""

    @model_validator(mode="after")
    def _the_solution_is_not_a_given_file(self) -> "TaskSpec":
        if self.interface.file in self.environment.files:
            raise ValueError(f"interface.file {self.interface.file!r} is also one of environment.files")
        _no_file_is_a_folder({**self.environment.files, self.interface.file: ""})
        return self

    def hidden(self) -> "HiddenSpec":
        return HiddenSpec(verifier=self.verifier, oracle=self.oracle)

    def public(self) -> "PublicSpec":
        """What a runner may read."""
        data: dict[str, Any] = self.model_dump(mode="json", exclude={"verifier", "oracle"})
        return PublicSpec.model_validate(data)

    def version(self) -> str:
        """The task version's name: the content hash of the whole document."""
        return content_hash(self)


class PublicSpec(Document):
    """A task spec without its verifier and oracle."""

    schema_version: Literal[1] = 1
    name: Name
    instruction: Text
    environment: Environment
    interface: Interface
    limits: Limits
    tags: tuple[Name, ...] = ()
    difficulty: float | None = None
    lineage: dict[str, str] = Field(default_factory=dict)

    def solution(self, answer: str) -> str:
        """The text of `interface.file` for an answer."""
        return f"{self.interface.prefix}{answer}{self.interface.suffix}"


class HiddenSpec(Document):
    """What only evaluators may read."""

    verifier: Verifier
    oracle: Oracle
