// Chosen runs side by side; ratios are to the first.
import { bars, byOrigin, byProvenance, ORIGIN, PROVENANCE } from "./charts.js";
import { find } from "./data.js";
import { byId, make, replace } from "./dom.js";
import { grams, marks, reportLink, stateTag } from "./marks.js";
import { chosen, set } from "./state.js";
import * as units from "./units.js";

const MOST = 12;
const known = (value) => value !== null && value !== undefined && value !== "";
const percents = (shares) => Object.entries(shares).map(([name, share]) => `${name} ${units.percent(share)}`).join(", ");
const tags = (run) => Object.entries(run.tags).map(([name, value]) => `${name} = ${value}`).join(", ");

// [name, value, text of a value, whether a ratio says something]
const FACTS = [
  ["Start (UTC)", (run) => run.created_unix_s, units.moment, false],
  ["Tags", tags, String, false],
  ["Zone", (run) => run.zone, String, false],
  ["Carbon signal", (run) => run.signal, String, false],
  ["Devices", (run) => run.device, String, false],
  ["Ranks", (run) => run.world_size, String, false],
  ["Policy", (run) => run.policy, String, false],
  ["Gears (share of steps)", (run) => percents(run.gears), String, false],
  ["Software", (run) => run.frameworks.join(", "), String, false],
  ["Time", (run) => run.wall_s, units.duration, true],
  ["Steps", (run) => run.steps, units.count, true],
  ["Tokens", (run) => run.tokens, units.count, true],
  ["Tokens/s", (run) => run.tokens_per_s, (value) => units.significant(value), true],
  ["Energy", (run) => run.energy_j, units.energy, true],
  ["of it measured", (run) => run.measured_share, units.percent, false],
  ["Device time without reading", (run) => run.missing_share, units.percent, false],
  ["Energy/token", (run) => run.j_per_token, units.joules, true],
  ["CO₂e", (run) => run.total_g, (value, run) => grams(run, value), true],
  ["CO₂e operational", (run) => run.operational_g, (value, run) => grams(run, value), true],
  ["CO₂e embodied", (run) => run.embodied_g, units.mass, true],
  ["CO₂e market-based", (run) => run.market_g, units.mass, true],
  ["CO₂e/token", (run) => run.g_per_token, (value, run) => grams(run, value), true],
  ["Saved by the plan", (run) => run.saved_g, units.mass, false],
  ["Energy / estimate", (run) => run.estimate_ratio, (value) => `× ${units.significant(value)}`, false],
  ["GreenTrain", (run) => run.greentrain_version, String, false],
];

const caveats = (runs) => {
  const differing = ["model", "zone", "device", "policy"].filter((name) => new Set(runs.map((run) => run[name] ?? "")).size > 1);
  const out = differing.length ? [`They differ in ${differing.join(", ")}.`] : [];
  if (differing.includes("model")) out.push("Another model may have other tokens.");
  if (runs.some((run) => run.modelled_share > 0)) out.push("Some joules are modelled.");
  if (runs.some((run) => run.missing_share > 0 || run.missing_ranks > 0 || run.unpriced_j > 0)) out.push("Some readings, ranks or intensities are missing: those figures are lower bounds.");
  if (runs.some((run) => run.state !== "finished")) out.push("Not all runs have finished.");
  return out;
};

const head = (run, i, ids) =>
  make("th", { scope: "col" },
    make("span", { class: "letter" }, String.fromCharCode(65 + i)), reportLink(run, run.label), make("small", {}, run.folder),
    make("div", { class: "head-tools" }, stateTag(run),
      i ? make("button", { type: "button", class: "quiet", "data-key": `first-${run.id}`, onclick: () => set({ sel: [run.id, ...ids.filter((id) => id !== run.id)].join(",") }) }, "make first") : make("small", {}, "the first"),
      make("button", { type: "button", class: "quiet", "aria-label": `Remove ${run.label}`, "data-key": `remove-${run.id}`, onclick: () => set({ sel: ids.filter((id) => id !== run.id).join(",") }) }, "remove")));

const line = ([name, get, text, hasRatio], runs) => {
  const values = runs.map(get);
  if (!values.some(known)) return null;
  const cells = values.map((value, i) =>
    make("td", { class: hasRatio ? "number" : "" }, known(value) ? text(value, runs[i]) : make("span", { class: "none" }, units.UNKNOWN),
      hasRatio && i ? make("small", { class: "ratio" }, units.ratio(value, values[0])) : null));
  return make("tr", {}, make("th", { scope: "row" }, name), cells);
};

const letter = (run, i) => [make("span", { class: "letter" }, String.fromCharCode(65 + i)), run.label];

const charts = (runs) => {
  const per = (title, key, text, parts, legendOf) =>
    bars(title, runs.map((run, i) => ({ label: letter(run, i), parts: parts(run), text: text(run), small: i ? units.ratio(run[key], runs[0][key]) : "" })), { legendOf });
  return make("div", { class: "pair" },
    per("Energy per token", "j_per_token", (run) => units.joules(run.j_per_token), (run) => byProvenance(run.j_per_token, run), PROVENANCE),
    per("CO₂e per token", "g_per_token", (run) => grams(run, run.g_per_token), (run) => byOrigin(run, run.tokens), ORIGIN),
    bars("Operational and embodied CO₂e", runs.map((run, i) => ({
      label: letter(run, i), parts: byOrigin(run), text: grams(run, run.total_g),
      small: known(run.operational_g) ? `${units.mass(run.operational_g)} + ${units.mass(run.embodied_g)}` : "",
    })), { legendOf: ORIGIN }),
    per("Energy", "energy_j", (run) => units.energy(run.energy_j), (run) => byProvenance(run.energy_j, run), PROVENANCE));
};

let drawn = "";
export const show = () => {
  const ids = chosen();
  const runs = ids.map(find).filter((run) => run && !run.error);
  const shown = runs.slice(0, MOST);
  const now = `${ids.length} ${shown.map((run) => `${run.id}.${run.seen}`).join(" ")}`;
  if (now === drawn) return;
  drawn = now;
  if (!shown.length) {
    replace(byId("view-compare"), make("div", { class: "card empty" }, ids.length ? "The chosen runs are not here." : "Choose two or more runs in the table, by the box at the left of each."));
    return;
  }
  const left = ids.length - shown.length;
  const notes = [...(shown.length > 1 ? caveats(shown) : ["Choose another run in the table to compare it with this one."]), ...(left ? [`${left} chosen run${left > 1 ? "s are" : " is"} not shown: at most ${MOST}, and none that is broken or gone.`] : [])];
  const lines = FACTS.map((fact) => line(fact, shown));
  const provenance = make("tr", {}, make("th", { scope: "row" }, "To keep in mind"), shown.map((run) => make("td", {}, make("span", { class: "marks" }, marks(run)))));
  replace(byId("view-compare"),
    make("div", { class: "card" }, make("h2", {}, "Side by side"), make("p", { class: "hint" }, notes.join(" ")),
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Figures side by side" }, make("table", { class: "sides" }, make("thead", {}, make("tr", {}, make("td"), shown.map((run, i) => head(run, i, ids)))), make("tbody", {}, lines, provenance)))),
    charts(shown));
};
