"""A lock of packages above an image: the same bytes everywhere, and whatever differs is refused by name."""

import asyncio
import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from services.cli.sandbox import sandbox
from tests.integration.images.parcels import index_debs, index_wheels, make_deb, make_wheel
from tests.integration.images.roots import tiny_root
from tiltyard.sandbox import ImageFault, Limits, NativeBackend, WarmPool
from tiltyard.sandbox.images.lock import Lock, Wheel, read_lock
from tiltyard.sandbox.images.packages import lock_of
from tiltyard.sandbox.images.store import ImageStore

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="makes packages with dpkg-deb")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two wheels and two debs, one of which still has a file in /bin."""
    folder, scratch = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("sources")
    make_wheel(folder, scratch, "greet")
    make_wheel(folder, scratch, "part")
    make_deb(folder, scratch, "tool", {"bin/tool": "#!/bin/sh\necho of a package\n", "usr/share/tool": "x"})
    make_deb(folder, scratch, "other", {"usr/bin/other": "#!/bin/sh\n"})
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A Debian with a merged /usr, as far as a layer looks at one."""
    root = tmp_path / "base"
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc").mkdir()
    (root / "etc/debian_version").write_text("12\n")
    (root / "usr/bin/python3.11").write_text("python")
    (root / "usr/bin/python3").symlink_to("python3.11")
    return root


def _locked(store: ImageStore, base: Path, folder: Path, path: Path) -> Lock:
    """A lock of all that is in a folder, above `base`."""
    lock = lock_of(store.add(base, "base"), [folder])
    path.write_text(lock.toml())
    return lock


def _root(store: ImageStore, digest: str) -> Path:
    return store.folder / digest.removeprefix("sha256:") / "root"


def test_equal_locks_give_equal_images_above_an_untouched_base(
    store: ImageStore, base: Path, packages: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lock.toml"
    lock = _locked(store, base, packages, path)
    assert read_lock(path) == lock
    digest = store.add(path, "layered", packages=[packages])
    root = _root(store, digest)
    assert (root / "bin").is_symlink()
    assert (root / "usr/bin/tool").stat().st_mode & 0o777 == 0o755
    site = root / "usr/local/lib/python3.11/dist-packages"
    assert (site / "greet/__init__.py").exists()
    assert (root / "usr/local/share/greet").read_text() == "data"
    assert (root / "usr/local/bin/greet").read_text().startswith("#!/usr/bin/python3.11\n")
    assert (root / "usr/local/bin/greet-script").read_text() == "#!/usr/bin/python3.11\nprint('a script')\n"
    assert store.verify(lock.base) == lock.base
    (image,) = [each for each in store.stored() if each.digest == digest]
    assert image.kind == "lock"
    elsewhere = ImageStore(tmp_path / "elsewhere")
    _locked(elsewhere, base, packages, path)
    assert elsewhere.add(path, "again", packages=[packages]) == digest


def test_pip_and_apt_bring_them_from_where_they_are_configured_to_look(
    store: ImageStore, base: Path, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.toml"
    _locked(store, base, packages, path)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index_wheels(packages, tmp_path / "simple"))
    monkeypatch.setenv("APT_CONFIG", str(index_debs(packages, tmp_path / "apt")))
    assert store.add(path, "fetched") == store.add(path, "offline", packages=[packages])
    shutil.rmtree(tmp_path / "simple/part")
    with pytest.raises(ImageFault, match=r"pip did not bring.*part"):
        store.add(path, "fetched")


def test_whatever_differs_from_the_lock_is_named(
    store: ImageStore, base: Path, packages: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lock.toml"
    lock = _locked(store, base, packages, path)
    changed = tmp_path / "changed"
    shutil.copytree(packages, changed)
    (changed / lock.wheel[1].file).unlink()
    wheel = make_wheel(changed, tmp_path / "sources", "greet", says="something else")
    seen = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(ImageFault) as refused:
        store.add(path, "changed", packages=[changed])
    assert f"{wheel.name} has the sha256 {seen}, and the lock says {lock.wheel[0].sha256}" in str(
        refused.value
    )
    assert f"{lock.wheel[1].file} is not there" in str(refused.value)
    other = lock.model_copy(update={"digest": "sha256:" + "0" * 64})
    path.write_text(other.toml())
    with pytest.raises(ImageFault, match=r"has the digest sha256:.*, not sha256:0000"):
        store.add(path, "pinned", packages=[packages])
    assert [image.names for image in store.stored()] == [("base",)]
    path.write_text(lock.model_copy(update={"base": "sha256:" + "1" * 64}).toml())
    with pytest.raises(ImageFault, match=r"sha256:1111.* is not in"):
        store.add(path, "baseless", packages=[packages])


def test_an_image_is_verified_against_a_lock(
    store: ImageStore, base: Path, packages: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lock.toml"
    lock = _locked(store, base, packages, path)
    digest = store.add(path, "layered", packages=[packages])
    assert store.verify("layered", lock) == digest
    newer = lock.wheel[0].model_copy(update={"file": "greet-2.0-py3-none-any.whl"})
    with pytest.raises(ImageFault, match=r"greet-1\.0.* instead of greet-2\.0"):
        store.verify("layered", lock.model_copy(update={"wheel": (newer, lock.wheel[1])}))
    more = lock.deb[0].model_copy(update={"name": "more"})
    with pytest.raises(ImageFault, match="deb more is missing; deb tool is not in the lock"):
        store.verify("layered", lock.model_copy(update={"deb": (lock.deb[0], more)}))
    with pytest.raises(ImageFault, match="not made from a lock"):
        store.verify("base", lock)


def test_no_script_of_a_package_runs_and_one_that_has_some_is_refused(
    store: ImageStore, base: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    ran = tmp_path / "ran"
    make_deb(
        folder, tmp_path / "sources", "scripted", {"usr/bin/it": ""}, postinst=f"#!/bin/sh\ntouch {ran}\n"
    )
    path = tmp_path / "lock.toml"
    lock = _locked(store, base, folder, path)
    assert "without_scripts = true" in path.read_text()
    assert store.add(path, "without", packages=[folder])
    path.write_text(path.read_text().replace("without_scripts = true\n", ""))
    with pytest.raises(ImageFault, match=r"scripted:all=1:2\.0-3 has postinst"):
        store.add(path, "refused", packages=[folder])
    assert not ran.exists()
    renamed = lock.deb[0].model_copy(update={"version": "1:2.0-4"})
    (folder / "scripted_2.0-3_all.deb").rename(folder / "scripted_2.0-4_all.deb")
    path.write_text(lock.model_copy(update={"deb": (renamed,)}).toml())
    with pytest.raises(ImageFault, match=r"is scripted:all=1:2\.0-3, and the lock says .*2\.0-4"):
        store.add(path, "renamed", packages=[folder])


@pytest.mark.parametrize(
    ("file", "member", "reason"),
    [
        ("bad-1-py3-none-any.whl", "../../../../../etc/passwd", "leads out"),
        ("bad-1-py3-none-any.whl", "bad-1.data/scripts/../../../../etc/passwd", "leads out"),
        ("bad-1-py3-none-any.whl", "bad-1.data/elsewhere/x", "of no kind"),
        ("bad-1-cp310-cp310-any.whl", "bad.py", "not for Python 3.11"),
        ("bad-1-py3-none-win_amd64.whl", "bad.py", "not for Python 3.11 on"),
    ],
)
def test_a_wheel_that_leads_out_or_is_for_another_python_is_refused(
    store: ImageStore, base: Path, tmp_path: Path, file: str, member: str, reason: str
) -> None:
    with zipfile.ZipFile(tmp_path / file, "w") as archive:
        archive.writestr(member, "x")
    path = tmp_path / "lock.toml"
    lock = Lock(base=store.add(base, "base"), wheel=(Wheel(file=file, sha256=_sum(tmp_path / file)),))
    path.write_text(lock.toml())
    with pytest.raises(ImageFault, match=reason):
        store.add(path, "bad", packages=[tmp_path])


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_entry_points_without_end_are_refused(store: ImageStore, base: Path, tmp_path: Path) -> None:
    file = tmp_path / "bomb-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb-1.dist-info/entry_points.txt", b"#" * 300_000_000)
    assert file.stat().st_size < 400_000
    path = tmp_path / "lock.toml"
    _locked(store, base, tmp_path, path)
    with pytest.raises(ImageFault, match="entry points are larger than 1,048,576 bytes"):
        store.add(path, "bomb", packages=[tmp_path])


def test_an_image_stays_known_by_its_lock_when_the_same_bytes_come_otherwise(
    store: ImageStore, base: Path, packages: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lock.toml"
    lock = _locked(store, base, packages, path)
    digest = store.add(path, "layered", packages=[packages])
    assert store.add(_root(store, digest), "copied") == digest
    assert store.verify("copied", lock) == digest


def test_a_wheel_that_was_cut_off_is_refused(
    store: ImageStore, base: Path, packages: Path, tmp_path: Path
) -> None:
    whole = next(packages.glob("greet*.whl"))
    cut = tmp_path / whole.name
    cut.write_bytes(whole.read_bytes()[:-40])
    path = tmp_path / "lock.toml"
    _locked(store, base, tmp_path, path)
    with pytest.raises(ImageFault, match="no whole wheel"):
        store.add(path, "cut", packages=[tmp_path])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('base = "debian"', "base"),
        ('base = "sha256:{0}"\nbases = 1', "did you mean 'base'"),
        ('base = "sha256:{0}"\n[[wheel]]\nfile = "a-1.tar.gz"\nsha256 = "{0}"', "wheel.0.file"),
        ('base = "sha256:{0}"\n[[wheel]]\nfile = "../a-1-py3-none-any.whl"\nsha256 = "{0}"', "wheel.0.file"),
        ('base = "sha256:{0}"\n[[wheel]]\nfile = "a-1-py3-none-any.whl"', "wheel.0.sha256: required"),
        (
            'base = "sha256:{0}"\n[[wheel]]\nfile = "a-1-py3-none-any.whl"\nsha256 = "{0}"\n'
            '[[wheel]]\nfile = "A-2-py3-none-any.whl"\nsha256 = "{0}"',
            "wheel a: locked more than once",
        ),
        ("base =", "lock.toml"),
    ],
)
def test_a_lock_that_could_mean_two_things_is_none(
    store: ImageStore, tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "lock.toml"
    path.write_text(text.format("a" * 64))
    with pytest.raises(ImageFault, match=reason):
        store.add(path, "bad")


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="making native sandboxes needs root")
@pytest.mark.skipif(
    not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="copies the shell of an x86-64 Debian"
)
def test_the_commands_lock_import_and_verify_what_a_box_then_runs(
    store: ImageStore, packages: Path, tmp_path: Path
) -> None:
    store.add(tiny_root(tmp_path / "tiny"), "tiny")
    debs = tmp_path / "debs"
    debs.mkdir()
    shutil.copy(packages / "tool_2.0-3_all.deb", debs)
    lock = tmp_path / "lock.toml"

    def images(*words: str) -> str:
        done = CliRunner().invoke(sandbox, ["images", *words, "--store", str(store.folder)])
        assert done.exit_code == 0, done.output
        return done.output

    lock.write_text(images("lock", str(debs), "--base", "tiny"))
    digest = images("import", str(lock), "--name", "tool", "--packages", str(debs)).strip()
    assert digest in images("verify", "tool", "--lock", str(lock))

    async def use() -> bytes:
        backend, limits = NativeBackend(store.folder), Limits(memory_mb=64, disk_mb=16)
        async with (
            WarmPool(image=digest, size=1, limits=limits, backend=backend) as pool,
            pool.acquire() as box,
        ):
            return (await box.exec(["tool"])).stdout

    assert asyncio.run(use()) == b"of a package\n"
