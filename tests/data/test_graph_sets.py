"""Graph sets: the committed ones are those of Tables 3 and 4, bad files are named, what is fetched
is checked; no network is used.
"""

import shutil
import zipfile
from dataclasses import replace

import pytest
import torch

from curlnb.companion.published import published
from curlnb.data import catalogue, graphs
from curlnb.data.catalogue import read_tensors, write_tensors
from curlnb.data.download import DataError
from curlnb.runs import environment

TU = {
    "PTC": "PTC_MR",
    "IMDB-B": "IMDB-BINARY",
    "IMDB-M": "IMDB-MULTI",
    "REDDIT-B": "REDDIT-BINARY",
}  # the paper's names


def test_the_table_holds_the_statistics_of_tables_3_and_4():
    printed = published("robinson2021").query("item in ['Table 3', 'Table 4']")
    assert len(printed) == 32
    column = {
        "graphs": "graphs",
        "classes": "n_classes",
        "average nodes": "nodes",
        "average edges": "edges",
    }
    for row in printed.itertuples():
        assert (
            getattr(graphs.entry_of(TU.get(row.dataset, row.dataset)), column[row.metric])
            == row.value
        )


@pytest.mark.parametrize(("name", "shares"), [("MUTAG", [63, 125]), ("PTC_MR", [192, 152])])
def test_a_committed_set_has_the_papers_statistics_and_classes(name, shares):
    data = graphs.load(name)
    entry = graphs.entry_of(name)
    found = (
        len(data),
        data.classes,
        round(len(data.batch) / len(data), 2),
        round(data.edges.shape[1] / 2 / len(data), 2),
    )
    assert found == (entry.graphs, entry.n_classes, entry.nodes, entry.edges)
    assert torch.bincount(data.labels).tolist() == shares
    assert data.x.shape == (len(data.batch), entry.node_labels)
    assert (data.x.sum(1) == 1).all()
    assert catalogue.available(name) == "embedded"


@pytest.mark.parametrize("name", ["MUTAG", "PTC_MR"])
def test_our_reader_and_torch_geometrics_agree(name):
    read = pytest.importorskip("torch_geometric.io").read_tu_data
    theirs = read(str(environment.home() / "data" / "graphs" / name), name)
    data = graphs.load(name)
    torch.testing.assert_close(theirs[0].x[:, -data.x.shape[1] :].float(), data.x)
    first = torch.bincount(data.batch).cumsum(0) - torch.bincount(data.batch)
    assert torch.equal(
        theirs[0].edge_index, data.edges - first[data.batch[data.edges]]
    )  # theirs are numbered within each graph
    assert torch.equal(theirs[0].y, data.labels)
    assert torch.equal(theirs[1]["x"].diff(), torch.bincount(data.batch))


def tu_files(folder, **tables):
    tables = {
        "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 4\n",
        "graph_indicator": "1\n1\n1\n2\n",
        "graph_labels": "-1\n1\n",
    } | tables
    for part, text in tables.items():
        (folder / f"small_{part}.txt").write_text(text)
    return folder


def test_a_graph_without_edges_is_kept_with_its_nodes_isolated(tmp_path):
    raw = graphs.read_tu(tu_files(tmp_path), "small")
    assert raw.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]  # the loop 4, 4 is dropped
    assert raw.labels.tolist() == [0, 1]
    assert graphs.features(raw).tolist() == [
        [0, 1, 0],
        [0, 0, 1],
        [0, 1, 0],
        [1, 0, 0],
    ]  # degrees, one-hot


def test_a_set_without_any_edge_can_be_read(tmp_path):
    raw = graphs.read_tu(tu_files(tmp_path, A=""), "small")
    assert raw.edges.shape == (2, 0)
    assert graphs.features(raw).shape == (4, 1)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"graph_indicator": "1\n1\n1\n3\n", "graph_labels": "1\n1\n2\n"},
            "does not give each of its 3 graphs nodes",
        ),
        ({"A": "1, 4\n"}, "an edge between two graphs"),
        ({"A": "1, 9\n"}, "an edge to node 9, but 4 nodes"),
        ({"A": "1, x\n"}, "small_A.txt is damaged"),
        ({"node_labels": "0\n1\n"}, "4 nodes and 2 node labels"),
    ],
)
def test_files_that_contradict_each_other_are_named(tmp_path, tables, message):
    with pytest.raises(DataError, match=message) as error:
        graphs.read_tu(tu_files(tmp_path, **tables), "small")
    assert "\n" not in str(error.value)


def test_a_large_degree_is_standardised():
    star = graphs.undirected(
        torch.stack([torch.zeros(1200, dtype=torch.long), torch.arange(1, 1201)]), 1201
    )
    x = graphs.features(
        graphs.Raw(
            star, torch.zeros(1201, dtype=torch.long), torch.zeros(1, dtype=torch.long), None
        )
    )
    assert x.shape == (1201, 1)
    assert abs(float(x.mean())) < 1e-4


def test_absent_unknown_and_altered_sets_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    with pytest.raises(
        DataError,
        match=r"DD is not on this machine: fetch it with curlnb.data.datasets.fetch\('DD'\), or .*`make data",
    ):
        graphs.load("DD")
    with pytest.raises(
        DataError,
        match=r"unknown graph set 'MUTAGS', did you mean 'MUTAG'\?: there are MUTAG, PTC_MR",
    ):
        graphs.load("MUTAGS")


@pytest.mark.parametrize("damage", ["missing", "labels", "edges", "text"])
def test_a_damaged_committed_set_says_how_to_restore_it(tmp_path, monkeypatch, damage):
    data = environment.home() / "data"
    shutil.copytree(data / "graphs" / "MUTAG", tmp_path / "data" / "graphs" / "MUTAG")
    shutil.copy(data / "catalogue.json", tmp_path / "data")
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    assert len(graphs.load("MUTAG")) == 188
    part = (
        tmp_path
        / "data"
        / "graphs"
        / "MUTAG"
        / ("MUTAG_graph_labels.txt" if damage == "labels" else "MUTAG_A.txt")
    )
    lines = part.read_text().splitlines(keepends=True)
    if damage == "missing":
        part.unlink()
    else:
        part.write_text(
            {"labels": "".join(lines[::-1]), "edges": "".join(lines[4:]), "text": "1, ?\n"}[damage]
        )
    with pytest.raises(
        DataError, match=r"MUTAG .*: restore it with `git checkout -- data/graphs/MUTAG`"
    ) as error:
        graphs.load("MUTAG")
    assert "\n" not in str(error.value)


def archive_of(tables: dict[str, str], path):
    with zipfile.ZipFile(path, "w") as zipped:
        for part, text in tables.items():
            zipped.writestr(f"DD/DD_{part}.txt", text)
    return path


def test_a_fetched_set_appears_whole_and_verified_or_not_at_all(tmp_path, monkeypatch):
    # TU's server stands here for itself as a folder; DD has MUTAG's content and statistics.
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(graphs, "TU_SERVER", f"{tmp_path.as_uri()}/")
    monkeypatch.setitem(
        catalogue.entries(),
        "DD",
        replace(graphs.entry_of("MUTAG"), name="DD", committed=False, sha256={}),
    )
    here = environment.home() / "data" / "graphs" / "MUTAG"
    tables = {file.stem.removeprefix("MUTAG_"): file.read_text() for file in here.iterdir()}
    archive_of(tables | {"graph_labels": "1\n" * 188}, tmp_path / "DD.zip")
    with pytest.raises(
        DataError, match="DD from its original source has 1 classes where 2 are expected"
    ):
        catalogue.fetch("DD", print)
    assert catalogue.available("DD") == "absent"
    assert not (tmp_path / "cache" / ".DD.fetching").exists(), "a second try must fetch anew"
    archive_of(tables, tmp_path / "DD.zip")
    catalogue.fetch("DD", print)
    assert catalogue.available("DD") == "cached"
    assert torch.equal(graphs.load("DD").x, graphs.load("MUTAG").x)
    path = tmp_path / "cache" / "graphs" / "DD.safetensors"
    other = {key: tensor.clone() for key, tensor in read_tensors(path).items()}
    other["labels"] = 1 - other["labels"]
    write_tensors(other, path)
    (tmp_path / "DD.zip").unlink()
    with pytest.raises(DataError, match="DD could not be had from its original source"):
        graphs.load("DD")


def test_logic_is_rewritten_as_graphs(tmp_path, monkeypatch):
    facts = "<1> bond(0, 1, 9),<1> bond(1, 0, 9),<1> b_2(9),<1> atom_5(0),<1> atom_3(1).\n<1> atom_7(0).\n"
    monkeypatch.setattr(
        graphs,
        "pypi_members",
        lambda *a, **k: {
            "examples.txt": facts.encode(),
            "queries.txt": b"1.0 predict.\n0.0 predict.\n",
        },
    )
    ((_, tables),) = graphs.chemlogic("PTC_MR", tmp_path)
    raw = graphs.from_tables(tables, "PTC_MR")
    assert raw.edges.tolist() == [[0, 1], [1, 0]]
    assert (raw.batch.tolist(), raw.labels.tolist(), raw.node_labels.tolist()) == (
        [0, 0, 1],
        [1, 0],
        [5, 3, 7],
    )
