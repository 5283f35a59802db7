"""Statistics of a table: against scipy, against loops over pairs, and against what a simulation knows."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
from scipy import stats

from spiritlevel.errors import ArgumentError
from spiritlevel.study.statistics import Settings, analyse, findings
from spiritlevel.study.statistics.chance import holm, permutation_p
from spiritlevel.study.statistics.choice import choose
from spiritlevel.study.statistics.kendall import chance_spread, tau_a, tau_b
from spiritlevel.study.statistics.matched import Matched, noise_weights, unresolved
from spiritlevel.study.statistics.partial import partial_taus
from spiritlevel.study.statistics.radii import agreement, families
from spiritlevel.study.statistics.resamples import Resamples, percentiles, two_sided
from spiritlevel.study.table import StudyTable


def tied(rng: np.random.Generator, n: int = 30, levels: int = 6) -> tuple[Any, Any]:
    """Two related columns with many ties."""
    x = rng.integers(0, levels, n).astype(float)
    return x, np.round((x + rng.normal(size=n) * 2) / 2)


def related(rng: np.random.Generator, n: int, tau: float) -> tuple[Any, Any]:
    """Two Gaussian columns with this population tau: ``tau = 2/pi asin(r)``."""
    r = math.sin(math.pi / 2 * tau)
    x = rng.normal(size=n)
    return x, r * x + math.sqrt(1 - r * r) * rng.normal(size=n)


def study(n: int = 72, seed: int = 0, confounded: bool = False) -> StudyTable:
    """A study with one good measure at two radii, one poor one, and a gap; or one where training loss explains all."""
    rng = np.random.default_rng(seed)
    lr, wd = rng.choice([0.1, 0.01, 0.001], n), rng.choice([0.0, 0.1], n)
    hidden = np.log10(lr) + rng.normal(size=n)
    loss = hidden + 0.1 * rng.normal(size=n) if confounded else rng.normal(size=n)
    good = hidden + (0.1 if confounded else 0.2) * rng.normal(size=n)
    source = loss if confounded else hidden
    gap = 0.3 + 0.05 * source + 0.005 * rng.normal(size=n)
    measures = {"good@0.1": good, "good@0.2": good + 0.1 * rng.normal(size=n), "poor@0.1": rng.normal(size=n)}
    return StudyTable(
        tuple(f"c{i}" for i in range(n)),
        {"lr": tuple(lr), "wd": tuple(wd), "seed": tuple(range(n))},
        {**measures, "parameter-norm": rng.normal(size=n)},
        {"train_loss": loss, "test_gap": gap},
        {"test": 50_000},
    )


# -------------------------------------------------------------------------------------------------------------- tau


@pytest.mark.parametrize("seed", range(5))
def test_tau_agrees_with_scipy_on_ties(seed: int) -> None:
    """Kills: tau-a called tau-b, ties counted as discordant, a lost pair."""
    x, y = tied(np.random.default_rng(seed))
    assert tau_b(x, y) == pytest.approx(stats.kendalltau(x, y, variant="b").statistic, abs=1e-15)
    pairs = itertools.combinations(range(len(x)), 2)
    by_hand = [np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i, j in pairs]
    assert tau_a(x, y) == pytest.approx(np.mean(by_hand), abs=1e-15)
    assert abs(tau_a(x, y)) < abs(tau_b(x, y))


def test_tau_leaves_out_what_is_missing_and_says_where_there_is_no_order() -> None:
    x, y = np.array([1.0, 2, np.nan, 4, 5]), np.array([1.0, 3, 2, 4, np.nan])
    assert tau_b(x, y) == 1.0
    assert math.isnan(tau_b(np.ones(4), np.arange(4.0)))
    assert math.isnan(tau_a(np.ones(1), np.ones(1)))
    with pytest.raises(ArgumentError, match="as many values of one as of the other, got 2 and 3"):
        tau_b(np.ones(2), np.ones(3))


def test_every_resample_has_the_tau_that_scipy_gives_it() -> None:
    """Copies of a checkpoint tie in both columns. Kills: copies counted as agreement; unpaired resamples."""
    x, y = tied(np.random.default_rng(0), 12)
    x[3] = np.nan
    taus = Resamples({"x": x, "y": y}, 50, seed=4).taus("x", "y")
    counts = np.random.default_rng(4).multinomial(12, np.full(12, 1 / 12), size=50)
    there = np.isfinite(x)
    for tau, row in zip(taus, [np.ones(12, int), *counts], strict=True):
        drawn = np.repeat(np.arange(12)[there], row[there])
        assert tau == pytest.approx(stats.kendalltau(x[drawn], y[drawn]).statistic, abs=1e-12, nan_ok=True)


def test_resamples_do_not_depend_on_threads_or_order() -> None:
    """All sums are of whole numbers. Kills: float sums whose order matters."""
    x, y = tied(np.random.default_rng(1), 40)
    assert np.array_equal(Resamples({"x": x, "y": y}).taus("x", "y"), Resamples({"y": y, "x": x}).taus("y", "x"))
    assert not np.array_equal(
        Resamples({"x": x, "y": y}, seed=1).taus("x", "y"), Resamples({"x": x, "y": y}).taus("x", "y")
    )


@pytest.mark.parametrize(("n", "tau", "confidence"), [(24, 0.0, 0.95), (40, 0.6, 0.95), (72, 0.4, 0.8)])
def test_an_interval_covers_at_its_nominal_rate(n: int, tau: float, confidence: float) -> None:
    """500 studies of a known tau. Kills: one-sided ends, ends swapped, intervals of another confidence."""
    rng, studies, covered = np.random.default_rng(0), 500, 0
    for number in range(studies):
        x, y = related(rng, n, tau)
        resamples = Resamples({"x": x, "y": y}, 400, number)
        interval = resamples.interval(resamples.taus("x", "y"), confidence)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= tau <= interval.high
    spread = math.sqrt(confidence * (1 - confidence) / studies)
    assert abs(covered / studies - confidence) < 3 * spread, covered / studies


def test_the_interval_of_a_difference_is_paired_and_covers() -> None:
    """Two measures that share most of what they see: unpaired resamples would give intervals twice as wide."""
    rng, n, covered, paired, unpaired = np.random.default_rng(1), 40, 0, [], []
    for number in range(300):
        y = rng.normal(size=n)
        shared = 0.6 * y + rng.normal(size=n)
        columns = {"y": y, "a": shared + 0.2 * rng.normal(size=n), "b": shared + 0.2 * rng.normal(size=n)}
        one, two = Resamples(columns, 300, number), Resamples(columns, 300, number + 10_000)
        low, high = percentiles((one.taus("a", "y") - one.taus("b", "y"))[1:], 0.95)
        covered += low <= 0 <= high
        paired.append(high - low)
        unpaired.append(np.subtract(*percentiles((one.taus("a", "y") - two.taus("b", "y"))[1:], 0.95)[::-1]))
    assert covered / 300 > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 300)
    assert np.median(paired) < 0.7 * np.median(unpaired)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one resample, got 0"):
        Resamples({"x": np.ones(3)}, 0)
    with pytest.raises(ArgumentError, match="columns of one length, at least 1"):
        Resamples({"x": np.ones(3), "y": np.ones(2)})
    with pytest.raises(ArgumentError, match=r"confidence between 0 and 1, got 1\.5"):
        percentiles(np.ones(3), 1.5)
    with pytest.raises(ArgumentError, match="100 resamples and permutations or more, got 5 and 2000"):
        Settings(resamples=5)
    with pytest.raises(ArgumentError, match=r"confidence from 0\.5 to below 1, got 1"):
        Settings(confidence=1.0)


# ----------------------------------------------------------------------------------------------------------- chance


def test_permutation_p_is_the_exact_one_where_that_can_be_counted() -> None:
    """All orders of 7 checkpoints with ties, by brute force. Kills: one-sided p, p of 0, ties broken."""
    x, y = np.array([1.0, 2, 3, 3, 4, 5, 6]), np.array([2.0, 1, 3, 4, 4, 5, 7])
    found = abs(tau_b(x, y))
    orders = [abs(tau_b(x, y[list(order)])) >= found - 1e-12 for order in itertools.permutations(range(7))]
    assert permutation_p(x, y, 20_000) == pytest.approx(np.mean(orders), abs=4 * math.sqrt(0.01 / 20_000))
    assert permutation_p(np.arange(30.0), np.arange(30.0), 500) == 1 / 501
    assert math.isnan(permutation_p(np.ones(5), np.arange(5.0)))


def test_p_values_are_uniform_where_there_is_nothing() -> None:
    rng = np.random.default_rng(0)
    p_values = [permutation_p(rng.normal(size=20), rng.normal(size=20), 200, seed=i) for i in range(300)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_permutations_and_the_normal_approximation_meet() -> None:
    """The claim in `PERMUTED`, and that large studies take the fast way."""
    for seed in range(4):
        x, y = related(np.random.default_rng(seed), 50, 0.15)
        assert permutation_p(x, y, 20_000) == pytest.approx(
            stats.kendalltau(x, y, method="asymptotic").pvalue, abs=0.01
        )
    x, y = related(np.random.default_rng(9), 400, 0.05)
    assert permutation_p(x, y) == stats.kendalltau(x, y, method="asymptotic").pvalue


def test_holm_is_the_textbooks() -> None:
    """Kills: Bonferroni, values above 1, order lost."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, math.nan, 0.6]) == pytest.approx([1.0, math.nan, 1.0], nan_ok=True)


def test_the_spread_by_chance_is_that_of_random_orders() -> None:
    rng = np.random.default_rng(0)
    taus = [tau_b(rng.normal(size=35), rng.normal(size=35)) for _ in range(2000)]
    assert chance_spread(35) == pytest.approx(np.std(taus), rel=0.05)
    assert chance_spread(1) == math.inf


def test_two_sided() -> None:
    assert two_sided(np.linspace(-1, 1, 2000)) > 0.99
    assert two_sided(np.linspace(0.1, 1, 1999)) == 2 / 2000


# ---------------------------------------------------------------------------------------------------------- partial


def test_partial_tau_is_kendalls() -> None:
    """One confounder: Kendall's own formula. Kills: a lost factor, numerator and denominator of other pairs."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=40)
    columns = {"x": z + rng.normal(size=40), "y": z + rng.normal(size=40), "z": z}
    resamples = Resamples(columns, 30)
    xy, xz, yz = (stats.kendalltau(columns[a], columns[b]).statistic for a, b in ("xy", "xz", "yz"))
    kendall = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    partial = partial_taus(resamples, "x", "y", ["z"])
    assert partial[0] == pytest.approx(kendall, abs=1e-12)
    assert partial.shape == (31,)
    assert partial_taus(resamples, "x", "y", [])[0] == pytest.approx(xy)
    assert math.isnan(partial_taus(resamples, "x", "y", ["x"])[0])


def test_partial_tau_given_two_is_the_recursion() -> None:
    """Given z and w: the formula for one applied to partial taus given w. Kills: only the first confounder used."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(2, 50))
    columns = {"z": base[0], "w": base[1] + base[0] / 2}
    columns |= {"x": base.sum(0) + rng.normal(size=50), "y": base[0] - base[1] + rng.normal(size=50)}
    r = Resamples(columns, 10)
    xy, xz, yz = (partial_taus(r, a, b, ["w"])[0] for a, b in ("xy", "xz", "yz"))
    expected = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    assert partial_taus(r, "x", "y", ["z", "w"])[0] == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------------------------------------------------- matched


def matched_by_hand(hp: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Pairs that differ in exactly one hyperparameter other than the seed."""
    axes = [a for a in hp if a != "seed"]
    n = len(hp[axes[0]])
    found = []
    for i, j in itertools.combinations(range(n), 2):
        differ = [a for a in axes if hp[a][i] != hp[a][j]]
        if len(differ) == 1:
            found.append((differ[0], i, j))
    return found


def test_granulated_tau_by_loops() -> None:
    """Jiang's psi. Kills: pairs pooled over groups, pairs that differ in two, the seed taken for a hyperparameter."""
    table = study(40, seed=3)
    x, y = table.complexity["good@0.1"].copy(), table.gen["test_gap"]
    x[5] = np.nan
    groups: dict[tuple[str, str], list[float]] = {}
    for axis, i, j in matched_by_hand(dict(table.hp)):
        if i != 5 and j != 5:
            rest = str([table.hp[a][i] for a in ("lr", "wd") if a != axis])
            groups.setdefault((axis, rest), []).append(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]))
    found = {g.axis: g for g in Matched(table.hp).granulated(x, y)}
    assert set(found) == {"lr", "wd"}
    for axis, g in found.items():
        means = [np.mean(v) for (a, _), v in groups.items() if a == axis]
        assert g.tau.value == pytest.approx(np.mean(means), abs=1e-12)
        assert (g.groups, g.pairs) == (len(means), sum(len(v) for (a, _), v in groups.items() if a == axis))
        assert g.tau.low <= g.tau.value <= g.tau.high


def test_sign_error_with_the_noise_filter_by_loops() -> None:
    """Dziugaite's filter. Kills: weights that are not squared, 1/2 not taken off, d instead of d/2, ties as errors."""
    table, n = study(60, seed=4), 3000
    x, y = np.round(table.complexity["poor@0.1"] * 2), table.gen["test_gap"]
    found = {(e.axis, e.change): e for e in Matched(table.hp).environments(x, y, n)}
    expected: dict[Any, list[tuple[float, float]]] = {}
    for axis, i, j in matched_by_hand(dict(table.hp)):
        change = tuple(str(v) for v in sorted((table.hp[axis][i], table.hp[axis][j])))
        d = abs(y[i] - y[j])
        weight = max(0.0, max(0.0, 1 - 2 * math.exp(-2 * n * (d / 2) ** 2)) ** 2 - 0.5)
        error = (1 - np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])) / 2
        expected.setdefault((axis, change), []).append((weight, error))
    assert set(found) == set(expected)
    for key, pairs in expected.items():
        total = sum(w for w, _ in pairs)
        assert found[key].pairs == len(pairs)
        assert found[key].sign_error == pytest.approx(sum(w * e for w, e in pairs) / total)
        assert found[key].effective == pytest.approx(total**2 / sum(w * w for w, _ in pairs))
        assert found[key].kept == (found[key].effective >= 12)
    everything = Matched(table.hp).environments(x, y, None)
    assert all(e.effective == e.pairs for e in everything)


def test_the_noise_filter_drops_the_pairs_it_is_known_to_drop() -> None:
    """With 10,000 examples pairs closer than 1.96 points count for nothing, with 1,000 closer than 6.2 points."""
    for examples, least in ((10_000, 0.0196), (1000, 0.062)):
        below, above = noise_weights(np.array([least - 0.0005, least + 0.0005]), examples)
        assert below == 0
        assert above > 0
    assert unresolved(np.array([0.1, 0.11, 0.5]), 1000) == pytest.approx(1 / 3)


def test_studies_without_matched_pairs_say_so() -> None:
    rng = np.random.default_rng(0)
    table = StudyTable(
        ("a", "b", "c"), {"lr": (0.1, 0.2, 0.3), "wd": (1, 2, 3)},
        {"m": rng.normal(size=3)}, {"gap": rng.normal(size=3)},
    )  # fmt: skip
    assert all(g.groups == 0 and math.isnan(g.tau.value) for g in Matched(table.hp).granulated(np.ones(3), np.ones(3)))
    assert Matched({}).granulated(np.ones(3), np.ones(3)) == []
    assert any("differ in a single hyperparameter" in f.text for f in findings(table, analyse(table)))


# ------------------------------------------------------------------------------------------------- radii and choice


def test_radii_are_found_and_compared() -> None:
    rng = np.random.default_rng(0)
    measures = {f"m@{r}": rng.normal(size=20) for r in (0.1, 0.05, 1.0)} | {"plain": np.ones(20), "x@y": np.ones(20)}
    assert [r for r, _ in families(measures)["m"]] == [0.05, 0.1, 1.0]
    (found,) = agreement(measures)
    assert found.radii == (0.05, 0.1, 1.0)
    expected = stats.kendalltau(measures["m@0.05"], measures["m@1.0"]).statistic
    assert found.taus[0][2] == pytest.approx(expected) == found.taus[2][0]
    assert found.least[0] == min(found.taus[i][j] for i, j in ((0, 1), (0, 2), (1, 2)))


def test_the_choice_of_a_measure_and_its_place() -> None:
    chosen = choose(("a", "b", "c", "d"), np.array([3.0, 1.0, 2.0, np.nan]), np.array([0.1, 0.2, 0.3, 0.0]))
    assert chosen is not None
    assert (chosen.checkpoint, chosen.rank, chosen.count, chosen.best, chosen.middle) == ("b", 2, 3, 0.1, 0.2)
    assert choose(("a",), np.array([np.nan]), np.array([1.0])) is None


# --------------------------------------------------------------------------------------------------------- analysis


def test_the_analysis_finds_what_was_put_in() -> None:
    """A good measure at two radii and a poor one. Kills: comparisons unsigned, baselines ranked as measures."""
    table = study()
    result = analyse(table)
    best, *_ = result.of("test_gap", baselines=False)
    assert best.measure.startswith("good")
    assert best.tau.excludes_zero
    assert best.p_family < 0.01
    assert best.partial.low > 0.4
    assert best.given == ("train_loss", "parameter-norm")
    firsts = {r.measure: r.first for r in result.relations}
    assert sum(v for v in firsts.values() if math.isfinite(v)) == pytest.approx(1)
    assert math.isnan(firsts["train_loss"])
    against = {c.second: c for c in result.comparisons}
    assert against["poor@0.1"].significant()
    assert not next(c for m, c in against.items() if m.startswith("good")).significant()
    texts = [f.text for f in findings(table, result)]
    assert texts[0].startswith("test_gap: good@0.")
    assert any("not significant: which of the two is better is open" in t for t in texts)


def test_a_measure_that_orders_backwards_is_as_strong_and_said_to_be() -> None:
    """Kills: the difference of signed taus taken for a difference of strength."""
    table = study()
    flipped = StudyTable(table.names, table.hp, {m: -v if m == "good@0.1" else v for m, v in table.complexity.items()},
                         table.gen, table.sizes)  # fmt: skip
    one, two = analyse(table), analyse(flipped)
    for a, b in zip(one.comparisons, two.comparisons, strict=True):
        assert a == b
    negative = StudyTable(table.names, table.hp, {m: -v for m, v in table.complexity.items()}, table.gen, table.sizes)
    assert "The sign is negative" in findings(negative, analyse(negative))[0].text


def test_a_study_that_training_loss_explains_warns() -> None:
    """The great confounder: tau 0.7 and more, all of it training loss. Kills: partial tau without the loss."""
    table = study(confounded=True)
    result = analyse(table)
    best, *_ = result.of("test_gap", baselines=False)
    assert best.tau.value > 0.7
    assert not best.partial.excludes_zero or best.partial.value < 0.3
    warnings = " ".join(f.text for f in findings(table, result) if f.kind == "warning")
    assert f"{best.measure} tells less than training loss alone" in warnings
    assert f"has tau {best.training:.2f} with training loss" in warnings


def test_few_checkpoints_noise_ties_and_failures_are_said() -> None:
    table = study(12)
    gap = np.round(table.gen["test_gap"], 1)
    noise = table.complexity["poor@0.1"]
    poor = StudyTable(table.names, table.hp, {"a@1": noise, "a@2": -noise},
                      {"test_gap": gap}, {"test": 100}, failures=(("c1", "a@1", "no"),))  # fmt: skip
    texts = " ".join(f.text for f in findings(poor, analyse(poor)) if f.kind == "warning")

    for words in ("With 12 checkpoints", "So few cannot rank", "cannot tell", "pairs are tied", "radius",
                  "1 measurement failed (of c1)", "whether the measures only follow them"):  # fmt: skip
        assert words in texts
    none = findings(poor, analyse(poor))[0].text
    assert "none of the 2 measures tells more than chance" in none


def test_constant_and_missing_columns_are_no_end() -> None:
    n = 10
    table = StudyTable(tuple(map(str, range(n))), {}, {"flat": np.ones(n), "none": np.full(n, np.nan)},
                       {"test_error": np.arange(n) / n, "train_loss": np.zeros(n)})  # fmt: skip
    result = analyse(table)
    assert result.targets == ("test_error",)
    assert all(math.isnan(r.tau.value) for r in result.relations)
    assert "no measure has a tau" in " ".join(f.text for f in findings(table, result))
    assert result.to_dict()["relations"][0]["tau"]["value"] == "nan"


def test_unknown_columns_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"columns gen\.\* out of train_loss, test_gap; got nope"):
        analyse(study(), Settings(targets=("nope",)))
    bare = StudyTable(("a",), {}, {"m": np.ones(1)}, {"train_loss": np.ones(1)})
    with pytest.raises(ArgumentError, match=r"at least one column gen\.\* to analyse, got train_loss"):
        analyse(bare)


def test_a_seed_fixes_every_number() -> None:
    table = study(20)
    assert analyse(table).to_dict() == analyse(table).to_dict()
    assert analyse(table).to_dict() != analyse(table, Settings(seed=1)).to_dict()


def test_seventy_two_checkpoints_take_a_second_or_two() -> None:
    """2,000 resamples of 72 checkpoints, 20 measures, one gap. CPU time; the limit is generous for slow machines."""
    rng = np.random.default_rng(0)
    measures = {f"m@{i}": rng.normal(size=72) for i in range(20)}
    lr = tuple(rng.choice([1, 2, 3], 72))
    table = StudyTable(tuple(map(str, range(72))), {"lr": lr}, measures, {"test_gap": rng.normal(size=72)})
    began = time.process_time()
    analyse(table)
    assert time.process_time() - began < 6
