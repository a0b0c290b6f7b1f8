// A sweep: history, parallel coordinates, importance, slices, and the table of trials.

const data = JSON.parse(document.getElementById("data").textContent);
const metric = data.metrics[0], lower = metric.mode === "min";
const valued = data.trials.filter((trial) => trial.value !== null);
const complete = valued.filter((trial) => trial.state === "complete");

function isBest(trial) {
  return data.best.includes(trial.number);
}

function better(one, other) {
  return lower ? one < other : one > other;
}

function trialTitle(trial) {
  const values = Object.entries(trial.values).map(([key, value]) => `${key}=${plain(value)}`).join("  ");
  return drawn("title", {}, `trial ${trial.number}, ${trial.state}: ${metric.name} ${number(trial.value)}\n${values}`);
}

function plain(value) {
  return typeof value === "number" ? number(value) : value === null ? "null" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function pointOf(trial, x, y) {
  const kind = isBest(trial) ? " best" : trial.state === "pruned" ? " pruned" : "";
  return drawn("circle", { class: `point${kind}`, cx: x, cy: y, r: isBest(trial) ? 4.5 : 3.2, "data-trial": trial.number }, trialTitle(trial));
}

function valueScale(box) {
  const values = valued.map((trial) => trial.value);
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  return scale(low, high, box.bottom - 4, box.top + 4, low > 0 && high / low > 50, 4);
}

// ---- sections ----

function summarySection() {
  const states = (name) => data.trials.filter((trial) => trial.state === name).length;
  const best = data.trials.find(isBest);
  const figures = [
    ["best", best && best.value !== null ? number(best.value) : MISSING, best ? `trial ${best.number}: ${metric.name}, ${lower ? "lower" : "higher"} is better` : "none yet"],
    ["trials", `${states("complete") + states("pruned") + states("fail")} of ${data.wanted}`, data.running ? "running; this page reloads itself" : "nothing runs"],
    ["pruned", number(states("pruned")), `${count(data.stepsSaved, "step")} saved`],
    ["failed", number(states("fail")), states("fail") ? "the table has the reasons" : ""],
  ];
  return section("summary", "Summary", element("ul", { class: "figures small" }, figures.map(([name, value, note]) =>
    element("li", { class: "card", "data-figure": name }, element("span", { class: "name" }, name), element("span", { class: "big" }, value), element("span", { class: "muted" }, note)))),
    data.front.length > 1 ? element("p", { class: "note" }, `${count(data.front.length, "trial")} on the front of the best: ${data.front.join(", ")}.`) : null,
    best ? element("pre", { class: "card values" }, Object.entries(best.values).map(([key, value]) => `${key}=${plain(value)}`).join("\n")) : null);
}

function historySection() {
  if (!valued.length) return null;
  return section("history", "History", element("figure", { class: "card" }, element("figcaption", {}, `${spaced(metric.name)} by trial; the line is the best so far`),
    chart(260, (width, height) => {
      const box = { left: 0, right: width - 8, top: 8, bottom: height - 36 };
      const y = valueScale(box);
      box.left = leftMargin(y);
      const x = scale(0, Math.max(1, ...data.trials.map((trial) => trial.number)), box.left + 6, box.right - 6, false, width / 90);
      x.ticks = x.ticks.filter(Number.isInteger);
      let path = "", held = null;
      for (const trial of complete) {
        if (held === null) { held = trial.value; path = `M${x.at(trial.number)} ${y.at(held)}`; continue; }
        path += `L${x.at(trial.number)} ${y.at(held)}`;
        if (better(trial.value, held)) { held = trial.value; path += `L${x.at(trial.number)} ${y.at(held)}`; }
      }
      return canvas(width, height, `${metric.name} of ${count(valued.length, "trial")}; the best is ${number(held)}.`, axes(box, x, y),
        drawn("text", { class: "axis", x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, "trial"),
        drawn("path", { class: "front", d: path }), valued.map((trial) => pointOf(trial, x.at(trial.number), y.at(trial.value))));
    })));
}

// A scale for the values of a key: numbers as they are, anything else as names.
function keyScale(key, from, to, wanted) {
  if (key.kind !== "categorical") {
    const line = scale(key.low, key.high, from, to, key.log, wanted);
    return { at: line.at, marks: line.ticks.map((tick) => [line.at(tick), shortNumber(tick)]) };
  }
  const names = key.choices.map(plain), room = (to - from) / names.length;
  const at = (value) => from + room * (names.indexOf(plain(value)) + 0.5);
  return { at, marks: names.map((name, place) => [from + room * (place + 0.5), name]) };
}

function parallelSection() {
  if (!valued.length || data.keys.length < 2) return null;
  return section("parallel", "Parallel coordinates", element("figure", { class: "card" }, element("figcaption", {}, "one line per trial, the best in orange"),
    chart(300, (width, height) => {
      const top = 34, bottom = height - 14, columns = [...data.keys.map((key) => ({ name: key.key, scale: keyScale(key, bottom, top, 5), of: (trial) => trial.values[key.key] })),
        { name: metric.name, scale: { ...valueScale({ bottom, top }), marks: [] }, of: (trial) => trial.value }];
      const last = columns[columns.length - 1];
      last.scale.marks = last.scale.ticks.map((tick) => [last.scale.at(tick), shortNumber(tick)]);
      const x = (place) => 46 + place * (width - 120) / (columns.length - 1);
      const lines = valued.slice(-1500).sort((a, b) => isBest(a) - isBest(b)).map((trial) => {
        const points = columns.map((column, place) => [x(place), column.of(trial) === undefined ? null : column.scale.at(column.of(trial))]).filter(([, y]) => y !== null);
        return drawn("path", { class: `trial${isBest(trial) ? " best" : ""}`, d: points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join(""), "data-trial": trial.number }, trialTitle(trial));
      });
      return canvas(width, height, `Values of ${count(valued.length, "trial")} by key.`, lines, columns.flatMap((column, place) => [
        drawn("line", { class: "base", x1: x(place), x2: x(place), y1: top, y2: bottom }),
        drawn("text", { class: "axis name", x: x(place), y: place % 2 ? 26 : 12, "text-anchor": place ? (place === columns.length - 1 ? "end" : "middle") : "start" }, short(column.name)),
        column.scale.marks.map(([at, text]) => drawn("text", { class: "axis", x: x(place) + 5, y: at + 4 }, text))].flat()));
    })));
}

function short(key) {
  return key.split(".").slice(-2).join(".");
}

function importanceSection() {
  if (!data.importance.length) return null;
  const height = 26 * data.importance.length + 34;
  return section("importance", "Importance", element("p", { class: "muted" },
    `The share of the variance of the trials' ranks that a key explains by itself. The bar is the mean of ${data.resamples} random halves of the trials, the line reaches from their 10th to their 90th percentile: where lines overlap, the order is not known.`),
  element("figure", { class: "card" }, chart(height, (width) => {
    const left = Math.min(260, 12 + 7 * Math.max(...data.importance.map((one) => short(one.key).length)));
    const x = scale(0, 1, left, width - 14, false, 5);
    return canvas(width, height, data.importance.map((one) => `${one.key}: ${percent(one.mean)}`).join(", "),
      x.ticks.flatMap((tick) => [drawn("line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: 0, y2: height - 20 }),
        drawn("text", { class: "axis", x: x.at(tick), y: height - 6, "text-anchor": tick === 1 ? "end" : "middle" }, percent(tick))]),
      data.importance.flatMap((one, place) => {
        const y = 8 + 26 * place;
        return [drawn("text", { class: "axis name", x: left - 8, y: y + 13, "text-anchor": "end" }, short(one.key)),
          drawn("rect", { class: "bar", x: left, y: y + 2, width: Math.max(1, x.at(one.mean) - left), height: 15, "data-key": one.key }, drawn("title", {}, `${one.key}: ${percent(one.mean)}, ${percent(one.low)} to ${percent(one.high)}`)),
          drawn("line", { class: "whisker", x1: x.at(one.low), x2: x.at(one.high), y1: y + 9.5, y2: y + 9.5 })];
      }));
  })));
}

function slicesSection() {
  if (!valued.length) return null;
  return section("slices", "Slices", element("div", { class: "charts" }, data.keys.map((key) => element("figure", { class: "card" }, element("figcaption", { title: key.key }, short(key.key)),
    chart(190, (width, height) => {
      const box = { left: 0, right: width - 8, top: 8, bottom: height - 24 };
      const y = valueScale(box);
      box.left = leftMargin(y);
      const x = keyScale(key, box.left + 8, box.right - 8, width / 90);
      const having = valued.filter((trial) => trial.values[key.key] !== undefined);
      return canvas(width, height, `${metric.name} by ${key.key}`, axes(box, { ticks: [], at: x.at }, y),
        x.marks.map(([at, text]) => drawn("text", { class: "axis", x: at, y: box.bottom + 16, "text-anchor": "middle" }, text)),
        having.map((trial) => pointOf(trial, x.at(trial.values[key.key]), y.at(trial.value))));
    })))));
}

function tableSection() {
  const columns = [["trial", (trial) => trial.number], ["state", (trial) => trial.state],
    ...data.metrics.map((one, place) => [one.name, (trial) => (trial.results[place] ?? null)]),
    ...data.keys.map((key) => [short(key.key), (trial) => trial.values[key.key] ?? null]),
    ["steps", (trial) => trial.steps || null], ["seconds", (trial) => trial.seconds], ["note", (trial) => trial.note]];
  let by = 0, down = false;
  const compare = (a, b) => a === b ? 0 : a === null || a === undefined ? 1 : b === null || b === undefined ? -1 : (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))) * (down ? -1 : 1);
  return section("trials", "Trials", redrawn((again) => {
    const rows = [...data.trials].sort((a, b) => compare(columns[by][1](a), columns[by][1](b)) || a.number - b.number);
    const heads = columns.map(([name], place) => element("th", { "aria-sort": place === by ? (down ? "descending" : "ascending") : null },
      button(name, () => { down = place === by ? !down : false; by = place; again(); })));
    const cells = (trial) => columns.map(([name, of], place) => {
      const value = of(trial);
      if (place === 0) return element("td", {}, trial.link ? element("a", { href: trial.link }, String(trial.number)) : String(trial.number));
      return element("td", name === "note" ? { class: "reason" } : {}, value === null || value === undefined || value === "" ? MISSING : plain(value));
    });
    return element("div", { class: "scroller limited" }, element("table", { class: "trials" }, element("thead", {}, element("tr", {}, heads)),
      element("tbody", {}, rows.slice(0, 3000).map((trial) => element("tr", { class: isBest(trial) ? "best" : "", "data-trial": trial.number }, cells(trial))))));
  }));
}

function start() {
  const main = element("main", {}, [summarySection, historySection, parallelSection, importanceSection, slicesSection, tableSection].map((make) => make()));
  const links = [...main.querySelectorAll("section")].map((part) => element("a", { href: `#${part.id}` }, part.querySelector("h2").textContent));
  document.body.append(element("header", {}, element("h1", {}, data.title),
    element("p", { class: "origin muted" }, data.facts.map(([name, value]) => element("span", {}, `${name} `, element("b", {}, value))))),
  element("nav", { "aria-label": "Sections" }, element("div", { class: "links" }, links)), main,
  element("footer", {}, "Made by everstep; this file holds all that it shows."));
}

start();
