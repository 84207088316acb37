"""Opens the store that a URL names.

Guarantees: an unknown scheme or query key is an error that names the near one.
Does not: touch the store; `prepare()` does."""

from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from tiltyard.objects.directory import DirectoryStore
from tiltyard.objects.store import ObjectStore

FORMS = "file:///absolute/folder[?fsync=1] or s3://bucket[/prefix][?endpoint=http://host:port&region=name]"


def open_store(url: str) -> ObjectStore:
    """The store at `url`; ValueError when the URL is none of `FORMS`.

    S3 credentials come from the environment, by boto3's conventions."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _open_directory(parts)
    if parts.scheme == "s3":
        return _open_s3(parts)
    raise ValueError(f"object store URL {url!r} has no known scheme; write {FORMS}")


def _open_directory(parts: SplitResult) -> DirectoryStore:
    options = _options(parts, known=("fsync",))
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or path in ("", "/"):
        raise ValueError(f"object store URL {parts.geturl()!r} names no absolute folder; write {FORMS}")
    fsync = options.get("fsync", "0")
    if fsync not in ("0", "1"):
        raise ValueError(f"object store URL: fsync must be 0 or 1, not {fsync!r}")
    return DirectoryStore(Path(path), fsync=fsync == "1")


def _open_s3(parts: SplitResult) -> ObjectStore:
    from tiltyard.objects.s3 import S3Store, s3_client  # boto3 takes 0.2 s: only who uses S3 pays

    options = _options(parts, known=("endpoint", "region"))
    if not parts.netloc:
        raise ValueError(f"object store URL {parts.geturl()!r} names no bucket; write {FORMS}")
    client = s3_client(endpoint=options.get("endpoint"), region=options.get("region"))
    return S3Store(client, bucket=parts.netloc, prefix=unquote(parts.path).strip("/"))


def _options(parts: SplitResult, *, known: tuple[str, ...]) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise ValueError(f"object store URL: unknown option {name!r}{hint}")
    return options
