"""The page around the sections of a report: one file, no network, in the reader's colour scheme."""

from html import escape
from importlib.resources import files

from plotly.offline import get_plotlyjs

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""The browser itself refuses anything from outside the file."""

DRAW = """
const scheme = matchMedia("(prefers-color-scheme: dark)");
const plots = [...document.querySelectorAll(".plot")];
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const options = {responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]]};
function colours(layout) {
  const update = {"font.color": ink("--ink"), "font.family": getComputedStyle(document.body).fontFamily};
  Object.assign(update, {"modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": ink("--quiet")});
  for (const axis of Object.keys(layout).filter(key => /^[xy]axis/.test(key))) {
    for (const part of ["gridcolor", "linecolor", "zerolinecolor"]) update[`${axis}.${part}`] = ink("--line");
  }
  return update;
}
plots.forEach(async plot => {
  const {data, layout} = JSON.parse(plot.querySelector("script").textContent);
  plot.replaceChildren();
  await Plotly.newPlot(plot, data, layout, options);
  Plotly.relayout(plot, colours(plot.layout));
});
scheme.addEventListener("change", () => plots.forEach(plot => Plotly.relayout(plot, colours(plot.layout))));
"""

SEARCH = """
document.querySelectorAll(".searchable").forEach(box => {
  const body = box.querySelector("tbody"), rows = [...body.rows];
  const field = box.querySelector("input"), more = box.querySelector("button");
  let all = false;
  function show() {
    const words = field.value.trim().toLowerCase();
    for (const row of rows) {
      row.hidden = words ? !row.textContent.toLowerCase().includes(words) : !all && "folded" in row.dataset;
    }
    if (more) more.hidden = all || words !== "";
  }
  function value(row, column) {
    const text = row.cells[column].textContent, number = parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? text : number;
  }
  [...box.querySelectorAll("thead th")].forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "Sort";
    function sort() {
      const falling = head.ariaSort === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.ariaSort = falling ? "descending" : "ascending";
      rows.sort((a, b) => {
        const [one, two] = [value(a, column), value(b, column)];
        const numbers = typeof one === "number" && typeof two === "number";
        return (falling ? -1 : 1) * (numbers ? one - two : String(one).localeCompare(String(two)));
      });
      body.append(...rows);
      all = true;
      show();
    }
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => event.key === "Enter" && sort());
  });
  field.addEventListener("input", show);
  if (more) more.addEventListener("click", () => { all = true; show(); });
  box.querySelector(".search").hidden = rows.length < 10;
  show();
});
"""


def page(title: str, lead: str, body: str) -> str:
    style = files("winnow.report").joinpath("style.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{style}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p>{escape(lead)}</p></header>
{body}
</main>
<script>{SEARCH}</script>
<script>{DRAW}</script>
</body>
</html>
"""
