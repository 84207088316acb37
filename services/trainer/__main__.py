"""`python -m services.trainer`: the composition root."""

import signal
import threading

from services.trainer.settings import TrainerSettings, read
from tiltyard.contracts.settings import InvalidSettings
from tiltyard.objects import open_store
from tiltyard.queue import open_publisher
from tiltyard.store.database import UnitOfWork, new_id
from tiltyard.telemetry.setup import setup


def serve(settings: TrainerSettings) -> None:
    telemetry = setup("trainer", otlp_endpoint=settings.otlp_endpoint)
    import torch  # takes seconds: until it is there a signal ends the process at once
    from transformers.utils import logging

    from services.trainer.checkpoint import Checkpoints
    from services.trainer.worker import Trainer

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.disable_progress_bar()
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    work = UnitOfWork(settings.database_url, application="tiltyard-trainer", connections=3)
    store = open_store(settings.objects_url)
    with open_publisher(settings.broker_url, settings.database_url) as publisher:
        Trainer(
            work=work,
            checkpoints=Checkpoints(objects=store, cache=settings.cache_dir, device=settings.device),
            publisher=publisher,
            take_spans=telemetry.recorder.take_spans,
            holder=f"trainer-{new_id()}",
            stop=stop,
        ).serve()
    work.close()
    telemetry.shutdown()


def main() -> None:
    try:
        settings = read()
    except InvalidSettings as error:
        raise SystemExit(f"tiltyard trainer: {error}") from None
    serve(settings)


if __name__ == "__main__":
    main()
