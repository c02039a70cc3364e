// The table of runs: sorted, a hundred at a time.
import { byId, make, replace, say } from "./dom.js";
import { order } from "./filter.js";
import { gaps, grams, reportLink, stateTag } from "./marks.js";
import { chosen, isFiltered, set, state } from "./state.js";
import * as units from "./units.js";

const PAGE = 100;
const known = (value) => value !== null && value !== undefined;
const figure = (value, text) => (known(value) ? text : make("span", { class: "none" }, units.UNKNOWN));
const text = (value) => value ?? make("span", { class: "none" }, "–");
const provenance = (run) => {
  const parts = [known(run.measured_share) ? `${units.percent(run.measured_share)} measured` : "", ...gaps(run)].filter(Boolean);
  return parts.length ? make("small", {}, parts.join(", ")) : null;
};
const short = (name) => name.replace(/^NVIDIA\s+/, "");

const COLUMNS = [
  { key: "label", head: "Run", css: "name", cell: (run) => [reportLink(run, run.label), make("small", {}, run.folder)] },
  { key: "state", head: "State", css: "status", cell: (run) => [stateTag(run)] },
  { key: "created_unix_s", head: "Start (UTC)", down: true, cell: (run) => [figure(run.created_unix_s, units.moment(run.created_unix_s))] },
  { key: "wall_s", head: "Time", down: true, number: true, cell: (run) => [figure(run.wall_s, units.duration(run.wall_s))] },
  { key: "project", head: "Project", cell: (run) => [text(run.project), run.user ? make("small", {}, run.user) : null] },
  { key: "zone", head: "Zone", cell: (run) => [text(run.zone)] },
  { key: "device", head: "Device", cell: (run) => (run.devices.length ? [make("span", { title: run.device }, short(run.devices[0])), run.devices.length > 1 ? make("small", {}, `and ${run.devices.length - 1} more`) : null] : [text(null)]) },
  { key: "energy_j", head: "Energy", down: true, number: true, cell: (run) => [figure(run.energy_j, units.energy(run.energy_j)), provenance(run)] },
  { key: "total_g", head: "CO₂e", down: true, number: true, cell: (run) => [figure(run.total_g, grams(run, run.total_g))] },
  { key: "g_per_token", head: "CO₂e/token", number: true, cell: (run) => [figure(run.g_per_token, grams(run, run.g_per_token))] },
  { key: "j_per_token", head: "Energy/token", number: true, cell: (run) => [figure(run.j_per_token, units.joules(run.j_per_token))] },
  { key: "tokens_per_s", head: "Tokens/s", down: true, number: true, cell: (run) => [figure(run.tokens_per_s, known(run.tokens_per_s) ? units.significant(run.tokens_per_s) : "")] },
];
const MORE = [["user", "User", false], ["measured_share", "Share measured", true], ["tokens", "Tokens", true], ["policy", "Policy", false]];

const toggled = (id) => {
  const ids = chosen();
  return (ids.includes(id) ? ids.filter((one) => one !== id) : [...ids, id]).join(",");
};

const row = (run, isChosen) => {
  const box = make("input", { type: "checkbox", "aria-label": `Choose ${run.label}`, "data-key": `choose-${run.id}`, onchange: () => set({ sel: toggled(run.id) }) });
  box.checked = isChosen;
  box.disabled = Boolean(run.error);
  const cells = COLUMNS.map((column) => make("td", { class: `${column.number ? "number " : ""}${column.css ?? ""}`, "data-label": column.head }, column.cell(run)));
  if (run.error) cells[0].append(make("small", { class: "why" }, run.error));
  if (run.duplicate_of) cells[0].append(make("small", { class: "why" }, `a copy of ${run.duplicate_of}, not counted`));
  return make("tr", { "data-id": run.id, class: isChosen ? "chosen" : "" }, make("td", { class: "choose" }, box), cells);
};

const direction = (key) => (state.sort === key ? "ascending" : state.sort === `-${key}` ? "descending" : "none");

const heads = () => {
  const cells = COLUMNS.map(({ key, head, down, number }) => {
    const way = direction(key);
    const next = way === "none" ? (down ? `-${key}` : key) : way === "ascending" ? `-${key}` : key;
    const arrow = { ascending: "▲", descending: "▼", none: "" }[way];
    const button = make("button", { type: "button", "data-key": `sort-${key}`, onclick: () => set({ sort: next, page: "1" }) }, head, make("i", { "aria-hidden": "true" }, arrow));
    return make("th", { scope: "col", "aria-sort": way, class: number ? "number" : "" }, button);
  });
  replace(byId("heads"), make("th", { scope: "col" }, make("span", { class: "hidden" }, "Choose")), cells);
};

export const setUp = () => {
  const choices = [...COLUMNS.map(({ key, head, down }) => [key, head, down]), ...MORE];
  byId("sort").append(...choices.flatMap(([key, head]) => [make("option", { value: key }, `${head} ↑`), make("option", { value: `-${key}` }, `${head} ↓`)]));
  byId("sort").addEventListener("change", (event) => set({ sort: event.target.value, page: "1" }));
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
};

const turn = (by) => {
  set({ page: String(Number(state.page) + by) });
  byId("view-runs").scrollIntoView({ block: "start" });
};

let drawn = "";
export const show = (runs, all) => {
  const sorted = [...runs].sort(order(state.sort));
  const pages = Math.max(1, Math.ceil(sorted.length / PAGE));
  const page = Math.min(Math.max(1, Math.floor(Number(state.page)) || 1), pages);
  const part = sorted.slice((page - 1) * PAGE, page * PAGE);
  const ids = new Set(chosen());
  byId("sort").value = state.sort;
  const whole = `${units.count(all.length)} run${all.length === 1 ? "" : "s"}`;
  say("count", isFiltered() ? `${units.count(runs.length)} of ${whole}` : whole);
  say("place", pages > 1 ? `${(page - 1) * PAGE + 1}–${(page - 1) * PAGE + part.length} of ${units.count(sorted.length)}` : "");
  byId("previous").disabled = page <= 1;
  byId("next").disabled = page >= pages;
  byId("previous").parentElement.hidden = pages <= 1;
  byId("empty").hidden = part.length > 0;
  say("empty", all.length ? "No run fits these filters." : "There is no run in this folder yet. A run appears here as soon as it has booked something.");
  const now = `${state.sort} ${part.map((run) => `${run.id}.${run.seen}${ids.has(run.id) ? "+" : ""}`).join(" ")}`;
  if (now === drawn) return;
  drawn = now;
  heads();
  replace(byId("rows"), part.map((run) => row(run, ids.has(run.id))));
};
