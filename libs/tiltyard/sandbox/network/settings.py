"""The settings by which a deployment says what its boxes may ever reach, for services that lend or use them.

Does not: load anything; a service's own settings inherit it."""

from pydantic import field_validator

from tiltyard.contracts.settings import CommaList, Settings
from tiltyard.sandbox.errors import InvalidNetwork

from .permission import Permission


class NetworkSettings(Settings):
    """Nobody may ask for any host, unless told."""

    network_allow: CommaList = ()
    """Rules: what tasks, or borrowers, may ask for."""
    network_private: CommaList = ()
    """Ranges of private addresses that these may lead to."""

    @field_validator("network_allow")
    @classmethod
    def _are_rules(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        _check(rules, ())
        return rules

    @field_validator("network_private")
    @classmethod
    def _are_ranges(cls, ranges: tuple[str, ...]) -> tuple[str, ...]:
        _check((), ranges)
        return ranges

    @property
    def permission(self) -> Permission:
        return Permission.parse(self.network_allow, self.network_private)


def _check(rules: tuple[str, ...], ranges: tuple[str, ...]) -> None:
    try:
        Permission.parse(rules, ranges)
    except InvalidNetwork as error:
        raise ValueError(str(error)) from error
