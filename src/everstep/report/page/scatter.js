// A scatter plot with a reference line.
//   { title, xName, yName, points: [[x, y, row]], line: "diagonal" or "zero", describe(row) }; `pick(row)` opens one.

function scatter(options, pick) {
  const rest = options.note;
  const reading = element("div", { class: "legend" }, rest);
  const frame = chart(300, (width, height) => pointsDrawn(options, width, height, (place) => {
    reading.textContent = place === null ? rest : options.describe(options.points[place]);
  }, pick), { class: "chart picking" });
  return element("figure", { class: "card" }, element("figcaption", {}, options.title), frame, reading);
}

function extent(values) {
  return [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
}

function pointsDrawn(options, width, height, say, pick) {
  const [left, right] = extent(options.points.map((point) => point[0]));
  const [low, high] = extent(options.points.map((point) => point[1]));
  const box = { left: 0, right: width - 10, top: 10, bottom: height - 40 };
  const y = scale(low, high, box.bottom - 6, box.top + 6, false, 5);
  box.left = leftMargin(y) + 16;
  const x = scale(left, right, box.left + 6, box.right - 6, false, width / 90);
  const circles = options.points.map(([a, b]) => drawn("circle", { class: "point", cx: x.at(a).toFixed(1), cy: y.at(b).toFixed(1), r: 3 }));
  const svg = canvas(width, height, `${options.title}. The table of samples has the same numbers.`, axes(box, x, y),
    guide(options.line, x, y), circles,
    drawn("text", { class: "axis name", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, options.xName),
    drawn("text", { class: "axis name", transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, options.yName));
  const places = options.points.map(([a, b]) => [x.at(a), y.at(b)]);
  let active = null;
  cursor(svg, places.length, (a, b) => nearestPoint(places, a, b), (place) => {
    if (active) { active.classList.remove("active"); active.setAttribute("r", 3); }
    active = place === null ? null : circles[place];
    if (active) { active.classList.add("active"); active.setAttribute("r", 6); }
    say(place);
  }, (place) => pick(options.points[place][2]));
  return svg;
}

function guide(kind, x, y) {
  if (kind === "zero") return y.low <= 0 && y.high >= 0 ? drawn("line", { class: "guide", x1: x.at(x.low), x2: x.at(x.high), y1: y.at(0), y2: y.at(0) }) : null;
  const low = Math.max(x.low, y.low), high = Math.min(x.high, y.high);
  return low < high ? drawn("line", { class: "guide", x1: x.at(low), y1: y.at(low), x2: x.at(high), y2: y.at(high) }) : null;
}

function nearestPoint(places, a, b) {
  let best = null, distance = 30 ** 2;
  places.forEach(([x, y], i) => { const d = (x - a) ** 2 + (y - b) ** 2; if (d < distance) { distance = d; best = i; } });
  return best;
}
