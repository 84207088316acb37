"""The dispatcher starts only with settings that make sense, and says which do not."""

import os
import subprocess
import sys


def _start(**settings: str) -> tuple[int, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TILTYARD_")}
    done = subprocess.run(
        [sys.executable, "-m", "services.dispatcher"],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_without_a_database_it_says_what_to_set() -> None:
    code, said = _start()

    assert code == 1
    assert said == (
        "tiltyard dispatcher: settings are not valid: TILTYARD_DATABASE_URL: is not set; give it: Postgres,"
        " postgresql://…\n"
    )


def test_a_misspelt_variable_is_named_with_the_near_one() -> None:
    code, said = _start(TILTYARD_DATABASE_URL="postgresql://x", TILTYARD_BROKER_UR="amqp://x")

    assert code == 1
    assert "TILTYARD_BROKER_UR: unknown variable; did you mean TILTYARD_BROKER_URL?" in said
    assert "Traceback" not in said
