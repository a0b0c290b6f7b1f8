// The changes between two runs, sample by sample.

const MOST_CHANGES = 24;

function comparisonSection() {
  if (!data.comparisons.length) return null;
  const chosen = { pair: 0, metric: 0, pictured: data.runs.some((run) => run.splits.some((split) => split.samples.some(hasPictures))) };
  const body = redrawn((again) => {
    const pair = data.comparisons[chosen.pair];
    const pairs = data.comparisons.map((one, place) => [String(place), `${data.runs[one.run].name}, ${one.split}`]);
    const metrics = pair.metrics.map((metric, place) => [String(place), spaced(metric.name)]);
    const metric = pair.metrics[chosen.metric];
    return [
      element("div", { class: "controls" },
        pairs.length > 1 ? choice("Run and data", pairs, String(chosen.pair), (value) => { chosen.pair = Number(value); chosen.metric = 0; again(); }) : null,
        metrics.length > 1 ? choice("Metric", metrics, String(chosen.metric), (value) => { chosen.metric = Number(value); again(); }) : null,
        tickbox("with pictures only", chosen.pictured, (value) => { chosen.pictured = value; again(); })),
      joinedNote(pair),
      metric ? changeNote(metric, pair) : element("p", { class: "note" }, "The two have no metric in common."),
      metric ? element("div", { class: "sides" }, side("Got worse", metric.worsened, pair, metric, chosen.pictured), side("Got better", metric.improved, pair, metric, chosen.pictured)) : null,
    ];
  });
  return section("changes", "Sample by sample", body);
}

function joinedNote(pair) {
  const parts = [`${count(pair.joined, "sample")} of ${pair.split} in both runs, joined by id`];
  if (pair.only_before) parts.push(`${number(pair.only_before)} only in ${data.runs[0].name}`);
  if (pair.only_after) parts.push(`${number(pair.only_after)} only in ${data.runs[pair.run].name}`);
  if (pair.repeated) parts.push(`${count(pair.repeated, "id")} left out because they repeat`);
  return element("p", { class: "muted" }, `${parts.join("; ")}.`);
}

function changeNote(metric, pair) {
  const { improved, worsened } = metric.counts;
  const answers = "corrected" in pair ? ` ${count(pair.corrected, "wrong answer")} became right, ${count(pair.broken, "right one")} became wrong.` : "";
  return element("p", {}, `Mean ${spaced(metric.name)} ${number(metric.before)} → ${number(metric.after)} `,
    element("b", { class: verdict(metric.after - metric.before, metric.better || "lower") }, signed(metric.after - metric.before)),
    `: ${number(improved)} better, ${number(worsened)} worse, ${number(pair.joined - improved - worsened)} the same.${answers}`);
}

function side(title, changes, pair, metric, pictured) {
  const split = data.runs[pair.run].splits.find((one) => one.split === pair.split);
  const base = data.runs[0].splits.find((one) => one.split === pair.split);
  const cards = changes.map((change) => [change, sampleOf(split, change.row) || byId(base).get(change.id) || { id: change.id }])
    .filter(([, sample]) => !pictured || hasPictures(sample)).slice(0, MOST_CHANGES);
  const none = changes.length ? "Of these no pictures were kept." : "None.";
  return element("div", {}, element("h3", {}, title),
    cards.length ? element("div", { class: "gallery" }, cards.map(([change, sample]) => changeCard(split, sample, change, metric))) : element("p", { class: "note" }, none));
}

function byId(split) {
  if (!split.samplesById) split.samplesById = new Map(split.samples.map((sample) => [sample.id, sample]));
  return split.samplesById;
}

function changeCard(split, sample, change, metric) {
  const said = change.prediction === null || change.prediction === undefined ? null
    : element("span", { class: "outcome" }, ...answers(split, change));
  return button([pictures(sample), element("span", { class: "id" }, change.id), said,
    element("span", { class: "muted" }, `${number(change.before, 3)} → ${number(change.after, 3)} `,
      element("b", { class: verdict(change.after - change.before, metric.better || "lower") }, signed(change.after - change.before)))],
  () => openSample(split, change.row, { ...sample, label: change.label, prediction: change.prediction, values: { [metric.name]: change.after } }), { class: "sample", "aria-label": `Sample ${change.id}` });
}

function answers(split, change) {
  const name = (value) => (split.kind === "classification" ? className(split, value) : split.kind === "text" ? value : number(value));
  const judged = (value) => element("b", { class: split.kind !== "classification" ? "" : value === change.label ? "good" : "bad" }, name(value));
  return [`${name(change.label)}: `, judged(change.prediction_before), " → ", judged(change.prediction)];
}
