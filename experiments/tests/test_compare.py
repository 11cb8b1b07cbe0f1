"""``householder compare`` and ``householder plot``: a grid of models and seeds, its table and its figure."""

import csv
import doctest
import re

import numpy as np
import pytest

from experiments.tests.command import (
    finish,
    output_of,
    output_of_process,
    posix,
    start,
    wait_for,
    wait_for_end_of_group,
)
from experiments.tests.runs import digits, results
from householder import cli
from householder.cli.entry import parser
from householder.cli.errors import UserError
from householder_experiments import figures, report
from householder_experiments.compare import asked_grid, lines_over, summarise, values_of
from householder_experiments.curves import Curves, find_runs, read_curves
from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.figures import learning_curves
from householder_experiments.models.rivals import count_parameters, resized, rival_settings
from householder_experiments.outcome import Outcome
from householder_experiments.report import distinct, uneven_parameters

USV = "factorised RNN (usv)"

GRID = ["compare", "digits", "--models", "srnn,usv", "--seeds", "2", "--epochs", "3"]
SETTINGS = ["models.usv.margin=0.2", "models.srnn.hidden_size=20", "batch_size=250", "checkpoint_seconds=0.1"]
CHANGES = [argument for setting in SETTINGS for argument in ("--set", setting)]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "grid"
    out = output_of_process(*GRID, *CHANGES, "--output", directory)
    return directory, out


def test_a_grid_leaves_a_table_and_figures(grid):
    directory, out = grid
    with (directory / "summary.csv").open(newline="") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["srnn", "usv"]
    for model, row in rows.items():
        metrics = [outcome["metric"] for outcome in results(directory) if outcome["model"] == model]
        assert int(row["runs"]) == len(metrics) == 2
        assert float(row["mean"]) == pytest.approx(sum(metrics) / 2)
        assert [float(row["worst"]), float(row["best"])] == sorted(metrics)
        assert f"{float(row['mean']):#.4g}" in out
        assert row["unit"] == "%"
    for figure in ("comparison.png", "boxes.png"):
        assert (directory / figure).read_bytes().startswith(b"\x89PNG")


def test_seeds_differ_and_changes_reach_rivals(grid):
    directory, _ = grid
    experiments = [run.experiment for run in find_runs([directory])]
    assert [experiment.seed for experiment in experiments] == [1, 2]
    for experiment in experiments:
        assert experiment.models["usv"].margin == 0.2
        assert experiment.models["srnn"].hidden_size == 20
    first, second = (outcome["train_loss"] for outcome in results(directory) if outcome["model"] == "usv")
    assert first != second


@pytest.mark.long
@posix
def test_a_killed_grid_resumes_to_the_same_metrics(grid, tmp_path):
    process = start(*GRID, *CHANGES, "--output", tmp_path / "grid")
    wait_for(lambda: list(tmp_path.glob("grid/seed-1/*/checkpoint.pt")), process)
    process.kill()
    finish(process)
    wait_for_end_of_group(process.pid)  # the processes that train notice
    out = output_of("compare", "digits", "--resume", tmp_path / "grid")
    assert "srnn, usv; seed-1, seed-2" in out
    assert results(tmp_path / "grid") == results(grid[0])


def test_plot_draws_comparisons_and_runs(grid, tmp_path, capsys):
    directory, _ = grid
    assert cli.main(["plot", str(directory), "--output", str(tmp_path / "all.svg")]) == 0
    assert "all.svg" in capsys.readouterr().out
    assert "</svg>" in (tmp_path / "all.svg").read_text()
    assert cli.main(["plot", str(directory / "seed-2"), "--output", str(tmp_path / "one.png")]) == 0


def test_a_run_that_is_reached_twice_is_drawn_once(grid, tmp_path):
    directory, _ = grid
    (tmp_path / "link").symlink_to(directory)
    runs = find_runs([directory, directory / "seed-2", directory / ".", tmp_path / "link"])
    assert [run.directory for run in runs] == [directory / "seed-1", directory / "seed-2"]


def test_values_that_are_lists_or_groups_of_settings_are_told_apart_as_text():
    betas, other = (digits(f"models.srnn.betas=[{beta}, 0.9]") for beta in (0.5, 0.8))
    for name in ("models.srnn.betas", "models.srnn"):
        assert len({values_of(betas, [name]), values_of(other, [name])}) == 2


def test_curves_of_seeds_are_one(grid):
    curves = read_curves(find_runs([grid[0]]))
    assert list(curves) == ["simple RNN (srnn)", USV]
    assert curves[USV].over_runs("train_loss").shape == (2, 3)
    assert curves[USV].over_runs("validation_accuracy") is None


@pytest.mark.parametrize(
    ("copied", "labels"),
    [
        ("seed-1", {"simple RNN (srnn)": 3, f"seed-1 ... seed-2: {USV}": 2, f"other: {USV}": 1}),
        (".", {"simple RNN (srnn)": 4, f"grid: {USV}": 2, f"other: {USV}": 2}),
    ],
)
def test_curves_of_other_settings_are_others_and_named_after_their_folders(copied, labels, grid, tmp_path):
    directory, other = grid[0], tmp_path / "other"
    for path in directory.glob("seed-*/**/*"):
        if path.suffix in (".csv", ".yaml") and path.is_relative_to(directory / copied):
            target = other / path.relative_to(directory / copied)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text().replace("margin: 0.2", "margin: 0.5"))
    curves = read_curves(find_runs([directory, other]))
    assert {label: len(group.columns) for label, group in curves.items()} == labels


def test_a_grid_over_a_setting_has_a_run_for_each_value_and_one_line_for_each_model(tmp_path):
    directory = tmp_path / "grid"
    changes = ["--models", "srnn-250", "--seeds", "2", "--epochs", "3", "--over", "task.excerpt=1,3"]
    out = output_of("compare", "audio", *changes, "--output", directory)
    runs = find_runs([directory])
    names = ["seed-1-excerpt-1", "seed-1-excerpt-3", "seed-2-excerpt-1", "seed-2-excerpt-3"]
    assert [run.directory.name for run in runs] == names
    assert [(run.experiment.seed, run.experiment.task.excerpt) for run in runs] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert list(read_curves(runs)) == [
        "seed-1-excerpt-1 ... seed-2-excerpt-1: srnn-250",
        "seed-1-excerpt-3 ... seed-2-excerpt-3: srnn-250",
    ]
    curves = read_curves(runs, by_settings=False)
    assert list(curves) == ["srnn-250"]
    assert len({outcome.metric for outcome in curves["srnn-250"].outcomes}) == 4
    summary = (directory / "summary.csv").read_text()
    rows = list(csv.DictReader(summary.splitlines()))
    assert [(row["task.excerpt"], row["model"], row["runs"]) for row in rows] == [
        ("1", "srnn-250", "2"),
        ("3", "srnn-250", "2"),
    ]
    assert rows[0]["mean"] != rows[1]["mean"]
    assert (directory / "over-task.excerpt.png").read_bytes().startswith(b"\x89PNG")
    assert sum(line.split()[1:2] == ["srnn-250"] for line in out.splitlines()) == 2
    output_of("train", "--resume", directory)
    assert (directory / "summary.csv").read_text() == summary


@pytest.mark.long
def test_values_that_are_no_numbers_have_rows_but_no_figure(tmp_path):
    directory = tmp_path / "grid"
    changes = ["--models", "srnn", "--seeds", "1", "--epochs", "1", "--over", "models.srnn.nonlinearity=tanh,relu"]
    output_of("compare", "digits", *changes, "--output", directory)
    rows = list(csv.DictReader((directory / "summary.csv").read_text().splitlines()))
    assert [row["models.srnn.nonlinearity"] for row in rows] == ["tanh", "relu"]
    assert not list(directory.glob("over-*.png"))


@pytest.mark.parametrize("content", ["", "{", "[1]", '["a/b"]', "7", "[" * 60_000, " " * 70_000])
def test_a_damaged_list_of_varied_settings_is_one_line(content, tmp_path, refusal):
    (tmp_path / "seed-1").mkdir()
    digits().save(tmp_path / "seed-1" / "config.yaml")
    (tmp_path / "over.json").write_text(content)
    assert re.search("over.json (is damaged|has more than 65,536 bytes)", refusal("compare", "--resume", tmp_path))


@pytest.mark.parametrize("over", ["task.validation", "task.validation=", "=1,2"])
def test_a_varied_setting_has_a_name_and_values(over, refusal):
    assert f"--over {over!r}: expected NAME=A,B" in refusal("compare", "digits", "--over", over)


@pytest.mark.parametrize("alphabet", ["abcdefgh", "".join(map(chr, range(33, 83)))])
def test_rivals_match_for_the_alphabet_of_any_text(alphabet, tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.txt").write_text(alphabet)
    experiment = load_experiment(packaged_config("chars"), [f"task.data={tmp_path}"])
    counts = [count_parameters(model, experiment.task.load()) for model in experiment.models.values()]
    assert max(counts) < 1.02 * min(counts)


def test_a_table_says_where_sizes_do_not_match():
    outcomes = [
        Outcome(name, 8, parameters, 3, 1.0, 0.1, 0.5, "m", "test")
        for name, parameters in (("a", 1000), ("b", 1019), ("c", 1100), ("d", 900))
    ]
    assert uneven_parameters(outcomes) == [
        "c has 10.0 % more parameters than a",
        "d has 10.0 % fewer parameters than a",
    ]


def test_losses_have_the_digits_that_tell_them_apart():
    assert distinct([1.31, None, 1.3, 1.3]) == ["1.310", "-", "1.300", "1.300"]
    assert distinct([1.30004, 1.30001]) == ["1.30004", "1.30001"]
    assert doctest.testmod(report).failed == 0


@pytest.mark.parametrize("kind", rival_settings())
def test_rivals_are_as_large_as_the_first_model(kind):
    experiment = load_experiment(packaged_config("digits"), (), [kind])
    task = experiment.task.load()
    wanted = count_parameters(digits().models["ornn"], task)
    coarse = {"lstm": 0.04, "delta": 0.06, "gated-delta": 0.06, "delta-product": 0.06}  # sizes go by gates and heads
    assert count_parameters(experiment.models[kind], task) == pytest.approx(wanted, rel=coarse.get(kind, 0.02))


def test_models_of_the_experiment_stay_as_they_are():
    changes = ["models.urnn.learning_rate=0.5", "models.urnn.hidden_size=11"]
    experiment = load_experiment(packaged_config("digits"), changes, ["lstm", "urnn"])
    assert experiment.models["lstm"] == digits().models["lstm"]
    assert (experiment.models["urnn"].learning_rate, experiment.models["urnn"].hidden_size) == (0.5, 11)


def test_rivals_are_sized_for_each_value_as_for_a_changed_setting():
    def sizes(*arguments):
        _, _, experiments = asked_grid(
            parser().parse_args(["compare", "digits", "--models", "ornn,unitary", *arguments])
        )
        return {name: experiment.models["unitary"].hidden_size for name, experiment in experiments.items()}

    changed = [sizes("--seeds", "1", "--set", f"models.ornn.num_reflections={m}")["seed-1"] for m in (4, 16)]
    assert changed[0] < changed[1]
    varied = sizes("--seeds", "2", "--over", "models.ornn.num_reflections=4,16")
    assert varied == {
        f"seed-{seed}-num_reflections-{m}": n for seed in (1, 2) for m, n in zip((4, 16), changed, strict=True)
    }


def test_all_is_every_kind():
    assert set(load_experiment(packaged_config("digits"), (), ["all"]).models) == set(rival_settings())


@pytest.mark.parametrize("kind", ["ornn", "usv", "free-rnn"])
def test_sizes_that_a_model_refuses_are_passed_over(kind):
    task = digits().task.load()
    changes = [f"models.{kind}.nonlinearity=oplu"]
    oplu = load_experiment(packaged_config("digits"), changes, [kind]).models[kind]
    for parameters in (1000, 2500):
        assert resized(oplu, task, parameters).hidden_size % 2 == 0


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_a_summary_has_mean_deviation_and_extremes(lower_is_better):
    outcomes = [
        Outcome("a", 8, 100, 3, seconds, 0.1, metric, "m", "test", "", lower_is_better)
        for metric, seconds in ((0.5, 1.0), (0.7, 2.0), (0.9, 6.0))
    ]
    (row,) = summarise({(): outcomes})
    assert (row.runs, row.mean, row.seconds) == (3, pytest.approx(0.7), 3.0)
    assert row.deviation == pytest.approx(0.2)
    assert row.median == 0.7
    assert (row.worst, row.best) == ((0.9, 0.5) if lower_is_better else (0.5, 0.9))
    assert summarise({(): outcomes[:1]})[0].deviation is None


@pytest.mark.parametrize(
    ("values", "points"), [((3, 1), {"a": [(1, 0.5, 0.0), (3, 0.5, 0.0)]}), (("tanh", "relu"), {}), ((True, False), {})]
)
def test_the_values_of_a_setting_are_points_of_a_line_if_they_are_numbers(values, points):
    outcome = Outcome("a", 8, 100, 3, 1.0, 0.1, 0.5, "m", "test", "", False)
    rows = summarise({(("task.size", value),): [outcome] for value in values})
    assert sorted(str(value) for row in rows for _, value in row.values) == sorted(map(str, values))
    assert {model: sorted(line) for model, line in lines_over(rows, "task.size").items()} == points


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["compare", "digits", "--models", "ornn,gru"],
            "unknown model 'gru': there are ornn, free-rnn, lstm, srnn, srnn-orthogonal, ornn-soft",
        ),
        (["compare", "digits", "--seeds", "0"], "--seeds: expected an integer from 1 on, got '0'"),
        (
            ["compare", "digits", "--models", "urnn", "--set", "models.urnn.rate=1"],
            "models.urnn.rate: there is no such",
        ),
        (["compare", "digits", "--models", "srnn", "--set", "models.urnn.rate=1"], "there is no 'urnn' to change"),
        (["compare", "digits", "--set", "models.urnn.rate=1"], "there is no 'urnn' to change"),
        (["compare", "digits", "--resume", "begun", "--epochs", "2"], "begun/seed-1 holds no run"),
        (["compare", "audio", "--over", "task.excerp=1,2"], "there is no such setting; did you mean 'excerpt'?"),
        (["compare", "digits", "--over", "models.ornn.num_reflections=16,129"], "models.ornn: num_reflections is 129"),
        (["compare", "digits", "--over", "seed=5"], "--over seed: --seed and --seeds choose the seeds"),
        (["compare", "digits", "--over", "epochs=1,1"], "--over: two values share the folder seed-1-epochs-1"),
        (
            ["compare", "digits", "--over", "epochs=3,0x3"],
            "seed-1-epochs-3 and seed-1-epochs-0x3 would both have seed=1, epochs=3: give each run values of its own",
        ),
        (
            ["compare", "digits", "--over", "epochs=1,2", "--over", "epochs=3"],
            "would both have seed=1, epochs=3, epochs=3",
        ),
        (
            ["compare", "digits", "--models", "srnn", "--over", "models.ornn.num_reflections=4,8"],
            "ornn is not compared, so no table shows its values: add it to --models",
        ),
        (
            ["compare", "--resume", "varied", "--epochs", "5"],
            "seed-1-epochs-1 and seed-1-epochs-2 would both have seed=1, epochs=5",
        ),
        (["comparee"], "did you mean 'compare'?"),
        (["compare", "digits", "--resume", "nowhere"], "nowhere holds no comparison"),
        (["compare", "digits", "--resume", "empty", "--seeds", "2"], "leave out --seeds"),
        (["compare", "digits", "--output", "begun"], "begun already holds a comparison"),
        (["compare", "digits", "--resume", "empty", "--over", "epochs=1,2"], "leave out --over"),
        (["compare", "audio", "--over", "task.excerpt=1,6"], "--over task.excerpt: input should be less than"),
        (
            ["compare", "audio", "--over", "excerpt=1"],
            "--over excerpt: there is no such setting; did you mean 'task.excerpt'?",
        ),
        (
            ["compare", "audio", "--over", "models.gru.clip_norm=1"],
            "--over 'models.gru.clip_norm=1': there is no 'gru'",
        ),
        (["plot", "empty"], "empty holds no run: there is no config.yaml"),
        (["plot", "idle"], "there is nothing to draw: no run has completed an epoch"),
        (["plot", "idle", "copying"], "the runs are of different tasks: copy, digits"),
        (["train", "digits", "--seeds", "2", "--devices", "2"], "leave out --devices and --num-nodes"),
        (["train", "--resume", "begun", "--devices", "2"], "leave out --devices and --num-nodes"),
        (["train", "digits", "--devices", "0"], "--devices: expected an integer from 1 on"),
        (["train", "digits", "--num-nodes", "2"], "--num-nodes 2 needs MASTER_ADDR"),
    ],
)
def test_mistakes_are_answered_in_one_line(arguments, message, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "begun/seed-1", "idle", "copying"):
        (tmp_path / folder).mkdir(parents=True)
    digits().save(tmp_path / "idle" / "config.yaml")
    load_experiment(packaged_config("copy")).save(tmp_path / "copying" / "config.yaml")
    for epochs in (1, 2):
        (tmp_path / "varied" / f"seed-1-epochs-{epochs}").mkdir(parents=True)
        digits(f"epochs={epochs}").save(tmp_path / "varied" / f"seed-1-epochs-{epochs}" / "config.yaml")
    (tmp_path / "varied" / "over.json").write_text('["epochs"]')
    assert message in refusal(*arguments)


def test_a_model_that_has_not_ended_leaves_room_for_the_axes(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "write_figure", lambda figure, _: drawn.append(figure))
    ended = Outcome("srnn", 8, 100, 2, 1.0, 0.5, 50.0, "accuracy", "test", "%")
    columns = {"train_loss": np.array([1.0, 0.5]), "train_accuracy": np.array([40.0, 50.0])}
    outcomes = {"ended": [ended], "interrupted": []}
    curves = {name: Curves("accuracy", [columns], of_model) for name, of_model in outcomes.items()}
    figures.learning_curves(curves, tmp_path)
    drawn[0].canvas.draw()
    assert all(axes.get_position().width > 0.25 for axes in drawn[0].axes)


@pytest.mark.parametrize("count", [1, 9, 40])
@pytest.mark.parametrize("kind", ["curves", "over"])
def test_a_legend_covers_no_axes_and_fits(kind, count, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "write_figure", lambda figure, _: drawn.append(figure))
    outcome = Outcome("srnn", 8, 100, 2, 1.0, 0.5, 50.0, "accuracy", "test", "%")
    names = [f"seed-1-epochs-{number}: srnn" for number in range(count)]
    if kind == "curves":
        columns = {"train_loss": np.array([1.0, 0.5]), "train_accuracy": np.array([40.0, 50.0])}
        figures.learning_curves({name: Curves("accuracy", [columns], [outcome]) for name in names}, tmp_path)
    else:
        points = [(1.0, 40.0, 1.0), (2.0, 50.0, 1.0)]
        figures.over_values(dict.fromkeys(names, points), "epochs", outcome, tmp_path)
    (figure,) = drawn
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert not any(axes.get_window_extent().overlaps(box) for axes in figure.axes)
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert all(axes.get_window_extent().width > figure.bbox.width / 4 for axes in figure.axes)


def test_a_figure_that_cannot_be_written_is_a_mistake(grid):
    with pytest.raises(UserError, match="cannot write"):
        learning_curves(read_curves(find_runs([grid[0]])), grid[0] / "no" / "figure.png")
