"""Articles as classes, their sentences as samples: arora2019's Wiki-3029 (Appendix D.1) from
enwik8, the beginning of a Wikipedia dump in XML.

`articles` reads it, cleans the markup and splits sentences into words; `select` applies the rules:
the paper's own by default, relaxed ones where a dump is small. Nothing is random but the draw of
sentences, which has a seed of its own.
"""

import html
import itertools
import random
import re
from dataclasses import dataclass

from curlnb.data.official_sets import Sentence, sentences

NAMESPACES = re.compile(
    r"(?:talk|user|wikipedia|image|file|mediawiki|template|help|category|portal|media|special)"
    r"(?: talk)?:",
    re.I,
)
REDIRECT = re.compile(r"\s*#redirect", re.I)
LAST = re.compile(
    r"(?:see also|references|external links?|further reading|notes|bibliography|sources|footnotes"
    r"|literature)\b",
    re.I,
)


@dataclass(frozen=True)
class Rules:
    """What makes an article a class. The defaults are the paper's (arora2019, Appendix D.1).

    sentences: drawn from an article, at random and kept in the order of the text, so that it needs
    as many; words: the least that a sentence must have to count; sections, per_section: so many
    sections must hold so many such sentences each (the paper can also be read as all sections);
    wordnet: whether the title must be an entry of WordNet; articles: how many are kept, first those
    with most sentences; None for all.
    """

    sentences: int = 200
    words: int = 4
    sections: int = 8
    per_section: int = 12
    wordnet: bool = True
    articles: int | None = None


@dataclass(frozen=True)
class Article:
    """A cleaned article: its title, and the sentences of each of its sections, as words."""

    title: str
    sections: tuple[tuple[Sentence, ...], ...]


def articles(dump):
    """The articles of a dump in XML, cleaned, in its order; redirects, pages of other namespaces
    and the last page of a dump that is cut off are left out.
    """
    for page in dump.split("</page>")[:-1]:
        title = re.search(r"<title>(.*?)</title>", page, re.S)
        text = re.search(r"<text[^>]*>(.*?)</text>", page, re.S)
        if title and text and not NAMESPACES.match(title[1]) and not REDIRECT.match(text[1]):
            yield Article(html.unescape(title[1]), tuple(sections(html.unescape(text[1]))))


def sections(markup):
    """The sentences of each section of an article's text in wiki markup; lists, tables, notes and
    what follows "See also" are left out.
    """
    parts = re.split(r"^(=+)([^=\n]+)\1[ \t]*$", plain(markup), flags=re.M)
    headings = ["", *(heading.strip() for heading in parts[2::3])]
    for heading, body in zip(headings, parts[::3], strict=True):
        if LAST.match(heading):
            return
        prose = [line.strip() for line in body.split("\n") if line and line[0] not in "*#;|!{} "]
        if found := tuple(sentences(prose)):
            yield found


def plain(markup):
    """Wiki markup as text: links as they read, headings as they are, everything else that is not
    prose removed.
    """
    text = re.sub(
        r"<!--.*?-->|<(ref|math|gallery|table|timeline|pre|code)\b[^>/]*>.*?</\1\s*>|<[^<>]*>",
        " ",
        markup,
        flags=re.S | re.I,
    )
    text = _innermost(re.compile(r"\{\{[^{}]*\}\}"), "", text)
    text = _innermost(re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.S), "", text)
    text = _innermost(re.compile(r"\[\[([^\[\]]*)\]\]"), _link, text)
    text = re.sub(r"\[(?:https?|ftp):\S*\s*([^\]]*)\]", r"\1", text)
    text = re.sub(r"'{2,}", "", text)
    return html.unescape(text).replace("\xa0", " ")


def _link(match):
    target, _, label = match[1].rpartition("|")
    if re.match(r"[a-z\-]{2,12}:", match[1], re.I):  # a picture, a category, another language
        return ""
    return label if target else label.split("#")[0].lstrip(":")


def _innermost(pattern, replacement, text):
    """Replace nested constructs from the inside out."""
    for _ in range(12):
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def select(found, rules, wordnet=()):
    """The sentences drawn from each article that meets the rules, by title, in the articles' order.

    wordnet: WordNet's entries in lower case with underscores. The draw is without replacement and
    seeded by the title, so that an article gives the same sentences whatever stands beside it; a
    sentence that occurs twice in an article counts once.
    """
    pools = {}
    for article in found:
        if rules.wordnet and article.title.lower().replace(" ", "_") not in wordnet:
            continue
        counted = [[s for s in section if len(s) >= rules.words] for section in article.sections]
        long = sum(len(section) >= rules.per_section for section in counted)
        own = list(dict.fromkeys(itertools.chain(*counted)))
        if len(own) >= rules.sentences and long >= rules.sections:
            pools[article.title] = own
    longest = sorted(pools, key=lambda title: (-len(pools[title]), title))
    kept = set(longest[: rules.articles])
    drawn = {}
    for title, own in pools.items():
        if title in kept:
            places = sorted(random.Random(f"0/{title}").sample(range(len(own)), rules.sentences))
            drawn[title] = [own[place] for place in places]
    return drawn


def wordnet_entries(index):
    """The entries in the text of one of WordNet's index files (index.noun and so on), whose licence
    stands on the lines that begin with a blank.
    """
    return set(re.findall(r"^[^ \n]+", index, re.M))
