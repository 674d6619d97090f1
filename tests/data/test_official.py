"""Official files, here made up in their official layout, are read as they are documented."""

import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from curlnb.data import catalogue, official_texts, verified
from curlnb.data.datasets import DataError


def random_images(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def place_of(folder: Path, files: dict[str, bytes], form: str, name: str = "archive") -> Path:
    """The files unpacked in a folder, in a tar.gz or in a zip."""
    if form == "folder":
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder
    if form == "zip":
        with zipfile.ZipFile(folder / name, "w") as zipped:
            for path, content in files.items():
                zipped.writestr(path, content)
    else:
        with tarfile.open(folder / name, "w:gz") as tar:
            for path, content in files.items():
                header = tarfile.TarInfo(path)
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
    return folder / name


def read(name: str, place: Path, **changes: object) -> dict:
    return dict(verified.READERS[name](replace(catalogue.find(name), **changes), place))


# --- images


def test_cifar100_in_its_binary_version(tmp_path: Path) -> None:
    x, labels, coarse = random_images(6, 3, 32, 32), [0, 1, 2, 99, 3, 50], [4, 1, 4, 19, 0, 7]
    rows = [bytes([c, y]) + i.numpy().tobytes() for c, y, i in zip(coarse, labels, x, strict=True)]
    files = {"train": b"".join(rows[:4]), "test": b"".join(rows[4:])}
    named = {f"cifar-100-binary/{split}.bin": content for split, content in files.items()}
    found = read("cifar100", place_of(tmp_path, named, "tar"))
    assert torch.equal(found["train"]["images"], x[:4])
    assert torch.equal(found["test"]["images"], x[4:])
    assert found["train"]["labels"].tolist() + found["test"]["labels"].tolist() == labels


def pickled_by_python2(x: Tensor, labels: list[int]) -> bytes:
    """A dictionary as Python 2 pickles it (protocol 2), where a call makes the array."""

    def text(string: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(string)) + string

    def numbers(values: list[int]) -> bytes:
        return b"](" + b"".join(b"K" + bytes([value]) for value in values) + b"e"

    array = b"cnumpy.core.multiarray\n_reconstruct\n" + text(x.numpy().tobytes()) + b"tb"
    fine, coarse = numbers(labels), numbers([19] * len(labels))
    content = text(b"fine_labels") + fine + text(b"data") + array
    return b"\x80\x02}(" + content + text(b"coarse_labels") + coarse + b"u."


def test_cifar100_in_its_python_version_without_unpickling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = random_images(5, 3, 32, 32)
    files = {
        "train": pickled_by_python2(x[:3], [7, 0, 99]),
        "test": pickled_by_python2(x[3:], [1, 2]),
    }
    named = {f"cifar-100-python/{split}": content for split, content in files.items()}
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    found = read("cifar100", place_of(tmp_path, named, "tar", "cifar-100-python.tar.gz"))
    assert torch.equal(found["train"]["images"], x[:3])
    assert torch.equal(found["test"]["images"], x[3:])
    assert found["train"]["labels"].tolist() == [7, 0, 99]
    assert found["test"]["labels"].tolist() == [1, 2]


@pytest.fixture
def stl10(tmp_path: Path) -> tuple[dict[str, Tensor], Path]:
    x = random_images(6, 3, 96, 96)
    split = {"train": x[:2], "test": x[2:3], "unlabeled": x[3:]}
    # stored column by column, and labelled from 1
    files = {f"stl10_binary/{n}_X.bin": own.mT.numpy().tobytes() for n, own in split.items()}
    files |= {"stl10_binary/train_y.bin": bytes([1, 10]), "stl10_binary/test_y.bin": bytes([3])}
    return split, place_of(tmp_path, files, "tar")


def test_stl10_with_its_unlabelled_images(stl10: tuple[dict[str, Tensor], Path]) -> None:
    split, place = stl10
    found = read("stl10", place)
    assert all(torch.equal(found[name]["images"], own) for name, own in split.items())
    labels = {name: own["labels"].tolist() for name, own in found.items()}
    assert labels == {"train": [0, 9], "test": [2], "unlabeled": [-1, -1, -1]}


def test_stl10_48_is_the_labelled_part_with_each_block_averaged(
    stl10: tuple[dict[str, Tensor], Path],
) -> None:
    split, place = stl10
    found = read("stl10-48", place)
    assert set(found) == {"train", "test"}
    assert found["train"]["labels"].tolist() == [0, 9]
    for name, own in found.items():
        x = split[name].long()
        for i, j in ((0, 0), (13, 47), (47, 5)):
            block = x[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].sum((2, 3))
            assert torch.equal(own["images"][:, :, i, j].long(), (block + 2) // 4)


def jpeg(colour: tuple[int, int, int] | int) -> bytes:
    mode = "L" if isinstance(colour, int) else "RGB"
    Image.new(mode, (64, 64), colour).save(buffer := io.BytesIO(), "JPEG", quality=100)
    return buffer.getvalue()


def test_the_part_of_tiny_imagenet(tmp_path: Path) -> None:
    # Two classes; training files 0 to 59 of more; ten validation files by the annotations.
    ids, root, files = ("n01", "n02"), "tiny-imagenet-200", {}
    for place, label in enumerate(ids):
        for number in range(62):
            grey = number == 5  # some files of Tiny ImageNet are grey
            colour = 3 * number if grey else (3 * number, 100 * place, 200)
            files[f"{root}/train/{label}/images/{label}_{number}.JPEG"] = jpeg(colour)
    order = [f"val_{number}.JPEG" for number in (7, 3, *range(20, 44))]
    lines = [f"{name}\t{ids[i % 2]}\t0\t0\t62\t62\n" for i, name in enumerate(order)]
    files |= {f"{root}/val/images/{name}": jpeg(5 * i) for i, name in enumerate(order)}
    files |= {f"{root}/val/val_annotations.txt": "".join(lines).encode(), f"{root}/wnids.txt": b""}
    found = read("tiny-imagenet-mini", place_of(tmp_path, files, "zip"), classes=ids)
    train, test = found["train"], found["test"]
    assert (train["images"].shape, test["images"].shape) == ((120, 3, 64, 64), (20, 3, 64, 64))
    assert train["labels"].tolist() == [0, 1] * 60  # any first images are balanced
    middle = train["images"][:, :, 32, 32].long()
    assert (middle[:, 0] - 3 * torch.arange(60).repeat_interleave(2)).abs().max() <= 3
    assert (middle[10] - 15).abs().max() <= 3
    assert test["labels"].tolist() == [0, 1] * 10
    assert (test["images"][:, 0, 32, 32].long() - 5 * torch.arange(20)).abs().max() <= 3


def test_imagenet100_is_cut_to_the_middle_square(tmp_path: Path) -> None:
    ids = ("n01", "n02")
    for folder in ("train", "val"):
        for label in ids:
            (tmp_path / folder / label).mkdir(parents=True)
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 200  # the middle square
    Image.fromarray(wide).save(tmp_path / "train/n02/b.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "train/n02/a.png")
    Image.new("L", (5, 5), 40).save(tmp_path / "train/n01/x.png")
    found = read("imagenet100", tmp_path, classes=ids, shape=(3, 8, 8))["train"]
    assert found["labels"].tolist() == [0, 1, 1]
    assert found["images"].shape == (3, 3, 8, 8)
    assert found["images"][0].unique().tolist() == [40]
    assert bool((found["images"][1:, :, 2:6, 2:6] == 200).all())
    (tmp_path / "val/n01/broken.JPEG").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"broken\.JPEG is no readable picture"):
        read("imagenet100", tmp_path, classes=ids, shape=(3, 8, 8))


def test_imagenet100_has_the_published_classes() -> None:
    ids = catalogue.find("imagenet100").classes
    assert len(set(ids)) == 100
    assert ids == tuple(sorted(ids))
    assert all(name.startswith("n") and name[1:].isdigit() and len(name) == 9 for name in ids)
    # those that Tiny ImageNet has as well
    assert len(set(ids) & set(catalogue.find("tiny-imagenet-mini").classes)) == 14


# --- texts


@pytest.mark.parametrize("end", ["\n", "", "\n\n"])
@pytest.mark.parametrize("name", ["MR-full", "CR-full", "SUBJ-full", "MPQA"])
def test_a_task_of_two_files_has_a_row_for_each_line(tmp_path: Path, name: str, end: str) -> None:
    # Some copies of CR and MPQA end with an empty line, which published counts include; an empty
    # line inside is a row.
    negative, positive = catalogue.find(name).files
    (tmp_path / negative).write_bytes(f"so bad .\n\ncaf\xe9{end}".encode("latin-1"))
    (tmp_path / positive).write_bytes(f"good , no ?{end}".encode("latin-1"))
    text = read(name, tmp_path)["train"]
    start = name.lower()
    assert text.splitlines() == [
        *(f"= {start} 00000\t0", "so bad", f"= {start} 00001\t0", "?"),
        *(f"= {start} 00002\t0", "café", f"= {start} 00003\t1", "good no"),
    ]


def test_msrp_is_read_in_its_original_format(tmp_path: Path) -> None:
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    for split in ("train", "test"):
        lines = "".join(f'{i % 2}\t{i}\t{i + 9}\tHe said "no.\t...\r\n' for i in range(3))
        (tmp_path / f"msr_paraphrase_{split}.txt").write_text(head + lines)
    found = read("MSRP", tmp_path)
    assert found["train"].splitlines()[3:6] == ["= msrp train 00001\t1", "he said no", "?"]
    assert found["test"].count("= msrp test") == 3


def test_imdb_in_its_original_folder(tmp_path: Path) -> None:
    files = {
        "aclImdb/train/pos/0_9.txt": "Good<br /><br />Fine!",
        "aclImdb/train/neg/0_1.txt": "Bad. Very bad.",
        "aclImdb/train/unsup/0_0.txt": "Who knows?",
        "aclImdb/test/neg/1_1.txt": "...",
        "aclImdb/test/pos/1_8.txt": "I  like\nit.",
        "aclImdb/train/urls_pos.txt": "no review",
    }
    place = place_of(tmp_path, {name: text.encode() for name, text in files.items()}, "folder")
    found = read("imdb", place)
    reviews = {block.partition("\n")[2] for block in found["train"].split("= ")[1:]}
    assert reviews == {"good\nfine\n", "bad\nvery bad\n"}
    title, *sentences = found["test"].splitlines()  # one without a word is left out
    assert (title[:7], title[-2:], sentences) == ("= test ", "\t1", ["i like it"])
    assert read("imdb-unlabeled", place)["train"] == "= unsup 00000\nwho knows\n"


def test_reviews_come_in_the_same_order_from_every_source() -> None:
    texts = [("Bad. Very bad.", 0), ("Good<br /><br />Fine!", 1), ("...", 0)]
    assert official_texts.reviews(texts, "train") == official_texts.reviews(texts[::-1], "train")


def test_wiki3029_takes_articles_of_200_sentences(tmp_path: Path) -> None:
    files = {
        "Wiki-3029/St. Paul.txt": "A line.\n\n" * 200,
        "Wiki-3029/Short": "A line.\n" * 199,
    }
    place = place_of(tmp_path, {name: text.encode() for name, text in files.items()}, "tar")
    found = read("wiki3029", place)
    assert {part: text.count("a line") for part, text in found.items()} == {
        "train": 140,
        "dev": 20,
        "test": 40,
    }
    assert found["dev"].startswith("= St. Paul\n")
    assert "Short" not in "".join(found.values())


def test_bookcorpus_leaves_empty_sentences_out_and_parts_books(tmp_path: Path) -> None:
    path = tmp_path / "books.txt"
    path.write_text("It rained .\n...\nWe slept .\n\n\nAnother book .\n")
    text = read("bookcorpus", tmp_path)["train"]
    assert text == "= book 1\nit rained\nwe slept\n= book 2\nanother book\n"


def test_documents_without_words_are_refused() -> None:
    with pytest.raises(DataError, match="'Void' has no sentence: leave it out"):
        official_texts.as_text([official_texts.Document("Void", [])])


def test_words_are_cut_as_glove_cuts_them() -> None:
    assert official_texts.words("Don't say Kant's 1,234.5 “Ideas”, it’s snake_case!") == (
        "do", "n't", "say", "kant", "'s", "1,234.5", "ideas", "it", "'s", "snake", "case",
    )  # fmt: skip
    assert official_texts.words("-- ... !") == ()  # an empty sentence, which readers leave out


def test_sentences_end_at_full_stops_but_not_behind_initials_and_abbreviations() -> None:
    text = (
        "Dr. J. S. Bach (born in Eisenach) moved to St. Petersburg? "
        'No. He "stayed." Then 3.5 years passed, e.g. in Leipzig.'
    )
    assert official_texts.split_sentences(text) == [
        "Dr. J. S. Bach (born in Eisenach) moved to St. Petersburg?",
        'No. He "stayed.',
        "Then 3.5 years passed, e.g. in Leipzig.",
    ]


def test_split_is_70_10_20() -> None:
    parts = official_texts.shuffled_parts(200, "Cat")
    assert [parts.count(name) for name in ("train", "dev", "test")] == [140, 20, 40]
    assert parts == official_texts.shuffled_parts(200, "Cat")
    assert parts != official_texts.shuffled_parts(200, "Dog")


# --- word vectors


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_glove_is_read_from_its_zip_or_its_text(tmp_path: Path, form: str) -> None:
    numbers = " ".join(str(i / 4) for i in range(50))
    text = f"the {numbers}\n. . . {numbers}\n"
    place = place_of(tmp_path, {"glove.6B.50d.txt": text.encode()}, form)
    found = read("glove.6B.50d", place)["all"]
    assert bytes(found["words"].numpy()) == b"?\nthe\n. . ."
    assert found["vectors"].dtype == torch.float16
    assert found["vectors"][0].eq(0).all()
    assert found["vectors"][2].tolist() == [i / 4 for i in range(50)]


# --- archives


@pytest.mark.parametrize("damaged", [lambda whole: whole[:-3000], lambda whole: b"no archive"])
def test_a_damaged_archive_is_one_line(tmp_path: Path, damaged: Callable[[bytes], bytes]) -> None:
    noise = random_images(1, 12_000).numpy().tobytes()
    place = place_of(tmp_path, {"DD/DD_A.txt": noise, "DD/DD_graph_labels.txt": noise}, "tar")
    place.write_bytes(damaged(place.read_bytes()))
    with pytest.raises(DataError, match=r"cannot be read|lacks") as caught:
        read("DD", place)
    assert "\n" not in str(caught.value)
