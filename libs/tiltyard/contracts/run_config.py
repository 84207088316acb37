"""Run config: what `tiltyard run start FILE.toml` reads and `POST /v1/runs` takes.

Guarantees: three kinds of run, each with its own keys; a key that has no effect for a kind is an error.
Does not: look the taskset or the policy up; the registry does."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tiltyard.contracts.document import Document
from tiltyard.contracts.task_spec import Name, Resources
from tiltyard.core.capacity import Capacity
from tiltyard.core.group import Estimator

PolicyName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._/-]*@(latest|\d+)$")]
"""`run@version` or `run@latest`, where run is a run's name or id."""
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class FreshPolicy(Document):
    """A Hugging Face causal LM made from a config on the spot, with a byte-level tokenizer."""

    hidden_size: int = Field(default=128, ge=16, le=8_192, multiple_of=8)
    layers: int = Field(default=4, ge=1, le=128)
    heads: int = Field(default=4, ge=1, le=128)
    mlp_ratio: float = Field(default=3.0, gt=0, le=16)
    max_positions: int = Field(default=256, ge=16, le=131_072)

    @field_validator("heads")
    @classmethod
    def _heads_fit(cls, heads: int, info: ValidationInfo) -> int:
        size = info.data.get("hidden_size")
        if size is not None and size % (2 * heads):
            raise ValueError(
                f"hidden_size {size} must be an even multiple of heads: rotary positions need that"
            )
        return heads


class Sampling(Document):
    """How the policy generates."""

    temperature: float = Field(default=1.0, ge=0, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)


class Optimizer(Document):
    """How weights follow gradients."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon` orthogonalises the updates of the weight matrices and leaves the rest to AdamW."""
    learning_rate: float = Field(default=3e-4, gt=0, le=1)
    warmup_steps: int = Field(default=5, ge=0)
    decay: Literal["linear_second_half", "constant"] = "linear_second_half"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)


class Loss(Document):
    """The policy loss; names and defaults follow the papers (services/trainer/loss.py)."""

    estimator: Estimator = Estimator.DR_GRPO
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=3.0, gt=1)
    aggregation: Literal["token", "sequence", "constant"] = "token"
    constant_length: int = Field(default=512, ge=1)
    """Tokens that `constant` divides each sequence by: the longest completion that the tasks allow."""
    importance: Literal["bypass", "token_truncated"] = "token_truncated"
    """`bypass` takes the generator's log-probabilities as the old policy; `token_truncated` recomputes the
    old policy and weighs the generator/trainer mismatch, cut at `importance_cap`."""
    importance_cap: float = Field(default=2.0, ge=1)
    kl_beta: float = Field(default=0.0, ge=0)


class RunBase(Document):
    """What every run has."""

    schema_version: Literal[1] = 1
    name: Name
    seed: int = Field(default=0, ge=0, lt=2**31)
    priority: Literal["low", "normal", "high"] = "normal"
    deadline_seconds: float = Field(default=86_400, gt=0)


class Demand(Document):
    """What one rollout takes of its runner."""

    slots: int = Field(default=1, ge=1, le=100_000)
    cpu: float | None = Field(default=None, ge=0, le=10_000)
    """None: what the task's environment asks for, where its sandbox is on the runner."""
    memory_mb: int | None = Field(default=None, ge=0, le=100_000_000)
    """As `cpu`."""
    gpu: int = Field(default=0, ge=0, le=1_000)


class RolloutRules(Document):
    """Place, share, time and retries of the rollouts of a run."""

    pool: Name = "default"
    """Runners that they go to."""
    demand: Demand = Demand()
    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Part of its tenant's share that the run gets, against the tenant's other runs."""
    max_running: int | None = Field(default=None, ge=1)
    """Most rollouts granted at once."""
    schedule_to_start_seconds: float = Field(default=3_600, gt=0)
    group_deadline_seconds: float = Field(default=600, gt=0)
    """Stragglers of a group are given up after this."""
    infrastructure_retries: int = Field(default=3, ge=0, le=100)
    grader_retries: int = Field(default=3, ge=0, le=100)


def demand_of(demand: Demand, interface: str, resources: Resources) -> Capacity:
    """What a rollout of a task takes: as the run says, else what its environment asks for.

    An `answer` is only text to its runner: the sandbox that tries it out is the evaluator's."""
    hosted = interface != "answer"
    cpu = demand.cpu if demand.cpu is not None else resources.cpus if hosted else 0.0
    memory = demand.memory_mb if demand.memory_mb is not None else resources.memory_mb if hosted else 0
    return Capacity(slots=demand.slots, cpu=cpu, memory_mb=memory, gpu=demand.gpu)


class SftRun(RunBase):
    """A supervised warm start on an uploaded dataset of prompt/completion lines."""

    kind: Literal["sft"]
    policy: FreshPolicy | PolicyName = FreshPolicy()
    dataset: Digest
    """JSON lines {"prompt", "completion"}, uploaded with `PUT /v1/artifacts`."""
    steps: int = Field(default=200, ge=1)
    batch: int = Field(default=64, ge=1)
    optimizer: Optimizer = Optimizer(learning_rate=3e-3, warmup_steps=20, decay="constant", weight_decay=0.01)
    stop_likelihood: float | None = Field(default=None, gt=0, lt=1)
    """Stop early once the mean probability of a held-back completion passes this."""


class TrainRun(RunBase):
    """Group-relative reinforcement learning over a taskset."""

    kind: Literal["train"]
    taskset: Name
    policy: FreshPolicy | PolicyName
    steps: int = Field(default=100, ge=1)
    groups_per_step: int = Field(default=16, ge=1)
    group_size: int = Field(default=8, ge=2, le=1_024)
    min_valid: int = Field(default=2, ge=2)
    max_staleness: int = Field(default=1, ge=0, le=100)
    minibatches: int = Field(default=2, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between full checkpoints (weights and optimizer); weights alone are published each step."""
    sampling: Sampling = Sampling()
    optimizer: Optimizer = Optimizer()
    loss: Loss = Loss()
    rollouts: RolloutRules = RolloutRules()

    @model_validator(mode="after")
    def _groups_can_settle(self) -> "TrainRun":
        if self.min_valid > self.group_size:
            raise ValueError(
                f"min_valid is {self.min_valid}, more than group_size {self.group_size}: every group would be"
                " filtered"
            )
        return self


class EvaluationRun(RunBase):
    """Scores of one policy version over a taskset."""

    kind: Literal["evaluation"]
    taskset: Name
    policy: PolicyName
    samples: int = Field(default=4, ge=1, le=1_024)
    window: int = Field(default=64, ge=1)
    """Groups in flight at once."""
    sampling: Sampling = Sampling()
    rollouts: RolloutRules = RolloutRules()


RunConfig = Annotated[SftRun | TrainRun | EvaluationRun, Field(discriminator="kind")]
