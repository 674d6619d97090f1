"""Graph sets: the committed ones are those of Tables 3 and 4, and TU's tables are read as they are
meant.
"""

from dataclasses import replace

import pytest
import torch
from archives import zipped

from curlnb.companion.published import published
from curlnb.data import catalogue, graphs, verified
from curlnb.data.contents import Raw, read_tables, undirected
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
        entry = graphs.entry_of(TU.get(row.dataset, row.dataset))
        assert getattr(entry, column[row.metric]) == row.value


@pytest.mark.parametrize(("name", "shares"), [("MUTAG", [63, 125]), ("PTC_MR", [192, 152])])
def test_a_committed_set_has_the_papers_statistics_and_classes(name, shares):
    data, entry = graphs.load(name), graphs.entry_of(name)
    averages = len(data.batch) / len(data), data.edges.shape[1] / 2 / len(data)
    assert tuple(round(average, 2) for average in averages) == (entry.nodes, entry.edges)
    assert (len(data), data.classes) == (entry.graphs, entry.n_classes)
    assert torch.bincount(data.labels).tolist() == shares
    assert data.x.shape == (len(data.batch), entry.node_labels)
    assert (data.x.sum(1) == 1).all()
    assert torch.equal(data.batch[data.edges[0]], data.batch[data.edges[1]])


GRAPHS = {  # two graphs of three nodes and of one
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 4\n",
    "graph_indicator": "1\n1\n1\n2\n",
    "graph_labels": "-1\n1\n",
}


def test_a_graph_without_edges_is_kept_with_its_nodes_isolated():
    raw = read_tables(GRAPHS)
    assert raw.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]  # the loop 4, 4 is dropped
    assert raw.labels.tolist() == [0, 1]
    degrees = [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]  # one-hot
    assert graphs.features(raw).tolist() == degrees


def test_edges_are_taken_once_and_in_both_directions():
    raw = read_tables(GRAPHS | {"A": "3, 1\n2, 1\n2, 1\n1, 2\n"})
    assert raw.edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]


def test_node_labels_may_have_several_columns():
    raw = read_tables(GRAPHS | {"node_labels": "0, 5\n1, 5\n0, 6\n2, 5\n"})
    rows = [[1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 0, 1, 1, 0]]
    assert graphs.features(raw).tolist() == rows


def test_a_set_of_tu_is_read_from_its_zip(tmp_path, monkeypatch):
    # DD has MUTAG's content here.
    real = graphs.entry_of("DD")
    entry = replace(real, sha256=graphs.entry_of("MUTAG").sha256, node_labels=7)
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(catalogue.entries(), "DD", entry)
    here = environment.home() / "data" / "graphs" / "MUTAG"
    files = {f"DD/{f.name.replace('MUTAG', 'DD')}": f.read_bytes() for f in here.iterdir()}
    zipped(tmp_path / "DD.zip", files)
    verified.fetch("DD", tmp_path)
    assert verified.available("DD") == "cached"
    assert torch.equal(graphs.load("DD").x, graphs.load("MUTAG").x)


def test_a_large_degree_is_standardised():
    ends = torch.stack([torch.zeros(1200, dtype=torch.long), torch.arange(1, 1201)])
    star, batch = undirected(ends, 1201), torch.zeros(1201, dtype=torch.long)
    x = graphs.features(Raw(star, batch, batch[:1], None))
    assert x.shape == (1201, 1)
    assert abs(float(x.mean())) < 1e-4
