// The number of samples in each bin.
//   { title, note, edges, counts, mean, logarithmic }; `pick(low, high, last)` is called for a bar.

function histogram(options, pick) {
  const total = options.counts.reduce((a, b) => a + b, 0);
  const rest = options.note || count(total, "sample");
  const reading = element("div", { class: "legend" }, rest);
  const say = (place) => {
    reading.textContent = place === null ? rest
      : `${interval(options.edges[place], options.edges[place + 1])}: ${count(options.counts[place], "sample")} (${percent(options.counts[place] / total)})`;
  };
  const frame = chart(150, (width, height) => bars(options, width, height, say, pick), { class: pick ? "chart picking" : "chart" });
  return element("figure", { class: "card" }, element("figcaption", {}, spaced(options.title)), frame, reading);
}

function bars(options, width, height, say, pick) {
  const { edges, counts } = options;
  const most = Math.max(1, ...counts);
  const box = { left: 0, right: width - 8, top: 8, bottom: height - 24 };
  const y = options.logarithmic ? scale(0.7, Math.max(2, most), box.bottom, box.top, true) : scale(0, most, box.bottom, box.top, false, 3);
  box.left = leftMargin(y);
  const x = scale(edges[0], edges[edges.length - 1], box.left, box.right, false, width / 80);
  const wide = Math.max(1, (box.right - box.left) / counts.length - 1);
  const rects = counts.map((size, i) => {
    const top = size ? Math.min(y.at(size), box.bottom - 1.5) : box.bottom;
    return drawn("rect", { class: "bar", x: x.at(edges[i]) + 0.5, width: wide, y: top, height: box.bottom - top });
  });
  const svg = canvas(width, height, `Distribution of ${spaced(options.title)}. Arrow keys read the bars${pick ? ", Enter shows their samples" : ""}.`,
    axes(box, x, y), rects, meanLine(options.mean, x, box));
  cursor(svg, counts.length,
    (at) => Math.max(0, Math.min(counts.length - 1, Math.floor((at - box.left) / (box.right - box.left) * counts.length))),
    (place) => { rects.forEach((rect, i) => rect.classList.toggle("active", i === place)); say(place); },
    pick && ((place) => { if (counts[place]) pick(edges[place], edges[place + 1], place === counts.length - 1); }));
  return svg;
}

function meanLine(mean, x, box) {
  if (mean === null || mean === undefined) return null;
  return drawn("line", { class: "mean", x1: x.at(mean), x2: x.at(mean), y1: box.top, y2: box.bottom }, drawn("title", {}, `mean ${number(mean)}`));
}
