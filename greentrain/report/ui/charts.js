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

const legend = (items) =>
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
