"""The page of boosted trees."""

from html import escape

import plotly.graph_objects as go

from winnow.analytics.trees.boosted_trees import BoostedTrees
from winnow.core.join_names import counted
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout, set_round_axis
from winnow.report.markup import bullet_list, card, cards, figure_html, html_table, section, side_by_side
from winnow.report.number_format import number_text

MAX_BARS = 30


def trees_parts(trees: BoostedTrees) -> tuple[str, str, str]:
    """The page's title, the line below it, and its sections."""
    answer = trees.answer
    plots = [
        figure_html(curve_figure(trees), f"The loss ({answer['metric']}) after each round."),
        figure_html(importance_figure(trees), "The share of all gains that splits of a column make."),
    ]
    last = trees.history[answer["rounds"]]
    pieces = [
        card("Rounds", f"{answer['rounds']:,}", f"of trees up to depth {answer['settings']['depth']}"),
        card("Rows", f"{answer['rows']:,}", _whose(trees)),
        card(answer["metric"], number_text(last["train"]), "of rows that trees were grown on"),
    ]
    if last["holdout"] is not None:
        pieces.append(card(answer["metric"], number_text(last["holdout"]), "of rows held out"))
    settings = [[name, str(value)] for name, value in answer["settings"].items()]
    importance = [[name, f"{share:.2%}"] for name, share in trees.importance.items()]
    predicts = f"They predict {answer['target']}"
    classes = f": {', '.join(trees.classes)}" if trees.classes else ""
    return (
        f"Trees over {answer['table']}" + (f" and {answer['vertical']}" if "vertical" in answer else ""),
        f"{predicts}{classes}",
        section("Overview", cards(pieces), bullet_list(trees.notes()), side_by_side(*plots))
        + section("Columns", html_table("Columns by their share of gain", ["column", "share of gain"], importance))
        + section("Settings", html_table("How trees were grown", ["setting", "value"], settings)),
    )


def _whose(trees: BoostedTrees) -> str:
    answer = trees.answer
    if "vertical" in answer:
        return f"of {answer['common']:,} in common by {answer['key']}"
    return f"of {counted(len(answer['owners']), 'owner')}"


def curve_figure(trees: BoostedTrees) -> go.Figure:
    figure = go.Figure()
    for place, (key, name) in enumerate((("train", "grown on"), ("holdout", "held out"))):
        points = [(each["round"], each[key]) for each in trees.history if each[key] is not None]
        if points:
            rounds, losses = zip(*points, strict=True)
            figure.add_trace(go.Scatter(x=rounds, y=losses, name=name, mode="lines", line={"color": colour(place)}))
    set_round_axis(figure)
    figure.update_yaxes(title=trees.answer["metric"])
    return apply_layout(figure, height=320)


def importance_figure(trees: BoostedTrees) -> go.Figure:
    shown = list(trees.importance.items())[:MAX_BARS][::-1]
    ink = colour(0)
    marker = {"color": translucent(ink, 0.8), "line": {"color": ink, "width": 1}}
    figure = go.Figure(
        go.Bar(x=[share for _, share in shown], y=[escape(name) for name, _ in shown], orientation="h", marker=marker)
    )
    figure.update_xaxes(title="Share of gain", tickformat=".0%")
    figure.update_yaxes(type="category", automargin=True)
    return apply_layout(figure, height=320)
