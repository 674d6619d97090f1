"""Graph sets: the committed ones are those of Tables 3 and 4, and bad files are named."""

import shutil
import zipfile
from dataclasses import replace

import pytest
import torch

from curlnb.companion.published import published
from curlnb.data import catalogue, graphs, verified
from curlnb.data.contents import Raw, read_tables, undirected
from curlnb.data.datasets import DataError
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
    assert verified.available(name) == "embedded"


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


def small(**tables):
    """Two graphs of three nodes and of one."""
    return {
        "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 4\n",
        "graph_indicator": "1\n1\n1\n2\n",
        "graph_labels": "-1\n1\n",
    } | tables


def test_a_graph_without_edges_is_kept_with_its_nodes_isolated():
    raw = read_tables(small())
    assert raw.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]  # the loop 4, 4 is dropped
    assert raw.labels.tolist() == [0, 1]
    degrees = [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]  # one-hot
    assert graphs.features(raw).tolist() == degrees


def test_edges_are_taken_once_and_in_both_directions():
    raw = read_tables(small(A="3, 1\n2, 1\n2, 1\n1, 2\n"))
    assert raw.edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]


def test_node_labels_may_have_several_columns():
    raw = read_tables(small(node_labels="0, 5\n1, 5\n0, 6\n2, 5\n"))
    rows = [[1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 0, 1, 1, 0]]
    assert graphs.features(raw).tolist() == rows


def test_a_set_of_tu_is_read_from_its_zip(tmp_path, monkeypatch):
    # DD has MUTAG's content here.
    entry = replace(graphs.entry_of("MUTAG"), name="DD", committed=False, files=("DD/DD_A.txt",))
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(
        catalogue.entries(), "DD", replace(entry, archives=(("http://x/DD.zip", ""),))
    )
    here = environment.home() / "data" / "graphs" / "MUTAG"
    with zipfile.ZipFile(tmp_path / "DD.zip", "w") as zipped:
        for file in here.iterdir():
            zipped.write(file, f"DD/{file.name.replace('MUTAG', 'DD')}")
    verified.fetch("DD", print, tmp_path)
    assert verified.available("DD") == "cached"
    assert torch.equal(graphs.load("DD").x, graphs.load("MUTAG").x)


def test_a_large_degree_is_standardised():
    star = undirected(
        torch.stack([torch.zeros(1200, dtype=torch.long), torch.arange(1, 1201)]), 1201
    )
    x = graphs.features(
        Raw(star, torch.zeros(1201, dtype=torch.long), torch.zeros(1, dtype=torch.long), None)
    )
    assert x.shape == (1201, 1)
    assert abs(float(x.mean())) < 1e-4


def test_absent_unknown_and_altered_sets_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    with pytest.raises(
        DataError,
        match=r"DD is not on this machine: no digest of its archive is published: "
        "download https://.*/DD.zip yourself, then run `make data FROM=",
    ):
        graphs.load("DD")
    with pytest.raises(
        DataError,
        match=r"unknown graph set 'MUTAGS', did you mean 'MUTAG'\?: there are MUTAG, PTC_MR",
    ):
        graphs.load("MUTAGS")


@pytest.mark.parametrize("damage", ["missing", "labels"])
def test_a_damaged_committed_set_says_how_to_restore_it(tmp_path, monkeypatch, damage):
    data = environment.home() / "data"
    shutil.copytree(data / "graphs" / "MUTAG", tmp_path / "data" / "graphs" / "MUTAG")
    shutil.copy(data / "catalogue.json", tmp_path / "data")
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    assert len(graphs.load("MUTAG")) == 188
    labels = tmp_path / "data" / "graphs" / "MUTAG" / "MUTAG_graph_labels.txt"
    if damage == "missing":
        labels.unlink()
    else:
        labels.write_text("".join(labels.read_text().splitlines(keepends=True)[::-1]))
    with pytest.raises(
        DataError, match=r"MUTAG .*: restore it with `git checkout -- data/graphs/MUTAG`"
    ) as error:
        graphs.load("MUTAG")
    assert "\n" not in str(error.value)
