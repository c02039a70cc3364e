// Bars in a table: a name, a bar of one or more parts, a figure.
import { draw, make } from "./dom.js";

// parts: [{value, css, hatch}] in the unit of top; an unknown figure is a sparse outline.
const bar = (parts, top) => {
  const svg = draw("svg", { width: "100%", height: 16, "aria-hidden": "true" });
  if (parts === null) {
    svg.append(draw("rect", { class: "unknown", x: 0.5, y: 0.5, width: "30%", height: 15, rx: 2 }));
    return svg;
  }
  let at = 0;
  for (const { value, css, hatch } of parts) {
    const width = top > 0 ? (100 * Math.max(value, 0)) / top : 0;
    if (width <= 0) continue;
    const place = { x: `${at}%`, width: `${width}%`, height: "100%" };
    svg.append(draw("rect", { ...place, class: `f-${css}` }));
    if (hatch) svg.append(draw("rect", { ...place, fill: "url(#hatch)" }));
    at += width;
  }
  return svg;
};

export const legend = (items) =>
  make("ul", { class: "legend" }, items.map(({ css, label, hatch }) => {
    const svg = draw("svg", { width: 10, height: 10, "aria-hidden": "true" }, draw("rect", { class: `f-${css}`, width: 10, height: 10 }));
    if (hatch) svg.append(draw("rect", { width: 10, height: 10, fill: "url(#hatch)" }));
    return make("li", {}, svg, label);
  }));

const whole = (parts) => (parts === null ? 0 : parts.reduce((sum, { value }) => sum + Math.max(value, 0), 0));

// rows: [{label (text or node), parts or null, text, small}]
export const bars = (title, rows, { legendOf = [], hint = null } = {}) => {
  const top = Math.max(0, ...rows.map(({ parts }) => whole(parts)));
  const lines = rows.map(({ label, parts, text, small }) =>
    make("tr", {}, make("th", { scope: "row" }, label), make("td", { class: "bar" }, bar(parts, top)),
      make("td", { class: "value" }, text, small ? make("small", {}, small) : null)));
  return make("section", { class: "card chart-card" },
    make("div", { class: "caption" }, make("h2", {}, title), legendOf.length ? legend(legendOf) : null),
    hint ? make("p", { class: "hint" }, hint) : null,
    make("table", { class: "bars" }, make("colgroup", {}, make("col"), make("col"), make("col")), make("tbody", {}, lines)));
};

const known = (value) => value !== null && value !== undefined;

// A figure split as the joules are: measured, modelled.
export const byProvenance = (value, run) => {
  if (!known(value)) return null;
  const modelled = value * (run.modelled_share ?? 0);
  return [{ value: value - modelled, css: "measured" }, { value: modelled, css: "modelled", hatch: true }];
};
export const PROVENANCE = [{ css: "measured", label: "measured" }, { css: "modelled", label: "modelled", hatch: true }];

// Grams of a run or a total; of so many tokens, grams a token.
export const byOrigin = ({ operational_g, embodied_g }, tokens = 1) =>
  known(operational_g) && tokens ? [{ value: operational_g / tokens, css: "carbon" }, { value: (embodied_g ?? 0) / tokens, css: "embodied" }] : null;
export const ORIGIN = [{ css: "carbon", label: "operational" }, { css: "embodied", label: "embodied" }];

const [WIDE, HIGH] = [1000, 100]; // of the drawing, which is stretched over its place
const place = (node, style) => { Object.assign(node.style, style); return node; }; // the page's policy forbids it as text

// A name for about six times between two, at round hours or days.
const HOURS = [0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720];
export const ticks = (t0, t1) => {
  const stepS = 3600 * (HOURS.find((hours) => (t1 - t0) / 3600 / hours <= 7) ?? 1440);
  const out = [];
  for (let t = Math.ceil(t0 / stepS) * stepS; t < t1; t += stepS) {
    const text = new Date(1000 * t).toISOString();
    out.push([(t - t0) / (t1 - t0), t % 86400 ? text.slice(11, 16) : text.slice(5, 10)]);
  }
  return out;
};
export const axis = (edges) => ticks(edges[0], edges[edges.length - 1]).map(([share, text]) => place(make("span", { class: "x" }, text), { left: `${100 * share}%` }));

const path = (edges, values, x, y, closed) => {
  let out = "";
  let open = false;
  values.forEach((value, i) => {
    if (value === null) { open = false; return; }
    const [a, b] = [x(edges[i]).toFixed(2), x(edges[i + 1]).toFixed(2)];
    if (closed) out += `M${a} ${HIGH}V${y(value)}H${b}V${HIGH}Z`;
    else out += `${open ? "V" : `M${a} `}${y(value)}H${b}`;
    open = true;
  });
  return out;
};

// Values by step. series: [{name, css, values (null: none or unknown), area, dashed, hatch}]; arrow keys move through time.
export const stepChart = (title, edges, series, { text, when, hint = null, top: least = 0, nowS = null }) => {
  const [t0, t1, count] = [edges[0], edges[edges.length - 1], edges.length - 1];
  const shown = series.filter(({ values }) => values.some(known));
  const top = 1.08 * Math.max(least, ...shown.flatMap(({ values }) => values.filter(known)), 1e-12);
  const x = (t) => (WIDE * (t - t0)) / (t1 - t0);
  const y = (value) => (HIGH * (1 - value / top)).toFixed(2);
  const svg = draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const share of [0.25, 0.5, 0.75, 1]) svg.append(draw("path", { class: "rule", d: `M0 ${HIGH * (1 - share / 1.08)}H${WIDE}` }));
  for (const { css, values, area, dashed, hatch } of shown) {
    const d = path(edges, values, x, y, area);
    svg.append(draw("path", { d, class: `${area ? "area" : "edge"} f-${css}${dashed ? " dashed" : ""}` }));
    if (hatch) svg.append(draw("path", { d, fill: "url(#hatch)" }));
  }
  const cross = make("i", { class: "cross", hidden: true });
  const plot = make("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": title, "aria-valuemin": 0, "aria-valuemax": count - 1 }, svg, cross,
    [0, 0.5, 1].map((share) => place(make("span", { class: "y" }, text((share * top) / 1.08)), { bottom: `${(100 * share) / 1.08}%` })), axis(edges));
  if (nowS !== null) plot.append(place(make("i", { class: "cross now" }), { left: `${x(nowS) / 10}%` }));
  const told = make("p", { class: "hint told" });
  let at = 0;
  const show = (index, isShown = true) => {
    at = Math.max(0, Math.min(count - 1, index));
    const line = `${when(edges[at])}: ${shown.map(({ name, values }) => `${name} ${known(values[at]) ? text(values[at]) : "none"}`).join(", ")}`;
    plot.setAttribute("aria-valuenow", at);
    plot.setAttribute("aria-valuetext", line);
    told.textContent = line;
    cross.hidden = !isShown;
    cross.style.left = `${(x(edges[at]) + x(edges[at + 1])) / 20}%`;
  };
  const start = nowS === null ? 0 : Math.max(0, edges.findIndex((t) => t > nowS) - 1);
  show(start, false);
  plot.addEventListener("pointermove", (event) => {
    const area = plot.getBoundingClientRect();
    const t = t0 + ((event.clientX - area.left) / area.width) * (t1 - t0);
    show(edges.findIndex((edge) => edge > t) - 1);
  });
  for (const name of ["pointerleave", "blur"]) plot.addEventListener(name, () => show(start, false));
  plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageUp: 24, PageDown: -24, Home: -count, End: count }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    show(at + by);
  });
  return make("section", { class: "card" }, make("div", { class: "caption" }, make("h2", {}, title), legend(shown.map(({ name, css, hatch }) => ({ label: name, css, hatch })))),
    hint ? make("p", { class: "hint" }, hint) : null, make("div", { class: "frame steps" }, plot), told);
};
