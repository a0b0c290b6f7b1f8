// Curves over steps or epochs.
//   series: [{ name, colour (a class), dashed, steps, values, ended: { step, text } where the run ended with an earlier step's weights }]   marks: [{ step, text, flag, colour }]

const COLOURS = 8; // run0 to run7 of the style

function lineChart(title, series, marks, logarithmic, unit) {
  const steps = [...new Set(series.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const legend = element("div", { class: "legend" });
  const where = element("span", { class: "where" });
  const entries = series.map((one) => ({ one, value: element("b", {}, "") }));
  legend.append(...entries.map(({ one, value }) => element("span", { class: "entry" },
    element("i", { class: `swatch ${one.colour}${one.dashed ? " dashed" : ""}`, "aria-hidden": "true" }), `${one.name} `, value)), where);
  const read = (step) => {
    for (const { one, value } of entries) value.textContent = shownAt(one, step);
    where.textContent = step === null ? "" : `${unit} ${number(step)}`;
  };
  read(null);
  const frame = chart(190, (width, height) => linesDrawn(title, series, marks, logarithmic, unit, steps, width, height, read));
  return element("figure", { class: "card" }, element("figcaption", {}, spaced(title)), frame, legend);
}

// What the legend says: the value at a step; without one, that of the weights which the run ended with.
function shownAt(one, step) {
  if (step !== null || !one.ended) return number(valueAt(one, step));
  return `${number(valueAt(one, one.ended.step))} (${one.ended.text}; last ${number(valueAt(one, null))})`;
}

// The value at a step, or the last one before it; without a step, the last of all.
function valueAt(one, step) {
  if (step === null) return one.values[one.values.length - 1];
  let low = 0, high = one.steps.length;
  while (low < high) { const middle = (low + high) >> 1; if (one.steps[middle] <= step) low = middle + 1; else high = middle; }
  return low ? one.values[low - 1] : null;
}

function linesDrawn(title, series, marks, logarithmic, unit, steps, width, height, read) {
  const usable = (value) => value !== null && (!logarithmic || value > 0);
  const values = series.flatMap((one) => one.values).filter(usable);
  if (!values.length) return element("p", { class: "note" }, "No finite numbers.");
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const box = { left: 0, right: width - 8, top: 8, bottom: height - 36 };
  const y = scale(low, high, box.bottom - 4, box.top + 4, logarithmic, 4);
  box.left = leftMargin(y);
  const x = scale(steps[0], steps[steps.length - 1], box.left + 4, box.right - 4, false, width / 90);
  x.ticks = x.ticks.filter(Number.isInteger);
  const inside = marks.filter((mark) => mark.step >= x.low && mark.step <= x.high);
  const pointer = drawn("line", { class: "pointer", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const svg = canvas(width, height, chartLabel(title, series, marks, unit),
    axes(box, x, y), drawn("text", { class: "axis", x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, unit),
    inside.map((mark) => marked(mark, x.at(mark.step), box, unit)),
    series.flatMap((one) => onePath(one, x, y, usable)), pointer);
  cursor(svg, steps.length, (at) => nearestStep(steps, x, at), (place) => {
    pointer.setAttribute("visibility", place === null ? "hidden" : "visible");
    if (place !== null) { pointer.setAttribute("x1", x.at(steps[place])); pointer.setAttribute("x2", x.at(steps[place])); }
    read(place === null ? null : steps[place]);
  });
  return svg;
}

// A dotted line; a whole one with a flag for what was exported.
function marked(mark, at, box, unit) {
  const said = drawn("title", {}, `${unit} ${number(mark.step)}: ${mark.text}`);
  if (!mark.flag) return drawn("line", { class: "mark", x1: at, x2: at, y1: box.top, y2: box.bottom }, said);
  const end = at > box.right - 10 ? -9 : 9;
  return drawn("g", { class: `exported ${mark.colour}` }, said, drawn("line", { x1: at, x2: at, y1: box.top, y2: box.bottom }),
    drawn("path", { d: `M${at} ${box.top}l${end} 4l${-end} 4z` }));
}

function onePath(one, x, y, usable) {
  let path = "", open = false;
  const lone = [];
  one.values.forEach((value, i) => {
    if (!usable(value)) { open = false; return; }
    const at = `${x.at(one.steps[i]).toFixed(1)} ${y.at(value).toFixed(1)}`;
    if (!open && !usable(one.values[i + 1] ?? null)) lone.push(i);
    path += `${open ? "L" : "M"}${at}`;
    open = true;
  });
  const dots = one.values.length <= 24 ? one.values.map((value, i) => i).filter((i) => usable(one.values[i])) : lone;
  return [drawn("path", { class: `line ${one.colour}${one.dashed ? " dashed" : ""}`, d: path }),
    ...dots.map((i) => drawn("circle", { class: `dot ${one.colour}`, cx: x.at(one.steps[i]), cy: y.at(one.values[i]), r: 2.5 }))];
}

function nearestStep(steps, x, at) {
  let best = 0;
  for (let low = 0, high = steps.length - 1; low <= high;) {
    const middle = (low + high) >> 1;
    if (Math.abs(x.at(steps[middle]) - at) < Math.abs(x.at(steps[best]) - at)) best = middle;
    if (x.at(steps[middle]) < at) low = middle + 1; else high = middle - 1;
  }
  return best;
}

function chartLabel(title, series, marks, unit) {
  const last = series.map((one) => `${one.name} ends at ${number(valueAt(one, null))}`).join(", ");
  const attempts = marks.filter((mark) => !mark.flag).length, exported = marks.filter((mark) => mark.flag);
  const said = [...(attempts ? [count(attempts, "later attempt")] : []), ...exported.map((mark) => mark.text)].map((text) => `; ${text}`).join("");
  return `${spaced(title)} over ${unit}s: ${last}${said}. Arrow keys read values.`;
}
