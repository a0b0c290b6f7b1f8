// The table of runs: filtered by words, sorted by any column, ticked to see curves.

const MOST_METRICS = 6;

// The last value of every metric that a run has, the most frequent first, those of validation before those of training.
function metricColumns(runs) {
  const found = new Map();
  for (const run of runs) for (const name of Object.keys(run.metrics)) found.set(name, (found.get(name) || 0) + 1);
  const rank = (name) => (name.startsWith("validation ") ? 0 : 1);
  return [...found.keys()].sort((a, b) => rank(a) - rank(b) || found.get(b) - found.get(a)).slice(0, MOST_METRICS);
}

function columnsOfRuns(runs) {
  const differs = (key) => new Set(runs.map((run) => run[key])).size > 1;
  return [
    { key: "name", title: "run", text: true, value: (run) => run.name },
    { key: "state", title: "state", text: true, value: (run) => run.state, cell: stateCell },
    { key: "progress", title: "steps", value: (run) => run.step, cell: progressCell },
    { key: "seen", title: "active", value: (run) => run.seen, cell: (run) => ago(run.seen) },
    ...metricColumns(runs).map((name) => ({
      key: name, title: metricTitle(name), metric: name, better: runs.find((run) => name in run.metrics).metrics[name].better,
      value: (run) => (name in run.metrics ? run.metrics[name].value : null),
      cell: (run) => (name in run.metrics ? metricCell(run.metrics[name]) : MISSING),
    })),
    ...["experiment", "backend"].filter(differs).map((key) => ({ key, title: key, text: true, value: (run) => run[key], cell: (run) => run[key] || MISSING })),
    ...(runs.some((run) => run.attempts > 1) ? [{ key: "attempts", title: "attempts", value: (run) => run.attempts }] : []),
  ];
}

// A value of weights from an earlier epoch says on hovering which one, and has a mark.
function metricCell(metric) {
  return metric.of ? element("span", { title: metric.of }, `${number(metric.value)} ⚑`) : number(metric.value);
}

function metricTitle(name) {
  const [kind, ...words] = name.split(" ");
  return kind === "validation" ? `val ${spaced(words.join(" "))}` : spaced(words.join(" "));
}

function stateCell(run) {
  const kind = run.state.split(" ")[0];
  const known = { starting: "running", restarting: "running", exporting: "running", evaluating: "running", trained: "finished" }[kind] || kind;
  const left = run.left === null ? "" : `, ${lasting(run.left)} left`;
  return element("span", { class: `state ${known}`, title: run.reason }, run.state, left ? element("span", { class: "muted" }, left) : null);
}

function progressCell(run) {
  if (!run.total) return number(run.step);
  const share = Math.min(1, run.step / run.total);
  if (share >= 1) return number(run.step);
  return element("span", { class: "progress" }, `${number(run.step)} / ${number(run.total)}`, drawn("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, drawn("rect", { width: 100 * share, height: 6 })));
}

function lasting(seconds) {
  for (const [least, unit, name] of [[172800, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"]]) {
    if (seconds >= least) return `${Math.round(seconds / unit)} ${name}`;
  }
  return `${Math.round(seconds)} s`;
}

function ago(seen) {
  return seen === null ? MISSING : `${lasting(Math.max(0, Date.now() / 1000 - seen))} ago`;
}

// Every word has to occur: in the name, the state, the experiment or the backend.
function passes(run, words) {
  const text = [run.name, run.state, run.experiment, run.backend].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function ordered(runs, columns, sorting) {
  const column = columns.find((one) => one.key === sorting.key) || columns[0];
  const sign = sorting.descending ? -1 : 1;
  const missing = (value) => value === null || value === undefined;
  return [...runs].sort((a, b) => {
    const one = column.value(a), other = column.value(b);
    if (missing(one) || missing(other)) return missing(one) - missing(other);
    return sign * (column.text ? one.localeCompare(other, "en", { numeric: true }) : one - other);
  });
}

class RunsTable {
  // `chosen` maps the names of ticked runs to their colours; `changed` is called when the user ticks or sorts.
  constructor(chosen, sorting, changed) {
    this.chosen = chosen;
    this.sorting = sorting;
    this.changed = changed;
    this.lines = new Map();
    this.head = element("thead");
    this.body = element("tbody");
    this.box = element("div", { class: "scroller runs-scroller", role: "region", "aria-label": "Table of runs", tabindex: "0" },
      element("table", { class: "runs" }, element("caption", { class: "hidden" }, "Runs"), this.head, this.body));
  }

  // Shows runs; rows that are as before stay, and keep their focus.
  show(runs, words) {
    const columns = columnsOfRuns(runs);
    const shown = ordered(runs.filter((run) => passes(run, words)), columns, this.sorting);
    const layout = columns.map((column) => column.key).join("\n"), head = JSON.stringify([layout, this.sorting]);
    if (head !== this.shownHead) this.paintHead(columns);
    const bests = new Map(columns.filter((column) => column.metric).map((column) => [column.key, best(shown, column)]));
    const kept = new Map();
    for (const run of shown) {
      const stamp = JSON.stringify([layout, run, this.chosen.get(run.name), columns.map((column) => bests.has(column.key) && bests.get(column.key) === column.value(run)), ago(run.seen)]);
      const before = this.lines.get(run.name);
      kept.set(run.name, before && before.stamp === stamp ? before : { stamp, row: this.row(run, columns, bests) });
    }
    this.shownHead = head;
    this.lines = kept;
    const rows = [...kept.values()].map((line) => line.row);
    if (rows.length !== this.body.children.length || rows.some((row, place) => row !== this.body.children[place])) this.replace(rows);
    return shown.length;
  }

  replace(rows) {
    const focus = document.activeElement, inside = this.body.contains(focus);
    const run = inside && focus.closest("tr").dataset.run, tag = inside && focus.tagName;
    this.body.replaceChildren(...rows);
    const again = run && rows.find((row) => row.dataset.run === run);
    if (again) again.querySelector(tag).focus({ preventScroll: true });
  }

  paintHead(columns) {
    const sort = (column) => {
      const same = this.sorting.key === column.key;
      this.sorting.descending = same ? !this.sorting.descending : !column.text && column.better !== "lower"; // the best first
      this.sorting.key = column.key;
      this.changed();
      this.head.querySelectorAll("button")[columns.indexOf(column)].focus();
    };
    const mark = (column) => (this.sorting.key !== column.key ? "" : this.sorting.descending ? "▼" : "▲");
    const order = (column) => (this.sorting.key !== column.key ? "none" : this.sorting.descending ? "descending" : "ascending");
    this.head.replaceChildren(element("tr", {}, element("th", { class: "pick" }, element("span", { class: "hidden" }, "shown below")),
      columns.map((column) => element("th", { scope: "col", class: column.text ? "text" : null, "aria-sort": order(column) },
        button([column.title, element("span", { class: "sort-mark" }, mark(column))], () => sort(column), { class: "sort", title: column.metric || column.title })))));
  }

  row(run, columns, bests) {
    const colour = this.chosen.get(run.name), isChosen = colour !== undefined;
    const tick = element("input", { type: "checkbox", checked: isChosen, "aria-label": `Show ${run.name}`, onchange: () => this.changed(run.name, tick.checked) });
    const cells = columns.map((column) => {
      if (column.key === "name") return element("th", { scope: "row", title: run.name }, element("a", { href: reportOf([run.name]), target: "_blank", rel: "noopener" }, run.name));
      const text = column.cell ? column.cell(run) : column.value(run);
      const wins = bests.has(column.key) && bests.get(column.key) !== null && bests.get(column.key) === column.value(run);
      return element("td", { class: [column.text ? "text cut" : "", wins ? "best" : ""].join(" ").trim() || null }, wins ? element("b", {}, text) : text);
    });
    return element("tr", { "data-run": run.name, class: isChosen ? "chosen" : null },
      element("td", { class: "pick" }, element("span", {}, tick, element("i", { class: isChosen ? `run${colour}` : "none", "aria-hidden": "true" }))), cells);
  }
}

// The best value of a column, where it is known which values are good and more than one run has one.
function best(runs, column) {
  const known = runs.filter((run) => column.value(run) !== null && column.value(run) !== undefined);
  if (known.length < 2 || !column.better) return null;
  const pick = column.better === "higher" ? (a, b) => Math.max(a, b) : (a, b) => Math.min(a, b);
  return known.map((run) => column.value(run)).reduce(pick);
}

function reportOf(names) {
  return `report?${queryOf(names)}`;
}

function queryOf(names) {
  return names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
}
