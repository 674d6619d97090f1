"""Hidden checks, by lesson and function: other inputs where the visible check names a few that a
table could answer.

nbgrader leaves them out of what students get and runs them when it grades. They are no secret,
since they stand in a public repository: an instructor who wants secrets changes the numbers.
"""

HIDDEN = {
    ("0_start_here", "at_least_one"): """
for tau_plus_, N_ in ((0.02, 7), (0.3, 4), (0.001, 900)):
    assert abs(at_least_one(tau_plus_, N_) - (1 - (1 - tau_plus_) ** N_)) < 1e-9, "other numbers"
""",
    ("1_curl/2_framework", "price"): """
assert abs(2 ** price(37, "logistic") - 38) < 1e-9 and price(37, "hinge") == 1, "other numbers"
""",
    ("1_curl/6.2_too_many_negatives", "too_many_per_class"): """
for epsilon_ in (0.3, 0.04):
    want_ = 2 * math.log(1 + 1 / math.sqrt(epsilon_))
    assert abs(too_many_per_class(epsilon_) - want_) < 1e-3, "other numbers"
""",
    ("3_hcl/6.1_figure4_hardness", "extreme_ratio"): """
for beta_, t_ in ((2.0, 1.0), (3.0, 0.25)):
    assert abs(extreme_ratio(beta_, t_) / math.exp(2 * beta_ / t_) - 1) < 1e-9, "other numbers"
""",
    ("3_hcl/C.1_figure6_moco", "memory"): """
assert abs(memory(0.9, 1000, 64) - 10 / 15) < 1e-6, "other numbers"
""",
    ("4_discrepancies", "yes_or_no"): """
assert yes_or_no("Yes") is True, "all words"
assert yes_or_no("0") is False and yes_or_no("NO") is False, "all words"
for word_ in ("", "2", "tru", "yes please"):
    try:
        yes_or_no(word_)
    except ValueError:
        continue
    raise AssertionError("any other word should raise ValueError")
""",
    ("6_speed", "faster"): """
for share_, times_ in ((0.25, 2.0), (0.9, 9.0)):
    assert abs(faster(share_, times_) * (1 - share_ + share_ / times_) - 1) < 1e-9, "other numbers"
""",
}
