// Regression: predictions against labels, and residuals.

const MOST_DRAWN = 2000;

function regressionSection(split) {
  const columns = columnsOf(split);
  if (split.kind !== "regression" || !columns.has("label") || !columns.has("prediction") || !split.residuals) return null;
  const label = columns.get("label").values, prediction = columns.get("prediction").values;
  const places = drawnPlaces(label.map((value, place) => place).filter((place) => label[place] !== null && prediction[place] !== null && Number.isFinite(prediction[place] - label[place])));
  const note = places.length < split.rows ? `${number(places.length)} of ${count(split.rows, "sample")}` : count(places.length, "sample");
  const describe = ([x, y, row]) => `${columns.get("id").values[placeOf(split, row)]}: ${number(x)}, ${number(y)}`;
  const open = (row) => openSample(split, row);
  const { residuals } = split;
  return section("regression", "Predictions",
    element("ul", { class: "figures small" }, [["R²", residuals.r2], ["mean error", residuals.bias], ["mean absolute error", residuals.mae], ["root mean squared error", residuals.rmse]]
      .map(([name, value]) => element("li", { class: "card" }, element("span", { class: "big" }, number(value)), element("span", { class: "name" }, name)))),
    element("div", { class: "charts wide" },
      scatter({ title: "Prediction by label", xName: "label", yName: "prediction", line: "diagonal", note, describe, points: places.map((p) => [label[p], prediction[p], rowAt(split, p)]) }, open),
      scatter({ title: "Residual by prediction", xName: "prediction", yName: "prediction − label", line: "zero", note, describe, points: places.map((p) => [prediction[p], prediction[p] - label[p], rowAt(split, p)]) }, open)),
    histogram({ title: "Residuals: prediction − label", edges: residuals.histogram.edges, counts: residuals.histogram.counts, mean: residuals.bias }));
}

function drawnPlaces(places) {
  if (places.length <= MOST_DRAWN) return places;
  return Array.from({ length: MOST_DRAWN }, (_, i) => places[Math.floor(i * places.length / MOST_DRAWN)]);
}
