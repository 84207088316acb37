"""A worker for tests: writes the ids of each job to a file, one line a job. `worker_process.py URL FILE`."""

import sys
import time
from pathlib import Path

from tiltyard.queue.jobs import celery_app, on_job, run_worker


def main(broker_url: str, file: Path) -> int:
    """Consume until SIGTERM; a job with the id `fail` raises, one with the id `slow` takes two seconds."""

    def graded(ids: tuple[str, ...]) -> None:
        with file.open("a") as lines:
            lines.write(f"grade {' '.join(ids)}\n")
        if "fail" in ids:
            raise RuntimeError("this job fails")
        if "slow" in ids:
            time.sleep(2)
            with file.open("a") as lines:
                lines.write("slow done\n")

    def admitted(ids: tuple[str, ...]) -> None:
        with file.open("a") as lines:
            lines.write(f"admit {' '.join(ids)}\n")

    def stopping() -> None:
        with file.open("a") as lines:
            lines.write("stopping\n")

    app = celery_app(broker_url)
    on_job(app, "grade", graded)
    on_job(app, "admit", admitted)
    return run_worker(app, kinds=["grade", "admit"], concurrency=4, on_stop=stopping)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
