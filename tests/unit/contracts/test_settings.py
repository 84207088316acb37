"""Settings: every variable that is unknown, missing or ill-fitting is named at once."""

import pytest
from pydantic import Field

from tiltyard.contracts.settings import KNOWN, CommaList, InvalidSettings, Settings, load


class Service(Settings):
    database_url: str
    port: int = Field(default=8080, ge=0, le=65_535)
    allowed_hosts: CommaList = ()


def _faults(environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(InvalidSettings) as caught:
        load(Service, environ)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_settings_are_read_from_variables_with_the_prefix() -> None:
    loaded = load(Service, {"TILTYARD_DATABASE_URL": "postgresql://x", "TILTYARD_PORT": "0", "PORT": "1"})

    assert loaded == Service(database_url="postgresql://x", port=0)


def test_a_variable_of_another_service_is_ignored() -> None:
    environ = {"TILTYARD_DATABASE_URL": "postgresql://x"} | {
        f"TILTYARD_{key}": "" for key in KNOWN if key != "DATABASE_URL"
    }

    assert load(Service, environ).database_url == "postgresql://x"


def test_an_unknown_variable_names_the_nearest_known_one() -> None:
    faults = _faults({"TILTYARD_DATABASE_URL": "postgresql://x", "TILTYARD_PROT": "1"})

    assert faults == {"TILTYARD_PROT": "unknown variable; did you mean TILTYARD_PORT?"}


def test_a_variable_near_to_nothing_is_to_be_unset() -> None:
    faults = _faults({"TILTYARD_DATABASE_URL": "postgresql://x", "TILTYARD_QQQQQQ": "1"})

    assert faults == {"TILTYARD_QQQQQQ": "unknown variable; unset it"}


@pytest.mark.parametrize("environ", [{}, {"TILTYARD_DATABASE_URL": ""}])
def test_a_missing_or_empty_secret_is_named_with_its_form(environ: dict[str, str]) -> None:
    assert _faults(environ) == {"TILTYARD_DATABASE_URL": "is not set; give it: Postgres, postgresql://…"}


def test_all_faults_are_named_at_once() -> None:
    assert set(_faults({"TILTYARD_PORT": "many", "TILTYARD_HOTS": "x"})) == {
        "TILTYARD_DATABASE_URL",
        "TILTYARD_PORT",
        "TILTYARD_HOTS",
    }


def test_a_value_out_of_range_is_refused() -> None:
    faults = _faults({"TILTYARD_DATABASE_URL": "postgresql://x", "TILTYARD_PORT": "65536"})

    assert list(faults) == ["TILTYARD_PORT"]


def test_a_list_is_separated_by_commas() -> None:
    loaded = load(Service, {"TILTYARD_DATABASE_URL": "x", "TILTYARD_ALLOWED_HOSTS": "a, b,,"})

    assert loaded.allowed_hosts == ("a", "b")
