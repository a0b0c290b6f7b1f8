// The headline figures and the facts about the run.

function headlineSection() {
  const several = data.runs.length > 1;
  const notes = data.runs.flatMap((run) => run.notes.map((note) => element("p", { class: "note warn" }, several ? `${run.name}: ${note}` : note)));
  return section("summary", several ? "Side by side" : "Summary", notes, several ? figuresCompared() : figures(data.runs[0]), several ? factsCompared() : facts(data.runs[0]));
}

// One card for each metric: the first split large, the others below it.
function figures(run) {
  if (!run.headline.length) return element("p", { class: "note" }, "Nothing was measured yet.");
  const names = [...new Set(run.headline.map((figure) => figure.name))];
  return element("ul", { class: "figures" }, names.map((name) => {
    const [first, ...others] = run.headline.filter((figure) => figure.name === name);
    return element("li", { class: "card", title: first.source },
      element("span", { class: "name" }, spaced(name)),
      element("span", {}, element("b", { class: "big" }, number(first.value)), " ", element("span", { class: "muted" }, first.split)),
      first.mark ? element("span", { class: "muted" }, first.mark) : null,
      others.map((figure) => element("span", { title: [figure.source, figure.mark].filter(Boolean).join("; ") }, element("b", {}, number(figure.value)), " ", element("span", { class: "muted" }, figure.split))));
  }));
}

function facts(run) {
  if (!run.facts.length) return null;
  return element("dl", { class: "facts" }, run.facts.map((fact) =>
    element("div", { title: fact.detail }, element("dt", {}, fact.name), element("dd", { class: fact.name === "status" ? `status ${statusClass(fact.value)}` : "" }, fact.value))));
}

function statusClass(status) {
  return { finished: "good", failed: "bad" }[status] || "";
}

function runName(place) {
  return [element("i", { class: `swatch run${place % COLOURS}`, "aria-hidden": "true" }), data.runs[place].name];
}

function figuresCompared() {
  const keys = new Map();
  data.runs.forEach((run, place) => run.headline.forEach((figure) => {
    const key = JSON.stringify([figure.split, figure.name]);
    if (!keys.has(key)) keys.set(key, { figure, values: data.runs.map(() => undefined), marks: data.runs.map(() => "") });
    keys.get(key).values[place] = figure.value;
    keys.get(key).marks[place] = figure.mark;
  }));
  const rows = [...keys.values()].map(({ figure, values, marks }) => element("tr", {},
    element("th", { scope: "row" }, spaced(figure.name), " ", element("span", { class: "muted" }, figure.split)),
    values.map((value, place) => element("td", { title: marks[place] || null }, element("b", { class: "figure" }, number(value)), place ? difference(value, values[0], figure.better) : null, marks[place] ? element("span", { class: "muted" }, ` ${marks[place]}`) : null))));
  return element("div", { class: "scroller" }, element("table", { class: "plain-table compared" },
    element("caption", { class: "hidden" }, "Metrics of the runs"),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "metric"), data.runs.map((run, place) => element("th", { scope: "col" }, runName(place))))),
    element("tbody", {}, rows)));
}

function difference(value, base, better) {
  if (value === null || value === undefined || base === null || base === undefined) return null;
  return element("span", { class: `difference ${verdict(value - base, better)}` }, signed(value - base));
}

function factsCompared() {
  const names = [...new Set(data.runs.flatMap((run) => [...run.origin, ...run.facts].map((fact) => fact.name)))];
  if (!names.length) return null;
  return element("details", { class: "card more" }, element("summary", {}, "How the runs went"),
    element("div", { class: "scroller" }, element("table", { class: "plain-table" },
      element("thead", {}, element("tr", {}, element("th", {}, ""), data.runs.map((run, place) => element("th", { scope: "col" }, runName(place))))),
      element("tbody", {}, names.map((name) => element("tr", {}, element("th", { scope: "row" }, name), data.runs.map((run) => {
        const fact = [...run.origin, ...run.facts].find((one) => one.name === name);
        return element("td", { title: fact ? fact.detail : null }, fact ? fact.value : MISSING);
      })))))));
}
