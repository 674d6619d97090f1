"""Every number of the paper comes from the ledger."""

import re

import paper
import pytest

TEXT = paper.TEXT.read_text(encoding="utf-8")
BODY = TEXT[TEXT.index("*Abstract.*") : TEXT.index("= References")]


def typed_by_hand(text):
    """Decimals, signed numbers, percentages and intervals that no call of the template writes."""
    calls = r"#[a-z]+\([^()]*\)|\"[^\"]*\"|^ *(?:columns|#set).*$|width: 100%|95% (?:t )?interval"
    said = re.sub(calls, " ", text, flags=re.M)
    return re.findall(r"\d+\.\d+|(?<![\w-])[-+]\d+|\d+ ?%|\[[-+]?\d[^\]]*\]", said)


def test_no_number_is_typed_by_hand():
    assert typed_by_hand(BODY) == []


@pytest.mark.parametrize("planted", ["gains 1.55 points", "falls by -3", "a lead of 4%", "[1, 2]"])
def test_a_number_typed_by_hand_is_found(planted):
    assert typed_by_hand(f"{BODY} {planted}") != []


def test_every_row_that_it_reads_is_measured():
    rows = paper.data()
    for call, id in re.findall(r"#(gain|mean|seeds)\(\"([^\"]+)\"\)", BODY):
        assert rows[id]["interval"], (call, id)
    assert int(rows["counts"]["ours"]) > 100
    table = re.search(r"#results\((.*?)\)", BODY, re.S)[1]
    for id in re.findall(r"\"([^\"]+)\"", table):
        assert all(rows[id][name] for name in ("interval", "seeds")), id


def test_it_builds(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    paper.main()
    assert (tmp_path / "paper" / "paper.pdf").read_bytes().startswith(b"%PDF")
