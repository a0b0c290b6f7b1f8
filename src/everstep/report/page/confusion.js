// The confusion matrix; a click on a cell filters its samples.

const MOST_SHOWN = 24;

function confusionSection(split) {
  if (!split.confusion) return null;
  const matrix = readMatrix(split.confusion);
  const shownClasses = chosenClasses(matrix);
  const box = element("div");
  const draw = (shares) => box.replaceChildren(matrixTable(split, matrix, shownClasses, shares === "shares"));
  draw("counts");
  return section("confusion", "Confusion",
    element("div", { class: "controls" }, segments("Numbers in the cells", [["counts", "Counts"], ["shares", "Share of the label"]], "counts", draw),
      element("span", { class: "muted" }, "A cell shows its samples. Arrow keys move, Enter opens.")),
    shownClasses.length < matrix.size ? element("p", { class: "note" }, `The ${shownClasses.length} of ${matrix.size} classes with most mistakes.`) : null,
    element("div", { class: "beside" }, box, confusedPairs(split, matrix)));
}

function readMatrix({ size, cells }) {
  const counts = new Map(cells.map(([label, predicted, times]) => [label * size + predicted, times]));
  const totals = new Array(size).fill(0), mistakes = new Array(size).fill(0);
  for (const [label, predicted, times] of cells) {
    totals[label] += times;
    if (label !== predicted) { mistakes[label] += times; mistakes[predicted] += times; }
  }
  return { size, cells, totals, mistakes, at: (label, predicted) => counts.get(label * size + predicted) || 0 };
}

function chosenClasses(matrix) {
  const every = [...Array(matrix.size).keys()];
  if (matrix.size <= MOST_SHOWN) return every;
  return every.sort((a, b) => matrix.mistakes[b] - matrix.mistakes[a]).slice(0, MOST_SHOWN).sort((a, b) => a - b);
}

function showCell(label, predicted) {
  setFilters([{ column: "label", is: label, type: "class" }, { column: "prediction", is: predicted, type: "class" }], "samples");
}

function matrixTable(split, matrix, classes, shares) {
  const grid = classes.map((label) => classes.map((predicted) => cellButton(split, matrix, label, predicted, shares)));
  if (grid.length) grid[0][0].tabIndex = 0;
  const table = element("table", { class: "confusion", onkeydown: (event) => moveInGrid(grid, event) },
    element("caption", {}, "Rows are labels, columns predictions"),
    element("thead", {}, element("tr", {}, element("td", {}), classes.map((c) => element("th", { scope: "col", title: className(split, c) }, element("span", {}, className(split, c)))))),
    element("tbody", {}, classes.map((label, row) => element("tr", {}, element("th", { scope: "row", title: className(split, label) }, className(split, label)),
      grid[row].map((cell) => element("td", {}, cell))))));
  return element("div", { class: "scroller" }, table);
}

function cellButton(split, matrix, label, predicted, shares) {
  const times = matrix.at(label, predicted), share = matrix.totals[label] ? times / matrix.totals[label] : 0;
  const text = shares ? (share ? (share >= 0.995 ? "1" : share.toFixed(2).replace("0.", ".")) : "") : times ? shortCount(times) : "";
  const cell = button(text, () => { if (times) showCell(label, predicted); }, {
    class: `cell ${label === predicted ? "right" : "wrong"}${share > 0.45 ? " strong" : ""}`, tabindex: "-1",
    "aria-label": `${className(split, label)} taken for ${className(split, predicted)}: ${count(times, "sample")}, ${percent(share)}`,
    title: `${className(split, label)} → ${className(split, predicted)}: ${number(times)} (${percent(share)})`,
    "aria-disabled": times ? null : "true",
  });
  return styled(cell, { "--share": (times ? 0.08 + 0.92 * Math.sqrt(share) : 0).toFixed(3) });
}

function moveInGrid(grid, event) {
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!step) return;
  event.preventDefault();
  const row = grid.findIndex((cells) => cells.includes(event.target));
  if (row < 0) return;
  const next = (grid[row + step[0]] || [])[grid[row].indexOf(event.target) + step[1]];
  if (next) { event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
}

function confusedPairs(split, matrix) {
  const pairs = matrix.cells.filter(([label, predicted]) => label !== predicted).sort((a, b) => b[2] - a[2]).slice(0, 8);
  if (!pairs.length) return element("p", { class: "note" }, "No sample was confused.");
  return element("div", { class: "pairs" }, element("h3", {}, "Most frequent confusions"),
    element("ol", {}, pairs.map(([label, predicted, times]) => element("li", {},
      button([className(split, label), " → ", element("b", {}, className(split, predicted)), element("span", { class: "muted" }, ` ${number(times)}`)], () => showCell(label, predicted), { class: "plain" })))));
}

function shortCount(times) {
  return times < 1000 ? String(times) : shortNumber(Number(times.toPrecision(2)));
}
