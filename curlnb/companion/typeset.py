"""Formulas in the plain text of claims, typeset for a page in HTML.

The table of claims writes formulas as one types them, L_un^!=(f) <= alpha tau+. On a page they
become subscripts, superscripts, Greek letters and signs, without a script or a font, so that the
report stays one light file. What is not a formula keeps its characters.
"""

import functools
import re
from html import escape

from markupsafe import Markup

_NAMES = (
    "alpha beta gamma delta eps epsilon eta theta mu xi pi rho sigma tau Sigma infinity inf Omega"
)
_GREEK = dict(zip(_NAMES.split(), "αβγδεεηθμξπρστΣ∞∞Ω", strict=True))
_SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "->": "→"}
_NAME = r"(?<![A-Za-z])"  # nothing of a longer word stands before it
_SCRIPT = r"\([^()\s]*\)|q_beta[+-]?|[+-]?[A-Za-z0-9]+(?:,[a-z]+)?'?|!=|=|[+-](?!\w)"
_ATOM = re.compile(
    rf"(?P<base>{_NAME}[A-Za-z]{{1,5}}['*]?|\)|\|\|?)(?P<scripts>(?:[_^](?:{_SCRIPT}))+)"
)
_WORDS = re.compile(
    rf"{_NAME}(?P<word>{'|'.join(sorted(_GREEK, key=len, reverse=True))})(?P<index>[+-](?!\w))?(?![A-Za-z]|-\w)"
)
_SQUARE_ROOT = re.compile(r"\bsqrt(?=[( \d])\s?")
_LETTERS = tuple("LpqRSEXfvxknehMNgr")
_BASES = (*_LETTERS, "Gen", *_GREEK, ")", "|", "||")
_PRIVATE = dict.fromkeys(
    range(0xE000, 0xF900)
)  # characters that stand for what is done, and are dropped where a text has them


@functools.cache
def html(text: str) -> Markup:
    """The text, escaped, with its formulas typeset."""
    kept: list[str] = []  # what is done, by its place in a private-use character

    def keep(done: str) -> str:
        kept.append(done)
        return chr(0xE000 + len(kept) - 1)

    def atom(match: re.Match[str]) -> str:
        base = match["base"]
        if base.rstrip("'*") not in _BASES:
            return match[0]
        marks = re.findall(rf"([_^])({_SCRIPT})", match["scripts"])
        done = "".join(
            f"<{tag}>{_plain(part)}</{tag}>"
            for mark, part in marks
            for tag in ["sub" if mark == "_" else "sup"]
        )
        shown = f"<i>{base[0]}</i>{base[1:]}" if base.rstrip("'*") in _LETTERS else _plain(base)
        return keep(shown + done)

    def word(match: re.Match[str]) -> str:
        index = {"+": "⁺", "-": "⁻", None: ""}[match["index"]]
        return keep(_GREEK[match["word"]] + index)

    text = text.translate(_PRIVATE)
    text = re.sub(
        r"\b([xf])([+-])(?=[\s,.;)]|$)",
        lambda m: keep(f"<i>{m[1]}</i><sup>{'+' if m[2] == '+' else '−'}</sup>"),
        text,
    )
    text = re.sub(r"\bf_hat\b", lambda m: keep("<i>f̂</i>"), text)
    text = _WORDS.sub(word, _ATOM.sub(atom, text))
    text = re.sub(r"(?<![A-Za-z])([A-Za-z])\*", lambda m: keep(f"<i>{m[1]}</i>*"), text)
    text = _SQUARE_ROOT.sub("√", text)
    for typed, sign in _SIGNS.items():
        text = text.replace(typed, sign)
    text = re.sub(
        r"(?<=[\s(\[])-(?=\d)|(?<=[\d)\ue000-\uf8ff] )-(?= [\d(√\ue000-\uf8ff])", "−", text
    )
    return Markup(re.sub("[\ue000-\uf8ff]", lambda m: kept[ord(m[0]) - 0xE000], escape(text)))


def _plain(part: str) -> str:
    """The inside of a script: brackets that only group are dropped, names become letters."""
    inner = part[1:-1] if part[0] == "(" and part[-1] == ")" else part
    inner = re.sub(
        r"(?<![A-Za-z])[A-Za-z]+", lambda m: _GREEK.get(m[0], m[0]), inner.replace("!=", "≠")
    )
    return re.sub(
        r"\^(\w)", r"<sup>\1</sup>", escape(inner).replace("q_β", "q<sub>β</sub>").replace("-", "−")
    )
