// Runs by CO2e per token, within groups that are worth comparing.
import { bars, byOrigin, ORIGIN } from "./charts.js";
import { byId, make, replace } from "./dom.js";
import { order } from "./filter.js";
import { grams, isBound, marks, reportLink } from "./marks.js";
import { set, state } from "./state.js";
import * as units from "./units.js";

const PLACES = 10;
const MOST_GROUPS = 40;
const GROUPS = { model: "model (its tag, or the run's name)", name: "run name", project: "project", all: "nothing: all runs together" };

const groupOf = (run) => {
  if (state.within === "all") return "All runs";
  const name = state.within.replace(/^tag:/, "");
  if (name !== state.within) return Object.hasOwn(run.tags, name) ? run.tags[name] : null;
  return Object.hasOwn(GROUPS, name) ? run[name] : null;
};

export const setUp = () => {
  byId("within").addEventListener("change", (event) => set({ within: event.target.value }));
  byId("only-measured").addEventListener("change", (event) => set({ measured: event.target.checked ? "1" : "" }));
  byId("only-complete").addEventListener("change", (event) => set({ complete: event.target.checked ? "1" : "" }));
};

let offered = "";
const fill = (all) => {
  const names = [...new Set(all.flatMap((run) => Object.keys(run.tags)))].filter((name) => !["project", "model"].includes(name)).sort().slice(0, 100);
  const values = [...Object.entries(GROUPS), ...names.map((name) => [`tag:${name}`, `tag ${name}`])];
  if (!values.some(([value]) => value === state.within)) values.push([state.within, state.within]);
  const select = byId("within");
  const now = JSON.stringify(values);
  if (now !== offered) replace(select, values.map(([value, label]) => make("option", { value }, label)));
  offered = now;
  select.value = state.within;
  byId("only-measured").checked = state.measured === "1";
  byId("only-complete").checked = state.complete === "1";
};

const isIn = (run) =>
  run.counted && !(state.measured === "1" && run.modelled_share > 0) && !(state.complete === "1" && (run.missing_share > 0 || isBound(run)));

const label = (run, place) => [make("span", { class: "place" }, place), make("span", { class: "who" }, reportLink(run, run.label), make("small", {}, [run.folder, run.zone, run.devices[0]].filter(Boolean).join(" · ")))];

const marked = (run) => {
  const found = marks(run);
  return found.length ? make("span", { class: "marks" }, found) : null;
};

const line = (run, place) => ({
  label: label(run, place),
  parts: byOrigin(run, run.tokens),
  text: grams(run, run.g_per_token),
  small: marked(run),
});

const group = (name, runs) => {
  const sorted = runs.sort(order("g_per_token"));
  const known = sorted.filter((run) => run.g_per_token !== null);
  const embodied = runs.some((run) => run.embodied_g !== null); // then one without would win by what it leaves out
  const least = (run) => isBound(run) || (embodied && run.embodied_g === null);
  const ranked = known.filter((run) => !least(run));
  const bounds = known.filter(least);
  const unknown = sorted.length - known.length;
  const rest = [
    ranked.length > PLACES ? `${ranked.length - PLACES} more have a place` : "",
    bounds.length > PLACES ? `${bounds.length - PLACES} more have a lower bound` : "",
  ].filter(Boolean);
  const first = ranked.slice(0, PLACES).map((run, i) => line(run, `${i + 1}`));
  const open = bounds.slice(0, PLACES).map((run) => ({ ...line(run, "≥"), text: `≥ ${units.mass(run.g_per_token)}` }));
  const none = sorted.slice(known.length, known.length + 3).map((run) => ({ label: label(run, "–"), parts: null, text: units.UNKNOWN, small: marked(run) }));
  if (unknown > none.length) rest.push(`${unknown - none.length} more are unknown`);
  const hint = `${units.count(runs.length)} run${runs.length > 1 ? "s" : ""}: ${units.count(ranked.length)} with a place, ${units.count(bounds.length)} with a lower bound only, ${units.count(unknown)} unknown.${rest.length ? ` Not shown: ${rest.join(", ")}; the filters narrow the list.` : ""}`;
  const made = bars(name ?? `(no ${state.within.replace(/^tag:/, "tag ")})`, [...first, ...open, ...none], { legendOf: ORIGIN, hint });
  made.classList.add("board-group");
  return made;
};

let drawn = "";
export const show = (runs, all) => {
  fill(all);
  const now = `${state.within} ${state.measured} ${state.complete} ${runs.map((run) => `${run.id}.${run.seen}`).join(" ")}`;
  if (now === drawn) return;
  drawn = now;
  const found = new Map();
  let out = 0;
  for (const run of runs) {
    if (!isIn(run)) out += 1;
    else found.has(groupOf(run)) ? found.get(groupOf(run)).push(run) : found.set(groupOf(run), [run]);
  }
  const groups = [...found].sort(([, a], [, b]) => b.length - a.length);
  const notes = [];
  if (out) notes.push(`${out} run${out > 1 ? "s are" : " is"} left out: broken, copies, or by the boxes above.`);
  if (groups.length > MOST_GROUPS) notes.push(`The ${MOST_GROUPS} largest of ${groups.length} groups are shown.`);
  if (state.within === "all") notes.push("Runs of different models are together here: their tokens are not the same, so a place means little.");
  const cards = groups.slice(0, MOST_GROUPS).map(([name, members]) => group(name, members));
  replace(byId("board"), notes.length ? make("p", { class: "hint above" }, notes.join(" ")) : [], groups.length ? cards : make("div", { class: "card empty" }, "No run is left."));
};
