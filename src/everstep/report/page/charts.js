// Shared by all charts: they are drawn for their current width, and redrawn when it changes.

function chart(height, draw, attributes) {
  const frame = element("div", { class: "chart", ...attributes });
  styled(frame, { "min-height": `${height}px` });
  let width = 0;
  const again = () => { if (width) frame.replaceChildren(draw(width, height)); };
  new ResizeObserver(() => {
    const now = Math.floor(frame.clientWidth);
    if (now && now !== width) { width = now; again(); }
  }).observe(frame);
  frame.again = again;
  return frame;
}

function canvas(width, height, label, ...children) {
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, tabindex: "0" }, children);
}

// Round numbers from low to high, about as many as requested.
function ticks(low, high, wanted) {
  const rough = high / Math.max(1, wanted) - low / Math.max(1, wanted); // each alone: their distance may be no number
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) || rough;
  if (!(low + step > low)) return [low, high]; // so close that no number is between them
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// A scale from numbers to pixels, linear or logarithmic, with its ticks.
function scale(low, high, from, to, logarithmic, wanted) {
  if (!(low < high)) { const room = Math.abs(low) * 0.1 || 0.5; low = Math.max(-Number.MAX_VALUE, low - room); high = Math.min(Number.MAX_VALUE, high + room); logarithmic = false; }
  const turn = logarithmic ? Math.log10 : (value) => value / 2; // by halves: the distance of two numbers may be none
  const at = (value) => from + (turn(value) - turn(low)) / (turn(high) - turn(low)) * (to - from);
  return { at, low, high, ticks: logarithmic ? decades(low, high) : ticks(low, high, wanted) };
}

function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) {
      const value = Number((factor * 10 ** power).toPrecision(3));
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found.length > 6 ? found.filter((value) => Number.isInteger(Math.round(1e9 * Math.log10(value)) / 1e9)) : found;
}

function shortNumber(value) {
  const size = Math.abs(value);
  for (const [power, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= power) return `${Number((value / power).toPrecision(3))}${letter}`;
  }
  return size && size < 1e-3 ? value.toExponential(0).replace("e-", "e−") : String(Number(value.toPrecision(3)));
}

// Lines and numbers of both axes. `box` has left, right, top and bottom.
function axes(box, x, y) {
  const parts = [];
  for (const value of y.ticks) {
    parts.push(drawn("line", { class: "grid", x1: box.left, x2: box.right, y1: y.at(value), y2: y.at(value) }));
    parts.push(drawn("text", { class: "axis", x: box.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, shortNumber(value)));
  }
  for (const value of x.ticks) {
    const at = x.at(value);
    const anchor = at > box.right - 14 ? "end" : at < box.left + 8 ? "start" : "middle";
    parts.push(drawn("text", { class: "axis", x: at, y: box.bottom + 16, "text-anchor": anchor }, shortNumber(value)));
  }
  parts.push(drawn("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  return parts;
}

function leftMargin(y) {
  return 14 + 6.6 * Math.max(2, ...y.ticks.map((value) => shortNumber(value).length));
}

// Moves a marker over a chart's points by pointer, touch or arrow keys; Enter or a click selects.
function cursor(svg, size, nearest, show, pick) {
  let place = null;
  const go = (next) => {
    place = next === null ? null : Math.max(0, Math.min(size - 1, next));
    show(place);
  };
  const from = (event) => {
    const box = svg.getBoundingClientRect();
    const factor = svg.viewBox.baseVal.width / box.width;
    return nearest((event.clientX - box.left) * factor, (event.clientY - box.top) * factor);
  };
  svg.addEventListener("pointermove", (event) => go(from(event)));
  svg.addEventListener("pointerleave", () => go(null));
  svg.addEventListener("blur", () => go(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
    if (step) { event.preventDefault(); go(place === null ? (step > 0 ? 0 : size - 1) : place + step); }
    else if (event.key === "Enter" && pick && place !== null) { event.preventDefault(); pick(place); }
  });
  if (pick) svg.addEventListener("click", (event) => { const found = from(event); if (found !== null) pick(found); });
}
