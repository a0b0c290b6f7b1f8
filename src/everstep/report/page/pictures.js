// Shows a sample as a picture, a text, or some numbers; for masks as input, target and output.

function pictures(sample) {
  const parts = [["input", sample.input], ["target", sample.target], ["output", sample.output]].filter(([, part]) => part && Object.keys(part).length);
  if (!parts.length) return element("div", { class: "pictures none" }, "no picture kept");
  return element("div", { class: parts.length > 1 ? "pictures several" : "pictures" },
    parts.map(([name, part]) => element("figure", {}, picture(part, `${name} of ${sample.id}`),
      parts.length > 1 ? element("figcaption", {}, name) : null)));
}

function picture(part, name) {
  if (typeof part.image === "string" && part.image.startsWith("data:image/")) return element("img", { src: part.image, alt: name });
  if (typeof part.text === "string") return element("blockquote", {}, part.text);
  return values(part.values || []);
}

function values(numbers) {
  if (numbers.length <= 8) return element("div", { class: "values" }, numbers.map((value) => element("span", {}, number(value, 3))));
  const known = numbers.filter((value) => value !== null);
  if (!known.length) return element("div", { class: "values" }, MISSING);
  const y = scale(...extent(known), 56, 4, false, 2);
  const path = numbers.map((value, i) => (value === null ? "" : `${i && numbers[i - 1] !== null ? "L" : "M"}${(4 + 112 * i / (numbers.length - 1)).toFixed(1)} ${y.at(value).toFixed(1)}`)).join("");
  return drawn("svg", { class: "spark", viewBox: "0 0 120 60", role: "img", "aria-label": `${numbers.length} numbers from ${number(y.low)} to ${number(y.high)}` }, drawn("path", { class: "line run0", d: path }));
}

// Label and prediction in a line: "4 → 9", red where they differ.
function outcome(split, label, prediction) {
  if (label === null || label === undefined || prediction === null || prediction === undefined) return null;
  const name = (value) => (split.kind === "classification" ? className(split, value) : number(value));
  if (split.kind === "classification" && label === prediction) return element("span", { class: "outcome" }, name(label));
  return element("span", { class: "outcome" }, name(label), " → ",
    element("b", { class: split.kind === "classification" ? "bad" : "" }, name(prediction)));
}

function hasPictures(sample) {
  return Boolean(sample.input || sample.target || sample.output);
}
