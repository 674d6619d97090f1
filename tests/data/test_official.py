"""Official files, here made up in their official layout, are read as they are documented."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from archives import tar_of, unpacked, zipped
from formulas import generator, refused
from PIL import Image

from curlnb.data import catalogue, official_sets
from curlnb.data.datasets import DataError


def random_images(*shape):
    return torch.randint(0, 256, shape, generator=generator(sum(shape)), dtype=torch.uint8)


def tar(folder, files):
    (folder / "archive").write_bytes(tar_of(files))
    return folder / "archive"


def read(name, place, **changes):
    entry = replace(catalogue.find(name), **changes)
    return dict(getattr(official_sets, entry.reader)(entry, place))


# --- images


def test_cifar100_in_its_binary_version(tmp_path):
    x, labels, coarse = random_images(6, 3, 32, 32), [0, 1, 2, 99, 3, 50], [4, 1, 4, 19, 0, 7]
    rows = [bytes([c, y]) + i.numpy().tobytes() for c, y, i in zip(coarse, labels, x, strict=True)]
    files = {"train": b"".join(rows[:4]), "test": b"".join(rows[4:])}
    named = {f"cifar-100-binary/{split}.bin": content for split, content in files.items()}
    found = read("cifar100", tar(tmp_path, named))
    assert torch.equal(torch.cat([own["images"] for own in found.values()]), x)
    assert found["train"]["labels"].tolist() + found["test"]["labels"].tolist() == labels


def test_stl10_with_its_unlabelled_images_and_at_half_size(tmp_path):
    x = random_images(6, 3, 96, 96)
    split = {"train": x[:2], "test": x[2:3], "unlabeled": x[3:]}
    # stored column by column, and labelled from 1
    files = {f"stl10_binary/{n}_X.bin": own.mT.numpy().tobytes() for n, own in split.items()}
    files |= {"stl10_binary/train_y.bin": bytes([1, 10]), "stl10_binary/test_y.bin": bytes([3])}
    place = tar(tmp_path, files)
    found, halved = read("stl10", place), read("stl10-48", place)
    assert all(torch.equal(found[name]["images"], own) for name, own in split.items())
    labels = {name: own["labels"].tolist() for name, own in found.items()}
    assert labels == {"train": [0, 9], "test": [2], "unlabeled": [-1, -1, -1]}
    assert {name: own["labels"].tolist() for name, own in halved.items()} == {
        "train": [0, 9],
        "test": [2],
    }
    for i, j in ((0, 0), (13, 47), (47, 5)):
        block = x[:2, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].long().sum((2, 3))
        assert torch.equal(halved["train"]["images"][:, :, i, j].long(), (block + 2) // 4)


def jpeg(colour):
    mode = "L" if isinstance(colour, int) else "RGB"
    Image.new(mode, (64, 64), colour).save(buffer := io.BytesIO(), "JPEG", quality=100)
    return buffer.getvalue()


def test_the_part_of_tiny_imagenet(tmp_path):
    # Two classes; training files 0 to 59 of more; ten validation files by the annotations.
    ids, root = ("n01", "n02"), "tiny-imagenet-200"
    files = {  # some files of Tiny ImageNet are grey
        f"{root}/train/{label}/images/{label}_{n}.JPEG": jpeg(15 if n == 5 else (3 * n, 100, 200))
        for label in ids
        for n in range(62)
    }
    order = [f"val_{number}.JPEG" for number in (7, 3, *range(20, 44))]
    lines = [f"{name}\t{ids[i % 2]}\t0\t0\t62\t62\n" for i, name in enumerate(order)]
    files |= {f"{root}/val/images/{name}": jpeg(5 * i) for i, name in enumerate(order)}
    files |= {f"{root}/val/val_annotations.txt": "".join(lines).encode()}
    found = read("tiny-imagenet-mini", zipped(tmp_path / "zip", files), classes=ids)
    # any first images are balanced
    for split, count, step in (("train", 60, 3), ("test", 10, 2 * 5)):
        images, labels = found[split]["images"], found[split]["labels"]
        assert images.shape == (2 * count, 3, 64, 64)
        assert labels.tolist() == [0, 1] * count
        expected = step * torch.arange(count).repeat_interleave(2)
        expected += 5 * labels * (split == "test")
        assert (images[:, 0, 32, 32].long() - expected).abs().max() <= 3


def test_imagenet100_is_cut_to_the_middle_square(tmp_path):
    ids = ("n01", "n02")
    for folder in ("train/n01", "train/n02", "val/n01", "val/n02"):
        (tmp_path / folder).mkdir(parents=True)
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 200  # the middle square
    Image.fromarray(wide).save(tmp_path / "train/n02/b.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "train/n02/a.png")
    Image.new("L", (5, 5), 40).save(tmp_path / "train/n01/x.png")
    found = read("imagenet100", tmp_path, classes=ids, shape=(3, 8, 8))["train"]
    assert found["labels"].tolist() == [0, 1, 1]
    inner = found["images"][:, :, 2:6, 2:6]
    assert [image.unique().tolist() for image in inner] == [[40], [200], [200]]
    (tmp_path / "val/n01/broken.JPEG").write_bytes(b"no picture")
    with refused(r"broken\.JPEG is no readable picture", DataError):
        read("imagenet100", tmp_path, classes=ids, shape=(3, 8, 8))


def test_imagenet100_has_the_published_classes():
    ids = catalogue.find("imagenet100").classes
    assert len(ids) == 100
    assert list(ids) == sorted(set(ids))
    # those that Tiny ImageNet has as well
    assert len(set(ids) & set(catalogue.find("tiny-imagenet-mini").classes)) == 14


# --- texts


@pytest.mark.parametrize("end", ["\n", "", "\n\n"])
@pytest.mark.parametrize("name", ["MR-full", "CR-full", "SUBJ-full", "MPQA"])
def test_a_task_of_two_files_has_a_row_for_each_line(tmp_path, name, end):
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


def test_msrp_is_read_in_its_original_format(tmp_path):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    for split in ("train", "test"):
        lines = "".join(f'{i % 2}\t{i}\t{i + 9}\tHe said "no.\t...\r\n' for i in range(3))
        (tmp_path / f"msr_paraphrase_{split}.txt").write_text(head + lines)
    found = read("MSRP", tmp_path)
    assert found["train"].splitlines()[3:6] == ["= msrp train 00001\t1", "he said no", "?"]
    assert found["test"].count("= msrp test") == 3


def test_imdb_in_its_original_folder(tmp_path):
    files = {
        "aclImdb/train/pos/0_9.txt": b"Good<br /><br />Fine!",
        "aclImdb/train/neg/0_1.txt": b"Bad. Very bad.",
        "aclImdb/train/unsup/0_0.txt": b"Who knows?",
        "aclImdb/test/neg/1_1.txt": b"...",
        "aclImdb/test/pos/1_8.txt": b"I  like\nit.",
        "aclImdb/train/urls_pos.txt": b"no review",
    }
    place = unpacked(tmp_path, files)
    found = read("imdb", place)
    reviews = {block.partition("\n")[2] for block in found["train"].split("= ")[1:]}
    assert reviews == {"good\nfine\n", "bad\nvery bad\n"}
    title, *sentences = found["test"].splitlines()  # one without a word is left out
    assert (title[:7], title[-2:], sentences) == ("= test ", "\t1", ["i like it"])
    assert read("imdb-unlabeled", place)["train"] == "= unsup 00000\nwho knows\n"


def test_reviews_come_in_the_same_order_from_every_source():
    texts = [("Bad. Very bad.", 0), ("Good<br /><br />Fine!", 1), ("...", 0)]
    assert official_sets.reviews(texts, "train") == official_sets.reviews(texts[::-1], "train")


def test_wiki3029_takes_articles_of_200_sentences_and_divides_them(tmp_path):
    lines = "".join(f"A line {i}.\n\n" for i in range(200))
    files = {"Wiki-3029/St. Paul.txt": lines.encode(), "Wiki-3029/Short": b"A line.\n" * 199}
    found = read("wiki3029", tar(tmp_path, files))
    assert {part: text.count("a line") for part, text in found.items()} == {
        "train": 140,
        "dev": 20,
        "test": 40,
    }
    assert all(text.startswith("= St. Paul\n") for text in found.values())
    rows = [line for text in found.values() for line in text.splitlines()[1:]]
    assert len(set(rows)) == 200


def test_bookcorpus_leaves_empty_sentences_out_and_parts_books(tmp_path):
    path = tmp_path / "books.txt"
    path.write_text("It rained .\n...\nWe slept .\n\n\nAnother book .\n")
    text = read("bookcorpus", tmp_path)["train"]
    assert text == "= book 1\nit rained\nwe slept\n= book 2\nanother book\n"


def test_words_are_cut_as_glove_cuts_them():
    assert official_sets.words("Don't say Kant's 1,234.5 “Ideas”, it’s snake_case!") == (
        "do", "n't", "say", "kant", "'s", "1,234.5", "ideas", "it", "'s", "snake", "case",
    )  # fmt: skip
    assert official_sets.words("-- ... !") == ()  # an empty sentence, which readers leave out


def test_sentences_end_at_full_stops_but_not_behind_initials_and_abbreviations():
    text = (
        "Dr. J. S. Bach (born in Eisenach) moved to St. Petersburg? "
        'No. He "stayed." Then 3.5 years passed, e.g. in Leipzig.'
    )
    assert official_sets.split_sentences(text) == [
        "Dr. J. S. Bach (born in Eisenach) moved to St. Petersburg?",
        'No. He "stayed.',
        "Then 3.5 years passed, e.g. in Leipzig.",
    ]


# --- word vectors


def test_glove_is_read_from_its_zip_or_its_text(tmp_path):
    numbers = " ".join(str(i / 4) for i in range(50))
    files = {"glove.6B.50d.txt": f"the {numbers}\n. . . {numbers}\n".encode()}
    for place in (unpacked(tmp_path, files), zipped(tmp_path / "zip", files)):
        found = read("glove.6B.50d", place)["all"]
        assert bytes(found["words"].numpy()) == b"?\nthe\n. . ."
        assert found["vectors"].dtype == torch.float16
        expected = [0.0] * 50, *[[i / 4 for i in range(50)]] * 2
        assert found["vectors"].tolist() == [*expected]
