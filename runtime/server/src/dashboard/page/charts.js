// The curves of latencies and the maps of memory, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "8 3", "2 3", "10 3 2 3", "5 5", "1 4", "12 4", "3 3 8 3"];
const COLOURS = 8;

function node(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const swatches = new Map();

/** The entry of a series in the legend. */
export function swatch(name, at) {
  let kept = swatches.get(name);
  if (!kept || kept.dataset.at !== String(at)) {
    const line = node("line", { x1: 0, x2: 36, y1: 6, y2: 6, "stroke-dasharray": DASHES[at % COLOURS] });
    kept = document.createElement("span");
    kept.dataset.at = at;
    kept.append(node("svg", { class: `swatch c${at % COLOURS}`, viewBox: "0 0 36 12", "aria-hidden": "true" }, line));
    kept.append(` ${at + 1}`);
    swatches.set(name, kept);
  }
  return kept;
}

/**
 * Draws cumulative distributions. `counts` of a series are pairs of the index of a bound and the
 * number of requests. `bounds` are in microseconds.
 */
export function drawCurves(svg, series, bounds) {
  const left = 44, right = 776, top = 10, bottom = 286;
  const used = series.flatMap((one) => one.counts.map(([at]) => at));
  const from = Math.max(0, Math.min(...used, bounds.length - 1) - 1);
  const to = Math.min(bounds.length - 1, Math.max(...used, from + 2));
  const log = (us) => Math.log10(us);
  const x = (us) => left + ((log(us) - log(bounds[from])) / (log(bounds[to]) - log(bounds[from]))) * (right - left);
  const y = (part) => bottom - part * (bottom - top);
  const drawn = [];
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    drawn.push(node("line", { class: "axis", x1: left, x2: right, y1: y(part), y2: y(part) }));
    drawn.push(node("text", { x: left - 6, y: y(part) + 4, "text-anchor": "end" }, `${part * 100} %`));
  }
  for (let power = Math.ceil(log(bounds[from])); power <= log(bounds[to]); power += 1) {
    const at = x(10 ** power);
    const name = power < 3 ? `${10 ** power} µs` : power < 6 ? `${10 ** (power - 3)} ms` : `${10 ** (power - 6)} s`;
    drawn.push(node("line", { class: "axis", x1: at, x2: at, y1: top, y2: bottom }));
    drawn.push(node("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, name));
  }
  series.forEach(({ counts, total }, at) => {
    let sum = 0;
    const first = counts[0][0];
    const points = [`${x(bounds[Math.max(first - 1, from)])},${y(0)}`];
    for (const [bucket, count] of counts) {
      sum += count;
      points.push(`${x(bounds[Math.min(bucket, to)])},${y(sum / total)}`);
    }
    points.push(`${right},${y(1)}`);
    const style = `c${at % COLOURS}`;
    const dash = { "stroke-dasharray": DASHES[at % COLOURS] };
    drawn.push(node("polyline", { class: `curve ${style}`, points: points.join(" "), ...dash }));
    const median = quantile(counts, total, 0.5);
    const place = x(bounds[Math.min(median, to)]);
    drawn.push(node("text", { class: `label ${style}`, x: place + 4, y: y(0.5) - 4 - 12 * (at % 4) }, `${at + 1}`));
  });
  svg.replaceChildren(...drawn);
}

/** The index of the bound below which this fraction of the requests is. */
export function quantile(counts, total, part) {
  let sum = 0;
  for (const [bucket, count] of counts) {
    sum += count;
    if (sum >= total * part) return bucket;
  }
  return counts.length ? counts[counts.length - 1][0] : 0;
}

const maps = new Map();

/** Draws the memory of a device: `parts` are `[label, bytes, key]`, in order. */
export function drawMemory(parent, device, total, parts, summary) {
  let map = maps.get(device);
  if (!map) {
    const heading = document.createElement("h3");
    const svg = node("svg", { viewBox: "0 0 800 34", role: "img" });
    map = { heading, title: node("title", {}), svg, parts: new Map() };
    map.svg.append(map.title, node("rect", { class: "free", x: 0, y: 4, width: 800, height: 26 }));
    parent.append(heading, map.svg);
    maps.set(device, map);
  }
  if (map.heading.textContent !== summary) {
    map.heading.textContent = summary;
    map.title.textContent = summary;
    map.svg.setAttribute("aria-label", summary);
  }
  let x = 0;
  const seen = new Set();
  parts.forEach(([label, bytes, key]) => {
    seen.add(key);
    let part = map.parts.get(key);
    if (!part) {
      const colour = map.parts.size % COLOURS;
      part = node("rect", { class: `part c${colour}`, y: 4, height: 26 }, node("title", {}));
      map.parts.set(key, part);
      map.svg.append(part);
    }
    part.firstChild.textContent = label;
    const width = total > 0 ? (bytes / total) * 800 : 0;
    part.setAttribute("x", x);
    part.setAttribute("width", width);
    x += width;
  });
  for (const [key, part] of map.parts) {
    if (!seen.has(key)) {
      part.remove();
      map.parts.delete(key);
    }
  }
}
