"""The RAGSys evaluation on made-up questions with a tiny model: its numbers, its report, its command."""

import csv
import functools
import json
import random
import re

import lm_models
import numpy as np
import pytest
from backends import needs
from evaluations import check_files, invoke, model, settings_of, stopping, use_tiny_encoder, values_of
from tiny_encoder import WORDS, TinyEncoder

import ragsys_kernels as rk
from benchmarks import papers
from benchmarks.papers.ragsys import per_query, run
from benchmarks.papers.ragsys.report import Comparison, Interval, Result, _directions, _rules, lead
from benchmarks.papers.ragsys.results import intervals, intervals_of
from benchmarks.papers.ragsys.retrievers import PRIMER, Setting, by_rule, pick, read_primer
from benchmarks.papers.report import Report
from ragsys_kernels.icl.datasets import truthfulqa

pytestmark = needs("bm25s", "matplotlib")

LABELS = ["Fix", "Bias", "Rel", "Rel+Bias", "Rel+Div", "Rel+Div+Bias", "random", "none"]
METRICS = ["MC1", "MC2", "MC3", "log ratio", "DPO", "DPO, no reference"]
SWEPT = ["λ_d = 0.5", "λ_d = 1", "λ_d = 0.5, λ_b = 0.95", "λ_d = 1, λ_b = 0.95"]
K, POOL = 2, 8


def write(folder, number=9, extra=()):
    """Questions of random words in the layout of TruthfulQA's file."""
    rng = random.Random(0)
    words = lambda n: " ".join(rng.choices(WORDS, k=n))  # noqa: E731
    path = folder / "truthfulqa" / "TruthfulQA_v1.csv"
    path.parent.mkdir(parents=True)
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("Type", "Question", "Best Answer", "Correct Answers", "Incorrect Answers"))
        for i in range(number):
            correct = [words(2) for _ in range(1 + i % 3)]
            best = correct[i % len(correct)]
            writer.writerow(("", f"{words(4)} {i}?", best, "; ".join(correct), "; ".join(words(2) for _ in range(2))))
        writer.writerows(extra)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("ragsys") / "data")


def evaluated(data, home, **options):
    given = {"out": home / "out", "cache": home / "cache", "data": data, "encoder": TinyEncoder(), "model": model(),
             "samples": 200, "k": K, "pool": POOL, "lambdas": (0.5, 1), "embed": "pair"}  # fmt: skip
    return papers.ragsys(**{**given, **options})


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    home = tmp_path_factory.mktemp("done")
    return home, evaluated(data, home)


@functools.cache
def plain(prompt, continuation):
    """Log-probability of the continuation's tokens from all logits of the text."""
    tokenizer = lm_models.tokenizer()
    encoded = tokenizer(prompt + continuation, return_offsets_mapping=True)
    answer = np.array([end > len(prompt) for _, end in encoded["offset_mapping"]])
    values = lm_models.logprobs(encoded["input_ids"])[answer[1:]]
    return values.sum(), values.mean()


def unit(rows):
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def brute_picks(questions, label, bias, own, vectors, queries):
    """Algorithm 1 over the pool of the best by relevance with bias, or in the sweep over everything, in float64."""
    lambda_b = {"Bias": 0.0}.get(label, 0.95 if label.endswith(("Bias", "0.95")) else 1.0)
    lambda_d = 0.5 if label.startswith("λ_d = 0.5") else 0.75 if "Div" in label else 1.0
    found = []
    for q in range(len(questions)):
        values = lambda_b * vectors @ queries[q] + (1 - lambda_b) * bias
        pool = [i for i in np.argsort(-values, kind="stable") if own[i] != q][: None if "λ_d" in label else POOL]
        picks = [pool[0]]
        while len(picks) < K:
            rest = [i for i in pool if i not in picks]
            picks.append(
                max(rest, key=lambda i: lambda_d * values[i] - (1 - lambda_d) * (vectors[picks] @ vectors[i]).max())
            )
        found.append(picks)
    return found


def brute_metrics(correct, wrong, best, none):
    """By the formulas, of log-probabilities; `none` are those without demonstrations."""
    p, n = np.exp(correct), np.exp(wrong)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    margins = np.subtract.outer(correct, wrong)
    against = np.subtract.outer(correct - none[: len(correct)], wrong - none[len(correct) :])
    return {
        "MC1": float(np.exp(best) > n.max()),
        "MC2": float((p > n.max()).mean()),
        "MC3": p.sum() / (p.sum() + n.sum()),
        "log ratio": np.log(p.sum() / n.sum()),
        "DPO": np.log(sigmoid(against)),
        "DPO, no reference": np.log(sigmoid(margins)),
    }


def test_values_are_the_definitions(done, data):
    """Every picked demonstration, probability and metric anew, by the formulas."""
    _, summary = done
    rows = list(csv.DictReader((data / "truthfulqa" / "TruthfulQA_v1.csv").read_text("utf-8-sig").splitlines()))
    split = lambda text: [part.strip() for part in text.split(";")]  # noqa: E731
    questions = [row["Question"] for row in rows]
    pairs = [(q, answer) for q, row in enumerate(rows) for answer in split(row["Correct Answers"])]
    own = [q for q, _ in pairs]
    vectors = unit(TinyEncoder().encode([f"{questions[q]} {answer}" for q, answer in pairs]))
    queries = unit(TinyEncoder().encode(questions))
    bias = np.array([plain(f"Q: {questions[q]}\nA: ", answer)[1] for q, answer in pairs])
    by_label = {result.setting.label: result for result in summary.results}
    assert list(by_label) == [*LABELS, *SWEPT]
    none = {}
    for label in ("none", *(label for label in by_label if label != "none")):
        result = by_label[label]
        assert result.questions.tolist() == list(range(len(questions)))
        if label in ("Fix", "none"):
            assert result.picks is None
            chosen = [list(PRIMER) if label == "Fix" else []] * len(questions)
        else:
            picks = result.picks.tolist()
            if label == "random":
                assert all(own[i] != q for q, row in enumerate(picks) for i in row)
                assert all(len(set(row)) == K for row in picks)
            else:
                assert picks == brute_picks(questions, label, bias, own, vectors, queries), label
            chosen = [[(questions[own[i]], pairs[i][1]) for i in row] for row in picks]
            likeness = [vectors[row[0]] @ vectors[row[1]] for row in picks]
            np.testing.assert_allclose(result.likeness, likeness, atol=1e-6)
        found = []
        for q, row in enumerate(rows):
            prompt = "\n\n".join([*(f"Q: {a}\nA: {b}" for a, b in chosen[q]), f"Q: {questions[q]}\nA:"])
            kinds = [split(row[name]) for name in ("Correct Answers", "Incorrect Answers")]
            logp = [np.array([plain(prompt, f" {answer}")[0] for answer in some]) for some in kinds]
            none.setdefault(q, np.concatenate(logp))
            found.append(brute_metrics(*logp, logp[0][kinds[0].index(row["Best Answer"])], none[q]))
        for name in METRICS[:4]:
            np.testing.assert_allclose(result.values[name], [one[name] for one in found], atol=2e-4, err_msg=label)
        for name in METRICS[4:]:
            every = np.concatenate([one[name].ravel() for one in found])
            assert result.values[name].mean() == pytest.approx(every.mean(), abs=1e-4)
    assert {float(v) for v in by_label["Rel"].values["MC1"]} == {0.0, 1.0}  # both happen


def test_report(done, data):
    home, summary = done
    out = home / "out"
    found = truthfulqa("clean", data)
    check_files(out, ["metrics.png", "sweep.png"], (*found.questions, *found.answers))
    text = (out / "report.md").read_text()
    by_label = {result.setting.label: result for result in summary.results}
    for label in LABELS:
        mean = by_label[label].values["MC1"].mean()
        assert re.search(rf"\| {re.escape(label)} \| {mean:.3f} \[\d\.\d{{3}}, \d\.\d{{3}}\] \|", text), label
    difference = by_label["Rel+Div"].values["MC3"].mean() - by_label["Rel"].values["MC3"].mean()
    assert re.search(rf"\| Rel\+Div over Rel \| .* \| {re.escape(f'{difference:+.3f}')} \[", text)
    assert re.search(r"\| 0\.5 \| no bias \| -?0\.\d{3} \| ", text)
    assert re.search(r"\| 1 \| 0\.95 \| -?0\.\d{3} \| ", text)
    assert re.search(r"\| Rel\+Div \|.* \| 0\.5177 \| 0\.3930 \| 0\.6616 \| -12\.37 \| 0\.5520 ", text)
    # Llama gains by the bias in DPO, Mistral loses; both gain by diversity in MC3.
    assert re.search(r"\| Rel\+Bias over Rel \| DPO \| -0\.92 \| \+0\.06 \| .* \| models differ \|", text)
    assert re.search(r"\| Rel\+Div over Rel \| MC3 \| \+0\.0691 \| \+0\.0491 \| .* \| (yes|no|undecided) \|", text)
    rows = values_of(out)
    assert len(rows) == 9 * (len(LABELS) + len(SWEPT))
    first = next(row for row in rows if row["demonstrations"] == "Rel" and row["question"] == "4")
    assert float(first["MC3"]) == pytest.approx(by_label["Rel"].values["MC3"][4], rel=1e-6)
    assert first["picks"] == " ".join(map(str, by_label["Rel"].picks[4]))
    settings = settings_of(out)
    assert settings["questions"] == "9 of 9, drawn with seed 0"
    assert settings["encoder"] == "tiny, fingerprint tiny-24"
    assert f"Rel: MC1 {by_label['Rel'].values['MC1'].mean():.3f}, MC2 " in str(summary)


def test_a_stopped_run_goes_on(done, data, tmp_path):
    _, whole = done
    with pytest.raises(KeyboardInterrupt):
        evaluated(data, tmp_path, progress=stopping(lambda done, total: done > 18))  # behind the bias
    assert not (tmp_path / "out").exists()
    seen = []
    again = evaluated(data, tmp_path, progress=lambda *step: seen.append(step))
    assert 0 < again.cached < whole.scored + whole.cached == again.scored + again.cached
    assert seen[0] == (0, 18)  # the demonstrations of the bias
    assert seen.count((0, whole.scored)) == 1
    assert seen[-1] == (whole.scored, whole.scored)
    for one, two in zip(whole.results, again.results, strict=True):
        assert one.setting == two.setting
        for name in METRICS:
            np.testing.assert_array_equal(one.values[name], two.values[name])
    assert evaluated(data, tmp_path).scored == 0


def test_more_questions_include_the_fewer(done, data, tmp_path):
    home, whole = done
    some = evaluated(data, home, out=tmp_path / "few", questions=4)
    assert some.scored == 0  # the demonstrations are those of all questions
    for one, two in zip(whole.results, some.results, strict=True):
        at = two.questions
        assert at.tolist() == sorted(at.tolist())
        np.testing.assert_array_equal(one.values["MC1"][at], two.values["MC1"])
    fewer = evaluated(data, home, out=tmp_path / "fewer", questions=3).results[0].questions
    assert set(fewer) < set(at)


def test_questions_alone_can_be_embedded(done, data, tmp_path):
    """Then all answers to a question are as near, and the first come first."""
    home, _ = done
    summary = evaluated(data, home, out=tmp_path / "o", embed="question", lambdas=())
    result = next(result for result in summary.results if result.setting.label == "Rel")
    found = truthfulqa("clean", data)
    own = found.pairs[0]
    questions = unit(TinyEncoder().encode(found.questions))
    for q, row in enumerate(result.picks):
        near = sorted(
            (i for i in range(len(own)) if own[i] != q), key=lambda i: (-round(questions[own[i]] @ questions[q], 6), i)
        )
        assert row.tolist() == near[:K]


def test_the_papers_counts_and_another_primer(data, tmp_path):
    """An empty answer is scored, and is no demonstration."""
    folder = write(tmp_path / "data", 6, [("", "sun moon?", "sun", "sun; ; sun", "moon;")])
    primer = tmp_path / "primer.json"
    primer.write_text(json.dumps({"pairs": [{"question": "Who?", "answer": "Me."}]}))
    options = {"lambdas": (), "pool": 4, "primer": primer}
    clean = evaluated(folder, tmp_path, **options)
    paper = evaluated(folder, tmp_path, out=tmp_path / "paper", counts="paper", **options)
    assert [len(result.questions) for result in (clean.results[0], paper.results[0])] == [7, 7]
    settings = settings_of(tmp_path / "paper")
    assert settings["counts"] == "paper: 15 correct answers, 30 triplets"
    assert settings["demonstrations"].startswith("14,")
    assert not (tmp_path / "paper" / "sweep.png").exists()
    logp = [plain("Q: Who?\nA: Me.\n\nQ: sun moon?\nA:", f" {text}")[0] for text in ("sun", "", "sun", "moon", "")]
    ratio = np.logaddexp.reduce(logp[:3]) - np.logaddexp.reduce(logp[3:])
    assert paper.results[0].values["log ratio"][6] == pytest.approx(ratio, abs=1e-3)


def test_further_rules(done, data, tmp_path):
    """Each has its picks, its row and its differences; MMR is the paper's Rel+Div."""
    home, _ = done
    rules = ("vrsd", "msd", "mmr", "msd", "dpp")
    summary = evaluated(data, home, out=tmp_path / "o", methods=rules, lambdas=())
    by_label = {result.setting.label: result for result in summary.results}
    assert list(by_label) == [*LABELS[:6], "VRSD", "MSD, λ_d = 0.75", "DPP, λ_d = 0.5", *LABELS[6:]]
    found = truthfulqa("clean", data)
    own, at = found.pairs
    texts = [f"{found.questions[q]} {found.answers[a]}" for q, a in zip(own, at, strict=True)]
    vectors, queries = TinyEncoder().encode(texts), TinyEncoder().encode(found.questions)
    near = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")
    pools = np.stack([row[own[row] != q][:POOL] for q, row in enumerate(near)])
    for label, rule, weight in (("MSD, λ_d = 0.75", rk.msd, {"lambda_d": 0.75}), ("VRSD", rk.vrsd, {})):
        picks = rule(queries, vectors, K, candidates=pools, **weight).indices
        np.testing.assert_array_equal(by_label[label].picks, picks)
    text = (tmp_path / "o" / "report.md").read_text()
    assert "What each rule does to the answers" in text
    for rule in ("VRSD", "MSD, λ_d = 0.75", "DPP, λ_d = 0.5", "Rel+Div"):
        means = (by_label[label].values["MC3"].mean() for label in (rule, "Rel"))
        difference = next(means) - next(means)
        row = rf"\| {re.escape(rule)} over Rel \|.*\|.*\| {re.escape(f'{difference:+.3f}')} \[[^|]*\|[^|]*\| \d"
        assert re.search(row, text), rule
    assert "| VRSD over Rel+Div |" in text
    assert "Rel+Div over Rel+Div" not in text
    assert settings_of(tmp_path / "o")["further rules"] == "vrsd, msd, mmr, dpp"


def test_what_is_above_and_below_is_said():
    """Of constant differences, and of noise in DPO."""
    noise = np.tile([1.0, -1.0], 10)

    def of(label, *means):
        values = {metric: np.full(20, mean) for metric, mean in zip(("MC1", "MC2", "MC3"), means, strict=True)}
        values["DPO"] = noise if label == "VRSD" else 0 * noise
        return Result(Setting(label, "vrsd"), np.arange(20), values, None, np.zeros(20), np.ones(20))

    report, vrsd = Report("ragsys", "Title"), of("VRSD", 0.3, 0.1, 0.5)
    _rules(report, [of("Rel", 0.2, 0.2, 0.3), of("Rel+Div", 0.4, 0.1, 0.4), vrsd], [vrsd], 50)
    told = "**Above:** VRSD over Rel in MC1, MC3; VRSD over Rel+Div in MC3. "
    assert f"{told}**Below:** VRSD over Rel in MC2; VRSD over Rel+Div in MC1.\n" in report.markdown()


def test_a_rule_that_ends_early_shows_fewer(data, tmp_path):
    """DPP has no pick behind the first among items that are all the same."""
    groups, query = np.arange(4), np.eye(3)[:1]
    corpus = rk.Corpus(np.repeat(np.float32([[1, 0, 0]]), 4, axis=0), groups=groups)
    setting = by_rule("dpp")
    picks = pick([setting], corpus, groups, np.float32(query), np.array([0]), k=2, pool=3)
    assert picks[setting].tolist() == [[1, -1]]
    one = {"question": "Who?", "answer": "Me."}
    prompts = run._prompts(setting, picks[setting], run._Shown([one] * 4, groups), (), ["Why?"])
    assert prompts[0].count("Who?") == 1


def test_the_lead_goes_by_the_papers_signs():
    """Both of its models have diversity with bias below bias alone in MC2, and disagree in DPO."""
    below = Interval(-0.2, -0.3, -0.1)
    ours = dict.fromkeys(("MC1", "MC2", "MC3", "DPO"), below)
    lines = [*_directions([Comparison("Rel+Div+Bias", "Rel+Bias", ours), Comparison("Rel", "random", ours)])]
    assert lead(lines) == (
        "**As the paper finds:** Rel+Div+Bias over Rel+Bias in MC2. "
        "**Against the paper:** Rel+Div+Bias over Rel+Bias in MC1, MC3. "
        "**Where the paper's models differ:** Rel+Div+Bias over Rel+Bias in DPO."
    )


def test_dpo_is_a_ratio_in_every_draw():
    """Of margins that are all alike, whatever the numbers of pairs: there is nothing to be uncertain of."""
    pairs = np.array([1.0, 20.0, 3.0, 8.0])
    pairs /= pairs.mean()
    found = intervals_of({"DPO": -2.0 * pairs, "MC1": np.array([0.0, 1.0, 1.0, 0.0])}, pairs, 500)
    assert found["DPO"] == pytest.approx((-2, -2, -2))
    assert found["MC1"].mean == 0.5
    # An error bar has no negative length, wherever rounding puts the ends of such an interval.
    pairs = np.random.default_rng(0).integers(1, 40, 817) / 15.1
    constant = intervals_of({"DPO": np.log(0.5) * pairs}, pairs, 500)["DPO"]
    assert min(side[0] for side in constant.bar) >= 0
    assert Interval(0.5, 0.5 + 1e-16, 0.5 - 1e-16).bar == [[0.0], [0.0]]
    assert found["MC1"].low < 0.2


def test_mc1_is_a_share_with_wilsons_interval():
    """Nine of ten questions: the known interval, which stays below 1."""
    values = {name: np.linspace(0, 1, 10) for name in ("MC2", "MC3", "DPO", "DPO, no reference")}
    values["MC1"] = np.array([1.0] * 9 + [0.0])
    result = Result(by_rule("mmr"), np.arange(10), values, None, np.zeros(10), np.ones(10))
    assert intervals(result, 50)["MC1"] == pytest.approx((0.9, 0.5958, 0.9821), abs=1e-4)


# --- Retrievers.


def test_random_picks_depend_on_the_group_alone():
    groups = np.repeat(np.arange(5), 3)
    random = Setting("random", "random")
    picks = lambda asked, seed=0: pick([random], None, groups, None, np.array(asked), k=6, seed=seed)[random]  # noqa: E731
    both = picks([0, 3])
    np.testing.assert_array_equal(picks([3])[0], both[1])
    assert not np.isin(groups[both[1]], 3).any()
    assert not np.array_equal(picks([3], seed=1)[0], both[1])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{}", "primer: file must have a list 'pairs', got none in"),
        ('{"pairs": [{"question": "a"}]}', "primer: pairs must each have a question and an answer, got .* at 0 in"),
        ("[]", "primer: file must hold a table, got list in"),
        ("{", "primer: file must be readable as JSON, got .*primer.json: "),
    ],
)
def test_primers_that_are_none(tmp_path, content, match):
    (tmp_path / "primer.json").write_text(content)
    with pytest.raises(ValueError, match=match):
        read_primer(tmp_path / "primer.json")


# --- Options.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 0}, "ragsys: k must be at least 1, got 0"),
        ({"pool": 1}, "ragsys: pool must be at least 2, got 1"),
        ({"pool": 16}, "ragsys: pool must be at most the 15 demonstrations of other questions, got 16"),
        ({"questions": 0}, "ragsys: questions must be at least 1, got 0"),
        ({"quick": True}, "ragsys: questions must be at most 9, got 100"),
        ({"lambda_d": 1.5}, r"ragsys: lambda_d must be in \[0, 1\], got 1.5"),
        ({"lambdas": (0.5, -1)}, r"ragsys: lambdas must be in \[0, 1\], got -1"),
        ({"methods": ["mmr", "bm25"]}, "ragsys: methods must be all, or some of mmr, vrsd, .*, got 'bm25'"),
        ({"embed": "answer"}, "ragsys: embed must be question or pair, got 'answer'"),
        ({"weights": "each"}, "ragsys: weights must be fixed or per-query, got 'each'"),
        ({"weights": "per-query", "lambdas": (1,)}, "ragsys: lambdas must have two values or more with weights per-qu"),
        (
            {"weights": "per-query", "questions": 4},
            "ragsys: questions must be at least 5 with weights per-query, got 4",
        ),
        ({"selections": 0}, "ragsys: selections must be at least 1, got 0"),
        ({"counts": "all"}, "truthfulqa: which must be clean or paper, got 'all'"),
    ],
)
def test_bad_options(data, tmp_path, options, match):
    encoder = TinyEncoder()
    with pytest.raises(ValueError, match=match):
        evaluated(data, tmp_path, encoder=encoder, **options)
    assert not encoder.calls
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_report(done, data, tmp_path, monkeypatch):
    home, _ = done
    use_tiny_encoder(monkeypatch)
    folder = lm_models.save(tmp_path / "model")
    options = ("--data", data, "--out", tmp_path / "o", "--cache", home / "cache", "--model", folder, "--questions", 2)
    result = invoke(
        "ragsys", *options, "--dtype", "float32", "--pool", POOL, "--k", K, "--lambdas", "", "--embed", "pair"
    )
    assert result.exit_code == 0, result.output
    assert "Rel+Div+Bias: MC1 " in result.stdout
    assert "0 answers scored, " in result.stdout  # the saved model is the one of the other test
    assert (tmp_path / "o" / "report.html").is_file()


def test_errors_are_one_line(data, tmp_path):
    result = invoke("ragsys", "--data", tmp_path / "gone", "--out", tmp_path / "o")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: ragsys: data must be an existing folder, got {tmp_path / 'gone'}\n"
    result = invoke("ragsys", "--data", data, "--out", tmp_path / "o", "--lambdas", "a")
    assert result.stderr == "error: ragsys: lambdas must be numbers separated by commas, got 'a'\n"


def test_a_weight_for_each_question(done, data, tmp_path):
    """Every choice anew from the values; the fixed run's cache has most of the answers."""
    home, _ = done
    options = {"lambdas": (0, 0.5, 1), "weights": "per-query", "selections": 3, "k": 3}
    summary = evaluated(data, tmp_path, cache=home / "cache", **options)
    swept = {r.setting.lambda_d: r for r in summary.results if r.setting.kind == "mmr" and r.setting.lambda_b == 1}
    worth = np.stack([swept[weight].values["MC3"] for weight in (1, 0.5, 0)])
    by_label = {choice.label: choice for choice in summary.choices}
    assert [*by_label] == [
        per_query.FIXED, per_query.FIXED_BY_OTHERS, per_query.NEAREST, per_query.ORACLE_OF_SWEEP, per_query.ORACLE
    ]  # fmt: skip
    value = {label: choice.values["MC3"] for label, choice in by_label.items()}
    np.testing.assert_array_equal(value[per_query.FIXED], worth[worth.mean(axis=1).argmax()])
    np.testing.assert_array_equal(value[per_query.ORACLE_OF_SWEEP], worth.max(axis=0))
    # With nine questions all of the other folds are the nearest, so both choose the same: without the question's own.
    np.testing.assert_array_equal(value[per_query.NEAREST], value[per_query.FIXED_BY_OTHERS])
    fold = np.random.default_rng(0).permutation(9) % per_query.FOLDS
    chosen = [worth[:, fold != fold[q]].mean(axis=1).argmax() for q in range(9)]
    np.testing.assert_array_equal(value[per_query.NEAREST], worth[chosen, range(9)])
    # The oracle of the path is the best of the sweep and of three selections; each of these is one that MMR makes.
    rows = {}
    for row in values_of(tmp_path / "out"):
        rows.setdefault(row["demonstrations"], []).append((float(row["MC3"]), row["picks"]))
    scored = np.array([[v for v, _ in rows[f"selection {i}"]] for i in (1, 2, 3)])
    np.testing.assert_allclose(value[per_query.ORACLE], np.concatenate([worth, scored]).max(axis=0), rtol=1e-8)
    assert (value[per_query.ORACLE] >= value[per_query.FIXED]).all()
    at = dict(zip(range(9), rows["selection 1"], strict=True))
    fine = {result.setting.lambda_d: result for result in summary.results if result.setting.kind == "mmr"}
    assert any(at[q][1] == " ".join(map(str, fine[0.5].picks[q])) for q in range(9))
    report = (tmp_path / "out" / "report.md").read_text()
    assert "## A weight for each question" in report
    assert "Where half of a question's answers choose" in report
    assert f"{per_query.ORACLE} over {per_query.FIXED}" in report
    assert sum(line.startswith(per_query.ORACLE) for line in summary.lines()) == 1


def test_halves_of_the_answers():
    logp = np.log([0.1, 0.2, 0.3, 0.4, 0.5, 0.25, 0.75])
    is_correct = np.array([True, False, True, False, True, True, False])
    halves = per_query.by_half(logp, is_correct, np.array([0, 5, 7]))
    np.testing.assert_allclose(halves[:, 0], [(0.1 + 0.5) / (0.1 + 0.5 + 0.2), 0.3 / (0.3 + 0.4)])
    np.testing.assert_allclose(halves[0, 1], 0.25)
    assert np.isnan(halves[1, 1])


def test_what_half_of_the_answers_choose_is_judged_by_the_others():
    rng = np.random.default_rng(0)
    best = rng.random((4, 1, 400))  # of weight and question
    noise = rng.random((4, 2, 400))
    for worth, gain in ((best + 0.1 * noise, (0.2, 0.5)), (noise, (-0.06, 0.06))):
        found = per_query.judged_by_others(worth[:2], worth[2:], 200)
        assert found.questions == 400
        assert gain[0] < found.difference.low < found.difference.high < gain[1]
    lacking = noise.copy()
    lacking[:, 1] = np.nan
    assert per_query.judged_by_others(lacking, lacking, 200) is None
    lacking[:, 1, :3] = 0.5
    lacking[:, 0, :3] = [[1, 2, 3], [3, 2, 1], [0, 0, 9], [0, 9, 0]]
    found = per_query.judged_by_others(lacking[:2], lacking[2:], 200)
    # The first half chooses 3, 9 and 9, which the second judges at 0.5; that has ties, and so chooses the first weight.
    assert found.questions == 3
    np.testing.assert_allclose(found.difference.mean, np.mean([0.75, 1.25, 1.75]) - (2 + 0.5) / 2)


def test_nearest_questions_choose():
    """Two kinds of questions, each of which is best with a weight of its own."""
    rng = np.random.default_rng(0)
    kind = rng.random(60) < 0.5
    queries = np.where(kind[:, None], [1.0, 0.0], [0.0, 1.0]) + 0.1 * rng.standard_normal((60, 2))
    noise = 0.1 * rng.random((2, 60))
    results = [
        Result(Setting("", "mmr", weight), np.arange(60), dict.fromkeys(METRICS, values), None, values, np.ones(60))
        for weight, values in ((0.2, kind + noise[0]), (0.8, ~kind + noise[1]))
    ]
    found = {choice.label: choice for choice in per_query.choices(results, [], queries)}
    np.testing.assert_array_equal(found[per_query.NEAREST].weights, np.where(kind, 0.2, 0.8))
    assert len(set(found[per_query.FIXED].weights)) == 1
    np.testing.assert_array_equal(found[per_query.ORACLE].weights, found[per_query.NEAREST].weights)
