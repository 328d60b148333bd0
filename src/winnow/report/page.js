// Tables that can be searched and sorted, and figures in the colours of the reader's scheme.
"use strict";

function makeSearchable(box) {
  const body = box.querySelector("tbody"), rows = [...body.rows];
  const field = box.querySelector("input[type=search]"), more = box.querySelector(".search button");
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
}

const scheme = matchMedia("(prefers-color-scheme: dark)");
const plots = [...document.querySelectorAll(".plot")];
const plotOptions = {responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]]};

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colours(layout) {
  const update = {"font.color": ink("--ink"), "font.family": getComputedStyle(document.body).fontFamily};
  Object.assign(update, {"modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": ink("--quiet")});
  for (const axis of Object.keys(layout).filter(key => /^[xy]axis/.test(key))) {
    for (const part of ["gridcolor", "linecolor", "zerolinecolor"]) update[`${axis}.${part}`] = ink("--line");
  }
  return update;
}

const NUMBERS = {f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array,
  u4: Uint32Array, u2: Uint16Array, u1: Uint8Array};

// Plotly reads packed numbers, and adds to plain ones alone.
function unpacked(values) {
  if (!values?.bdata) return values;
  const bytes = Uint8Array.from(atob(values.bdata), sign => sign.charCodeAt(0));
  return [...new NUMBERS[values.dtype](bytes.buffer)];
}

async function draw(plot) {
  const {data, layout} = JSON.parse(plot.querySelector("script").textContent);
  for (const line of data.filter(each => each.meta)) Object.assign(line, {x: unpacked(line.x), y: unpacked(line.y)});
  plot.replaceChildren();
  await Plotly.newPlot(plot, data, layout, plotOptions);
  return Plotly.relayout(plot, colours(plot.layout));
}

document.querySelectorAll(".searchable").forEach(makeSearchable);
const drawn = Promise.all(plots.map(draw));
scheme.addEventListener("change", () => plots.forEach(plot => Plotly.relayout(plot, colours(plot.layout))));
