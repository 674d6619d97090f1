"""Formulas in the plain text of claims, typeset for a page in HTML.

The table of claims writes formulas as one types them, L_un^!=(f) <= alpha tau+. On a page they
become subscripts, superscripts, Greek letters and signs, without a script or a font. What is not a
formula keeps its characters.
"""

import functools
import re
from html import escape

from markupsafe import Markup

_NAMES = (
    "alpha beta gamma delta epsilon eps theta eta mu xi pi rho sigma tau Sigma infinity inf Omega"
)
_GREEK = dict(zip(_NAMES.split(), "αβγδεεθημξπρστΣ∞∞Ω", strict=True))
_SIGNS = {"&lt;=": "≤", "&gt;=": "≥", "!=": "≠", "-&gt;": "→", "sqrt ": "√", "sqrt": "√"}
_SCRIPT = r"\([^()\s]*\)|q_β[+-]?|[+-]?\w+(?:,[a-z]+)?(?:&#x27;)?|≠|=|[+-](?!\w)"
_BASE = r"(?<![A-Za-z])(?:[A-Za-z]|Gen|[α-ωΣΩ])(?:&#x27;|\*)?|\)|\|\|?"
_LETTERS = "LpqRSEXfvxknehMNgr"


@functools.cache
def html(text: str) -> Markup:
    """The text, escaped, with its formulas typeset."""
    text = escape(text)
    for typed, sign in _SIGNS.items():
        text = re.sub(rf"(?<![A-Za-z]){re.escape(typed)}", sign, text)
    for name, letter in _GREEK.items():
        text = re.sub(rf"(?<![A-Za-z]){name}(?![A-Za-z]|-\w)", letter, text)
    text = re.sub(r"([α-ωΣΩ∞])([+-])(?!\w)", lambda m: m[1] + "⁺⁻"["+-".index(m[2])], text)
    text = re.sub(r"\bf_hat\b", "<i>f̂</i>", text)
    text = re.sub(rf"({_BASE})((?:[_^](?:{_SCRIPT}))+)", _scripts, text)
    text = re.sub(r"\b([xf])([+-])(?=[\s,.;)]|$)", r"<i>\1</i><sup>\2</sup>", text)
    text = text.replace("<sup>-", "<sup>−")
    return Markup(re.sub(r"(?<=[\s(\[])-(?=\d)|(?<=[\w)>] )-(?= [\w(√])", "−", text))


def _scripts(match: re.Match[str]) -> str:
    base, done = match[1], ""
    for mark, part in re.findall(rf"([_^])({_SCRIPT})", match[2]):
        inner = part[1:-1] if part[0] == "(" else part
        inner = re.sub(r"\^(\w)", r"<sup>\1</sup>", inner.replace("q_β", "q<sub>β</sub>"))
        tag = "sub" if mark == "_" else "sup"
        done += f"<{tag}>{inner.replace('-', '−')}</{tag}>"
    return (f"<i>{base[0]}</i>{base[1:]}" if base[0] in _LETTERS else base) + done
