"""Wheels and Debian packages of the tests' own, made by pip and dpkg-deb, and indexes of them on disk."""

import hashlib
import subprocess
import sys
from pathlib import Path

_BACKEND = """
import pathlib, zipfile
NAME, VERSION = {name!r}, {version!r}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    wheel = f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    files = {{
        f"{{NAME}}/__init__.py": {code!r},
        f"{{NAME}}-{{VERSION}}.data/scripts/{{NAME}}-script": "#!python\\nprint('a script')\\n",
        f"{{NAME}}-{{VERSION}}.data/data/share/{{NAME}}": "data",
        f"{{info}}/METADATA": f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n",
        f"{{info}}/WHEEL": "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\n",
        f"{{info}}/entry_points.txt": f"[console_scripts]\\n{{NAME}} = {{NAME}}:main\\n",
    }}
    files[f"{{info}}/RECORD"] = "".join(f"{{name}},,\\n" for name in [*files, f"{{info}}/RECORD"])
    with zipfile.ZipFile(pathlib.Path(folder, wheel), "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return wheel
"""
_PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def make_wheel(folder: Path, scratch: Path, name: str, version: str = "1.0", says: str = "hello") -> Path:
    """With a module, a program, a script and a file of data."""
    project = scratch / f"{name}-{version}-{says}"
    project.mkdir(parents=True)
    code = f"def main():\n    print({says!r})\n"
    (project / "pyproject.toml").write_text(_PROJECT)
    (project / "backend.py").write_text(_BACKEND.format(name=name, version=version, code=code))
    words = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-index",
        "-w",
        str(folder),
        str(project),
    ]
    subprocess.run(words, check=True, capture_output=True)
    return folder / f"{name}-{version}-py3-none-any.whl"


def make_deb(folder: Path, scratch: Path, name: str, files: dict[str, str], *, postinst: str = "") -> Path:
    """`files`: programs, by their paths."""
    root = scratch / name
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
    control = root / "DEBIAN"
    control.mkdir(parents=True)
    fields = {
        "Package": name,
        "Version": "1:2.0-3",
        "Architecture": "all",
        "Maintainer": "nobody",
        "Description": "x",
    }
    (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    if postinst:
        (control / "postinst").write_text(postinst)
        (control / "postinst").chmod(0o755)
    deb = folder / f"{name}_2.0-3_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, deb], check=True, capture_output=True)
    return deb


def index_wheels(folder: Path, index: Path) -> str:
    """A simple index of what is in a folder; its address."""
    for wheel in folder.glob("*.whl"):
        page = index / wheel.name.split("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<a href="{wheel.as_uri()}">{wheel.name}</a>')
    return index.as_uri()


def index_debs(folder: Path, scratch: Path) -> Path:
    """A flat archive of what is in a folder; the configuration that makes apt use it alone, lists fetched."""
    paragraphs = []
    for deb in folder.glob("*.deb"):
        fields = subprocess.run(["dpkg-deb", "-f", deb], check=True, capture_output=True, text=True).stdout
        seen = hashlib.sha256(deb.read_bytes()).hexdigest()
        paragraphs.append(f"{fields}Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {seen}\n")
    (folder / "Packages").write_text("\n".join(paragraphs))
    scratch.mkdir()
    (scratch / "sources.list").write_text(f"deb [trusted=yes] file:{folder} ./\n")
    for each in ("lists/partial", "cache/archives/partial", "none"):
        (scratch / each).mkdir(parents=True)
    (scratch / "status").touch()
    configuration = scratch / "apt.conf"
    configuration.write_text(
        f'Dir::Etc::sourcelist "{scratch}/sources.list"; Dir::Etc::sourceparts "{scratch}/none";\n'
        f'Dir::State::lists "{scratch}/lists"; Dir::State::status "{scratch}/status";\n'
        f'Dir::Cache "{scratch}/cache";\n'
        'APT::Sandbox::User "root";\n'
    )
    words = ["apt-get", "update", "-qq", "-c", str(configuration)]
    subprocess.run(words, check=True, capture_output=True)
    return configuration
