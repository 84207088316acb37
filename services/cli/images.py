"""`tiltyard sandbox images`: the roots that native sandboxes start from."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click

from services.cli.output import Output, reporting
from tiltyard.sandbox import SandboxError
from tiltyard.sandbox.docker.build import built, is_dockerfile
from tiltyard.sandbox.images.lock import read_lock
from tiltyard.sandbox.images.packages import lock_of
from tiltyard.sandbox.images.store import STORE, ImageStore, StoredImage

T = TypeVar("T")


@click.group(no_args_is_help=True)
def images() -> None:
    """Keep the images that native sandboxes start from, each named by the digest of its content.

    \b
    docker export CONTAINER > root.tar
    tiltyard sandbox images import root.tar --name debian
    tiltyard sandbox run --image debian -- cat /etc/os-release"""


def _store(command: Callable[..., int]) -> Callable[..., int]:
    return click.option(
        "--store", type=click.Path(path_type=Path), default=STORE, show_default=True, help="Where images are."
    )(command)


def _telling(work: Callable[[], T]) -> T:
    try:
        return work()
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    except PermissionError as error:
        raise click.ClickException(f"{error.filename} belongs to root: run this as root (sudo)") from error


@images.command("list")
@_store
@reporting
def list_command(out: Output, store: Path) -> int:
    """Show every image: its digest, names, kind, size, and whether a pool uses it now.

    \b
      tiltyard sandbox images list
    """
    found = _telling(ImageStore(store).stored)
    out.result(
        [asdict(image) for image in found],
        lambda: out.table(["digest", "names", "kind", "MiB#", "used"], [_row(image) for image in found]),
    )
    return 0


def _row(image: StoredImage) -> list[object]:
    size = "" if image.content is None else f"{image.content / (1 << 20):.1f}"
    return [image.digest, ", ".join(image.names), image.kind, size, "yes" if image.in_use else ""]


@images.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="What to call it; an image of this name loses it.")
@click.option("--digest", help="Refuse any other content than this sha256:….")
@click.option("--build-arg", multiple=True, metavar="NAME=VALUE", help="Of a Dockerfile; again for each.")
@click.option(
    "--network", help="What a Dockerfile's build may reach, as of `docker build`; without it nothing."
)
@click.option(
    "--packages",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with a lock's wheels and debs; without one pip and apt bring them, as configured.",
)
@_store
@reporting
def import_command(
    out: Output,
    source: Path,
    name: str,
    digest: str | None,
    build_arg: tuple[str, ...],
    network: str | None,
    packages: tuple[Path, ...],
    store: Path,
) -> int:
    """Import a folder, a tar of a root (docker export), a `docker save`, an OCI layout, a Dockerfile, a lock.

    A Dockerfile (or NAME.Dockerfile) is built by docker, from images that it has; its root is kept. A lock
    (NAME.toml, see `tiltyard sandbox images lock`) puts packages above an image; nothing of them is run.

    \b
      tiltyard sandbox images import root.tar --name debian
      tiltyard sandbox images import infra/images/c.Dockerfile --name c --network host \\
        --build-arg BASE=debian:12
      tiltyard sandbox images import numeric.toml --name numeric --packages wheels/
    """
    arguments = dict(_pair(each) for each in build_arg)
    if is_dockerfile(source):
        found = _telling(lambda: _build(ImageStore(store), source, name, digest, arguments, network))
    elif arguments or network:
        raise click.UsageError(f"--build-arg and --network are for a Dockerfile, and {source} is none")
    else:
        found = _telling(lambda: ImageStore(store).add(source, name, digest=digest, packages=packages))
    out.result({"name": name, "digest": found}, lambda: found)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not name or not given:
        raise click.UsageError(f"--build-arg {text!r}: give NAME=VALUE")
    return name, value


def _build(
    store: ImageStore,
    source: Path,
    name: str,
    digest: str | None,
    arguments: dict[str, str],
    network: str | None,
) -> str:
    with built(source, arguments=arguments, network=network) as root:
        return store.add(root, name, digest=digest)


@images.command("lock")
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--base", required=True, help="Name or digest of the image that they go above.")
@_store
@reporting
def lock_command(out: Output, folders: tuple[Path, ...], base: str, store: Path) -> int:
    """Print a lock of every wheel and Debian package in FOLDERS, for `tiltyard sandbox images import`.

    \b
      pip download --only-binary :all: --dest packages numpy
      tiltyard sandbox images lock packages --base python > numeric.toml
    """
    from rich.text import Text

    lock = _telling(lambda: lock_of(ImageStore(store).resolve(base), folders))
    out.result(lock, lambda: Text(lock.toml().rstrip("\n")))
    return 0


@images.command("verify")
@click.argument("image")
@click.option(
    "--lock",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The lock that it must have been made from; whatever differs is named.",
)
@_store
@reporting
def verify_command(out: Output, image: str, lock: Path | None, store: Path) -> int:
    """Read every byte of an image and compare its digest. Exit code 1: it was changed, or is of another lock.

    \b
      tiltyard sandbox images verify debian
      tiltyard sandbox images verify numeric --lock numeric.toml
    """
    found = _telling(lambda: ImageStore(store).verify(image, read_lock(lock) if lock else None))
    out.result({"image": image, "digest": found, "intact": True}, lambda: f"intact: {found}")
    return 0


@images.command("prune")
@click.argument("names", nargs=-1)
@_store
@reporting
def prune_command(out: Output, names: tuple[str, ...], store: Path) -> int:
    """Remove images that have no name and that no pool uses, old `host` images too; NAMES lose theirs first.

    \b
      tiltyard sandbox images prune
      tiltyard sandbox images prune debian
    """
    removed = _telling(lambda: ImageStore(store).prune(*names))
    out.result({"removed": removed}, lambda: "\n".join(removed) or "nothing to remove")
    return 0
