"""Archives and folders of made-up official files."""

import io
import tarfile
import zipfile


def tar_of(members):
    """A tar.gz of files by their paths."""
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w:gz") as tar:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


def unpacked(folder, files):
    """The files in a folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def zipped(path, files):
    """The files in a zip."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path
