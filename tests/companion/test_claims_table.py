"""The committed table of claims: every row can be planned, judged and counted."""

import csv
import re
from collections import Counter

import pytest

from curlnb.companion import ledger, notebooks
from curlnb.companion.claims import KINDS, PAPERS, table
from curlnb.companion.judgement import again
from curlnb.data import datasets
from curlnb.runs import environment

# the reader refuses other columns, an unknown kind, an id twice, an effect outside its region
ROWS = list(table().values())
REFERENCES = sorted(environment.reference_folder().glob("*/claims.csv"))
PLANNED = [row for row in ROWS if row.sd is not None]


def test_the_table_covers_the_papers_and_the_kinds_in_order():
    papers = [row.paper for row in ROWS]
    assert list(dict.fromkeys(papers)) == list(PAPERS)
    assert papers == sorted(papers, key=PAPERS.index)
    assert {row.kind for row in ROWS} == set(KINDS)
    assert all(row.kind == "ours" for row in ROWS if row.paper == "curlnb")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_says_what_is_claimed_where_and_who_judges_it(row):
    assert row.where
    assert row.claim
    assert row.statistic
    assert row.notebook or row.unrun, "a judging notebook or a reason why none judges it"
    assert not (row.notebook and row.unrun) or row.unrun.startswith("planned: ")
    assert row.notebook in {"", *map(notebooks.name_of, notebooks.find())}
    plan = [part in (None, "") for part in (row.effect, row.effect_from, row.sd, row.sd_from)]
    assert plan in ([True] * 4, [False] * 4), "a plan is whole or absent"
    assert row.sd is not None or row.kind != "experiment" or row.unrun
    assert row.sd is None or row.kind not in ("theorem", "proof step"), "theory has no seeds"
    assert not (row.settled and row.readings)
    for text in vars(row).values():
        assert not isinstance(text, str) or text == " ".join(text.split())


def test_data_sets_are_named_as_in_the_catalogue():
    """Else a verdict on the paper's own data would be called a stand-in's."""
    spelt = {re.sub(r"\W|_", "", name).lower(): name for name in datasets.names()}
    for row in ROWS:
        for name in row.data:
            assert spelt.get(re.sub(r"\W|_", "", name).lower(), name) == name, row.id


def test_a_direction_on_a_trained_encoder_has_a_diagnostic():
    """A gain of accuracy can come from collapse, or from no training at all; a return, a spread or
    a margin cannot.
    """
    for row in PLANNED:
        direction = (row.low is None) != (row.high is None)
        if row.kind == "experiment" and row.data and direction and not row.diagnostic:
            assert row.unit in {"episode return", "nats", "share of runs"}, row.id


def test_groups_hold_claims_of_one_slip_or_one_measurement():
    ids = {row.id for row in ROWS}
    astray = [row.id for row in ROWS if row.group in ids and table()[row.group].group != row.group]
    assert not astray, "grouped with a row of another group"


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.parent.name)
def test_every_committed_verdict_follows_from_its_numbers_and_the_table(path):
    """Else the table or the rule was changed and the reference was not judged again
    (`curlnb.companion.judgement.again`).
    """
    for row in ledger.records(ledger.read(path)):
        anew = again(row, table()[row["id"]])
        assert (row["verdict"], row["scope"]) == (anew["verdict"], anew["scope"]), row["id"]


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.parent.name)
def test_every_claim_is_judged_exactly_once_in_the_committed_reference(path):
    """A claim that a notebook forgot would pass for one that was never made. Quick has every
    notebook, others those that were run; no page has judged a row that is still planned.
    """
    with open(path, newline="") as file:
        judged = Counter((row["id"], row["notebook"]) for row in csv.DictReader(file))
    books = {name for _, name in judged}
    expected = [row for row in ROWS if row.notebook and not row.unrun]
    if path.parent.name != "quick":
        expected = [row for row in expected if row.notebook in books]
    assert judged == Counter((row.id, row.notebook) for row in expected)
