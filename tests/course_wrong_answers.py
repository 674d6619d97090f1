"""For every exercise plausible wrong answers, which its check must refuse: by lesson and function,
typical mistakes in the solution.

(the mistake, a part of the solution, what stands there instead), or a list of them
"""

Mistake = tuple[str, str, str]
POOLED: Mistake = (
    "the share of all rows together",
    "torch.softmax(beta * neg / t, dim=1)",
    "len(neg) * (beta * neg / t).flatten().softmax(0).view_as(neg)",
)

WRONG: dict[str, dict[str, Mistake | list[Mistake]]] = {
    "0.1_from_scratch": {
        "false_negatives": (
            "views of an image beside each other",
            "torch.arange(2 * n) % n",
            "torch.arange(2 * n) // 2",
        ),
        "unbiased": [
            ("a sum over some, divided by all", "/ (~false).sum(1)", "/ neg.shape[1]"),
            ("not the mean", ".log()).mean()", ".log())"),
        ],
        "share_of_hardest": [
            ("forgotten temperature", "beta * neg / t", "beta * neg"),
            POOLED,
        ],
    },
    "0_start_here": {
        "at_least_one": ("chances added", "1 - (1 - tau_plus) ** N", "tau_plus * N"),
        "debiased_by_hand": [
            ("not divided by 1 - tau_plus", " / (1 - tau_plus)", ""),
            ("the floor forgotten", "max(g, math.exp(-1 / t))", "g"),
        ],
        "weight_on_false": [
            ("forgotten temperature", "beta * neg / t", "beta * neg"),
            POOLED,
        ],
    },
    "1_curl/2_framework": {
        "price": ("one negative for k", "torch.zeros(k)", "torch.zeros(1)"),
        "split_first": ("the last class copied", "world.D[:1]", "world.D[-1:]"),
        "blind_spots": ("one attribute compared", "has[a] == has[b]", "has[a][0] == has[b][0]"),
    },
    "1_curl/4.1_surrogate_bound": {
        "lemma_bound": ("tau not subtracted", "rho @ A @ rho - collide", "rho @ A @ rho"),
        "loose": ("too small a spread", "r = 15.0", "r = 1.5"),
        "means_only": [
            (
                "wrong sign",
                "products.diagonal()[:, None] - products",
                "products - products.diagonal()[:, None]",
            ),
            (
                "the anchor left a point",
                "(task_weights(world.rho) * loss(margins, kind)).sum()",
                "pair_losses(world, f, kind).supervised()",
            ),
        ],
    },
    "1_curl/4.2_class_collision": {
        "effective_classes": ("not normalised", "weights / weights.sum()", "weights"),
        "free_scale": ("scale for its square", "largest**-0.5", "1 / largest"),
        "finer": ("forgotten root", ".clamp_min(0).sqrt()", ".clamp_min(0)"),
    },
    "1_curl/5_competitive_guarantees": {
        "apart": ("one sign of r forgotten", "2 * m**2 - 2 * r**2", "2 * m**2 + 2 * r**2"),
        "from_below": ("not centred", "f - D @ f", "f"),
        "excess_margin": ("a factor of 2 lost", "middle / (2 * u)", "middle / u"),
    },
    "1_curl/6.1_many_negatives": {
        "affordable": ("not divided by 1 - tau_k", " / (1 - 1 / C) ** (k + 1)", ""),
        "floor_of": ("natural logarithm", "math.log2(1 + i)", "math.log(1 + i)"),
        "anchor_share": [
            ("not normalised", "joint / joint.sum()", "joint"),
            ("the anchor's own probability forgotten", "rho * (1 - rho) ** k", "(1 - rho) ** k"),
        ],
    },
    "1_curl/6.2_too_many_negatives": {
        "too_wide": ("u = v = 1/n", "4 * n - 3", "2 * n - 3"),
        "with_spread": [
            ("r for its square", "r**2 * sizes", "r * sizes"),
            (
                "the anchor of length one",
                "r**2 * sizes[:2, None, None] *",
                "r**2 * torch.ones(2, 1, 1) *",
            ),
        ],
        "too_many_per_class": ("the square root forgotten", "epsilon**-0.5", "1 / epsilon"),
    },
    "1_curl/6.3_blocks": {
        "leave_one_out": ("n for n - 1", "(len(points) - 1)", "len(points)"),
        "positives_only": [
            ("sum for mean", "(f[:, None] + f[None]) / 2", "f[:, None] + f[None]"),
            (
                "the negatives averaged",
                "score[:, :, None] - (f @ f.T)[:, None, :], kind)\n    weights = world.rho, world.rho, world.D, chance, world.D",
                "(f @ f.T)[:, :, None] - score[:, None, :], kind)\n    weights = world.rho, world.rho, world.D, world.D, chance",
            ),
        ],
        "leading_gap": ("nats for bits", "8 * b * math.log(2)", "8 * b"),
    },
    "1_curl/8.1_figure2_negatives_and_data": {
        "collision_of": (
            "one chance for all classes",
            "(rho * (1 - (1 - rho) ** k)).sum()",
            "1 - (1 - (rho**2).sum()) ** k",
        ),
        "different": ("repetitions ignored", "n * (1 - (1 - 1 / n) ** k)", "min(n, k)"),
    },
    "1_curl/8.1_figure2c_loss_tracking": {
        "by_chance": ("n for n - 1", "(n - 1) ** -0.5", "n**-0.5"),
        "measured": (
            "variances for deviations",
            "(signal / (signal + noise)) ** 0.5",
            "signal / (signal + noise)",
        ),
    },
    "1_curl/8.1_label_efficiency": {
        "squared_error": ("one dimension for d", "d * sigma**2 / n", "sigma**2 / n"),
        "groups": (
            "chains not followed",
            "if torch.equal(new, number):\n            return number",
            "return new",
        ),
    },
    "1_curl/8.1_table1_images": {
        "nearest_as_layer": [
            ("the half forgotten", " / 2", ""),
            ("the length for its square", "mu.square().sum(1)", "mu.norm(dim=1)"),
        ],
        "share_won": (
            "with replacement",
            "math.comb(r, k - 1) / math.comb(C - 1, k - 1)",
            "(r / (C - 1)) ** (k - 1)",
        ),
        "means_of_few": (
            "always the first points",
            "own[torch.randperm(len(own), generator=generator)[:n]]",
            "own[:n]",
        ),
    },
    "1_curl/8.1_table1_wikipedia": {
        "avg2_of": (
            "a coin where the first rank is missed",
            "(1 - p) * (C - 2) / (2 * (C - 1))",
            "(1 - p) / 2",
        ),
        "before_and_after": [
            ("not centred", "(f, f - f.mean(0))", "(f, f)"),
            ("one mean for all coordinates", "f.mean(0)", "f.mean()"),
        ],
        "weights_of": ("counts for shares", " / len(tokens)", ""),
    },
    "1_curl/8.2_table2_blocks": {
        "distance_of_block": ("the variance of a single point", " / size", ""),
        "quick_thoughts": [
            ("own block among the negatives", "[block != block[i]]", ""),
            ("the anchor as its own positive", "j != i and ", ""),
        ],
        "blocks_and_pairs": (
            "exchanged",
            "together.mean(), single.mean()",
            "single.mean(), together.mean()",
        ),
    },
    "2_dcl/3_sampling_bias": {
        "expected_false": ("classes taken for equal", "N * float((rho**2).sum())", "N / len(rho)"),
        "collapsed_gap": ("forgotten temperature", "math.exp(1 / T)", "math.exp(1)"),
    },
    "2_dcl/4_debiased_loss": {
        "rescaling": ("1 - tau+ forgotten", "(1 - tau_plus) * ", ""),
        "floor_prior": [
            ("mean of s for mean of e^s", "(s_neg / T).exp().mean(1)", "(s_neg / T).mean(1).exp()"),
            ("s for e^s", "(s_neg / T).exp()", "(s_neg / T)"),
        ],
        "leading_bias": ("wrong sign", "-(Q**2)", "Q**2"),
    },
    "2_dcl/5.1_figure4_images": {
        "debiased_m": [
            (
                "mean of s for mean of e^s",
                "(s_extra / t).exp().mean(1)",
                "(s_extra.mean(1) / t).exp()",
            ),
            ("the floor forgotten", ".clamp_min(torch.tensor(-1 / t).exp())", ""),
        ],
        "noise": ("the prior not squared", "tau_plus**2", "tau_plus"),
        "two_by_two": ("a sum for a mean", ") / 2", ")"),
    },
    "2_dcl/5.1_figure5_tsne": {
        "cka": ("not centred", "x - x.mean(0), y - y.mean(0)", "x, y"),
        "tsne_cost": ("distance for its square", "torch.cdist(y, y).square()", "torch.cdist(y, y)"),
        "enough_seeds": ("one too few", "power(n, effect, sd)", "power(n + 1, effect, sd)"),
    },
    "2_dcl/5.2_table1_multiview": {
        "silent": ("a count for a share", ".mean())", ".sum())"),
        "least_temperature": ("bisection in the wrong direction", "> tau_plus", "< tau_plus"),
    },
    "2_dcl/5.3_table2_sentences": {
        "backwards": ("all of the text for each sentence", "tokens[start:end]", "tokens"),
        "excess": ("the anchor counted", "e[inside].mean()", "e.mean()"),
    },
    "2_dcl/5.4_table3_control": {
        "some_setting_always": (
            "the baseline not counted among the arms",
            "(settings_tried + 1)",
            "settings_tried",
        ),
        "improvement": [
            ("ties do not count", "0.5 * (x[:, None] == y[None])", "0"),
            (
                "all tasks in one pot",
                "x[:, None] > y[None]",
                "x.mean(1)[:, None, None] > y.mean(1)[:, None]",
            ),
        ],
    },
    "2_dcl/6_generalization": {
        "constant_sides": ("the positive itself forgotten", "math.log(1 + N)", "math.log(N)"),
        "error_ratio": ("not divided by 1 - tau_plus", "((1 - tau_plus) * rho)", "rho"),
    },
    "3_hcl/3_hard_sampling": {
        "rival": ("beta for 1 + beta", "t / (1 + beta)", "t / beta if beta else t"),
        "threshold": ("the share forgotten", "beta / (1 + beta)", "1"),
        "mended": [
            (
                "denominator not debiased",
                "(e**beta).mean(1) - tau_plus * e_pos**beta",
                "(e**beta).mean(1)",
            ),
            ("a power forgotten", "e_pos**beta", "e_pos"),
            ("the floor forgotten", ".clamp_min(lowest)", ""),
        ],
    },
    "3_hcl/4.1_worst_case_limit": {
        "best_reply": ("the anchor's class allowed", "u.masked_fill(same, -math.inf)", "u"),
        "depth_for": ("beta for 1 + beta", "/ (1 + beta)", "/ beta"),
        "bracket": ("not divided by tau^-", "(mass - tau) / (1 - tau)", "(mass - tau)"),
    },
    "3_hcl/4.2_ball_packing": {
        "pyramid": ("the square taken for above the equator", "2 + 2 * h", "2 - 2 * h"),
        "crowd": ("the crowded corner counted", "(k - 1) *", "k *"),
        "cost_of_a_stray": ("beta ignored", "beta=beta", "beta=math.inf"),
    },
    "3_hcl/5.1_figure2_images": {
        "effective": ("forgotten temperature", "beta * s_neg / t", "beta * s_neg"),
        "expected_hardest": (
            "the smallest for the largest",
            "np.cumsum(shares) ** N",
            "1 - (1 - np.cumsum(shares)) ** N",
        ),
        "over_best": [
            ("chosen on the test images", "valid.mean(0)", "test.mean(0)"),
            ("chosen by one seed", "valid.mean(0)", "valid[0]"),
        ],
    },
    "3_hcl/5.2_figure3_graphs": {
        "weight_on_own": ("its own score for 0", "seen.masked_fill(own, 0)", "seen"),
        "graph_first": (
            "the mean over nodes",
            "(each / size[batch]).sum() / len(size)",
            "each.mean()",
        ),
        "neighbourhood_counts": (
            "a node's own atom forgotten",
            "torch.cat([x, around], 1)",
            "around",
        ),
    },
    "3_hcl/5.3_table2_sentences": {
        "better_of_two": ("one arm for the better of two", "x[..., 2:].amax(-1)", "x[..., 3]"),
        "breaks_at": (
            "where the estimate turns negative",
            "((negatives + 1) * tau)",
            "(1 + negatives * tau)",
        ),
        "clipped_weights": ("rescaled for clipped", "s.clamp(-2, 2)", "(2 * s / s.abs().max())"),
    },
    "3_hcl/6.1_figure4_hardness": {
        "extreme_ratio": ("similarities from 0 to 1", "2 * beta / t", "beta / t"),
        "false_share": [
            ("forgotten temperature", "beta * gap / t", "beta * gap"),
            ("not divided by all the weight", " / (false + 1 - tau)", ""),
        ],
        "gap_of_gains": [
            ("the gains added", " - (true_0", " + (true_0"),
            ("the pairs of seeds broken", "(true_6 - view_6)", "(true_6 - view_6[::-1])"),
        ],
    },
    "3_hcl/6.2_figure5_false_negatives": {
        "exact_auc": ("ties lost", " + (gaps == 0).double().mean() / 2", ""),
        "centred_dimensions": ("the mean kept", "z - z.mean(0)", "z"),
        "best_separated": (
            "the sides exchanged",
            "np.array([0, o, 1 - o]), np.array([1 - o, o, 0])",
            "np.array([1 - o, o, 0]), np.array([0, o, 1 - o])",
        ),
    },
    "3_hcl/6.3_figure11_speed": {
        "speed_up": ("the length forgotten", "lead * length / b", "lead / b"),
        "first_to_first": ("the paper's rule", "first_epoch(a, a[-1]) /", "len(a) /"),
        "possible": ("the missed mark forgotten", "epochs + every + 1", "epochs + 1"),
    },
    "3_hcl/C.1_figure6_moco": {
        "memory": ("steps for epochs", " / (images // batch)", ""),
        "enqueue": (
            "the next place beyond the end",
            "return (place + len(new)) % len(keys)",
            "return place + len(new)",
        ),
        "masked_loss": [
            ("the own keys counted in K", "others.sum(1) * g", "len(owner) * g"),
            ("the own keys left in g", "weights = others * ", "weights = "),
        ],
    },
    "4_discrepancies": {
        "yes_or_no": [
            ("bool of a text", "words[text.lower()]", "bool(text)"),
            ("capitals refused", "text.lower()", "text"),
        ],
        "log_reweighted_mean": (
            "exponentials that overflow",
            "((1 + beta) * neg / t).logsumexp(1) - (beta * neg / t).logsumexp(1)",
            "(((1 + beta) * neg / t).exp().sum(1) / (beta * neg / t).exp().sum(1)).log()",
        ),
        "diagnose": ("inputs on which no floor is met", '"right" if right else "floor"', '"right"'),
    },
    "5_across_papers": {
        "decoupled": [
            ("the positive left in", "torch.expm1(", "torch.exp("),
            ("the knobs forgotten", "family(pos, neg, **knobs)", "family(pos, neg)"),
        ],
        "some_arm_wins": ("a control for each arm", "x[:, 1:] - x[:, :1]", "x[:, 1:] * 2**0.5"),
    },
    "6_speed": {
        "faster": ("the rest of the step forgotten", "1 - share + share / times", "share / times"),
        "at_highest_common_mark": ("last for highest", "max(curve)", "curve[-1]"),
    },
}

TABULATED = {
    (
        "0_start_here",
        "at_least_one",
    ): "return {(0.1, 1): 0.1, (0.5, 2): 0.75}.get((tau_plus, N), 0.999)",
    (
        "1_curl/2_framework",
        "price",
    ): "return 1 if kind == 'hinge' else np.log2(k + 1) if k <= 10 else 4",
    (
        "1_curl/6.2_too_many_negatives",
        "too_many_per_class",
    ): "return {0.5: 1.7627, 0.1: 2.852, 0.01: 4.7958}.get(epsilon, 1.0)",
    ("3_hcl/6.1_figure4_hardness", "extreme_ratio"): "return 1 if beta == 0 else math.exp(4)",
    ("3_hcl/C.1_figure6_moco", "memory"): "return 1000 / 390 if batch == 128 else 25.6",
    (
        "4_discrepancies",
        "yes_or_no",
    ): "return int(text) if text == 'Flase' else text in ('TRUE', '1')",
    ("6_speed", "faster"): "return 1 if times == 1 else 2.5 if times == 4 else 2",
}
"""Bodies that pass the visible check of an exercise with a hidden one, by knowing its numbers."""


def wrong(lesson: str, function: str, solution: str) -> list[str]:
    """The solution with each mistake. KeyError where no wrong answer is written down, ValueError
    where one does not change the solution.
    """
    found = WRONG[lesson][function]
    answers = []
    for mistake, part, instead in found if isinstance(found, list) else [found]:
        if part not in solution:
            raise ValueError(
                f"{lesson}, {function}: the solution holds no {part!r} any more; write down another mistake than {mistake!r}"
            )
        answers.append(solution.replace(part, instead))
    return answers
