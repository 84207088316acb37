"""A run of kind `sft`, from its dataset to version 0.

Guarantees: one version is published, with the run's completion in the same transaction.
Does not: resume in the middle; it begins anew, and gives the same weights."""

from services.trainer.checkpoint import Checkpoints
from services.trainer.held import Held
from services.trainer.policy import Policy, fresh
from services.trainer.warmstart import read_dataset, warm_start
from tiltyard.contracts.records import artifact_key
from tiltyard.contracts.run_config import FreshPolicy, SftRun
from tiltyard.store import policies, training
from tiltyard.store.database import UnitOfWork
from tiltyard.store.runs import RunRow
from tiltyard.telemetry.events import event_logger

log = event_logger("trainer")
TELL_EVERY = 20


class NoPolicy(RuntimeError):
    """The version that a run starts from is not published any more."""


def starting_policy(work: UnitOfWork, checkpoints: Checkpoints, run: RunRow, seed: int) -> Policy:
    """The policy that the run's config asks for. Raises `NoPolicy`."""
    config = run.config
    if not isinstance(config, SftRun) and config.kind != "train":
        raise NoPolicy(f"a run of kind {config.kind} trains no policy")
    if isinstance(config.policy, FreshPolicy):
        return fresh(config.policy, seed=seed, device=checkpoints.device)
    with work() as session:
        row = policies.get(session, run.policy_run_id or "", run.policy_version or 0)
    if row is None or row.state != "PUBLISHED":
        raise NoPolicy(
            f"policy {config.policy} is not published any more; start the run from another version"
        )
    return checkpoints.load(row)


def run_sft(work: UnitOfWork, checkpoints: Checkpoints, run: RunRow, config: SftRun, held: Held) -> None:
    """Warm a policy up and publish it as version 0."""
    policy = starting_policy(work, checkpoints, run, config.seed)
    samples = read_dataset(checkpoints.objects.get(artifact_key(config.dataset)), policy)

    def on_step(step: int, loss: float) -> None:
        held.check()
        if step % TELL_EVERY == 0:
            log.info("trainer.warm_start", run_id=run.id, step=step, loss=round(loss, 4))

    warmed = warm_start(policy, samples, config, on_step=on_step)
    log.info("trainer.warmed", run_id=run.id, steps=warmed.steps, likelihood=warmed.likelihood)
    published = checkpoints.store(run.id, 0, held.fence, policy, None)
    with work() as session:
        training.publish(session, run.id, held.fence, published, step=None)
        training.complete(session, run.id, held.fence)
