"""For every exercise plausible wrong answers, which its check must refuse: typical mistakes in the
solution, by lesson and function, out of course_wrong_answers.toml.
"""

import tomllib
from pathlib import Path

WRONG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TABULATED = {
    (lesson, function): body
    for lesson, answers in WRONG.pop("tabulated").items()
    for function, body in answers.items()
}
"""Bodies that pass the visible check of an exercise with a hidden one, by knowing its numbers."""


def wrong(lesson, function, solution):
    """The solution with each mistake. ValueError where none is written down, or one does not change
    the solution.
    """
    answers = []
    if function not in WRONG.get(lesson, {}):
        raise ValueError(f"write a mistake in {lesson}, {function} into course_wrong_answers.toml")
    for each in WRONG[lesson][function]:
        if each["part"] not in solution:
            raise ValueError(
                f"{lesson}, {function}: the solution holds no {each['part']!r} any more; write "
                f"down another mistake than {each['mistake']!r}"
            )
        answers.append(solution.replace(each["part"], each["instead"]))
    return answers
