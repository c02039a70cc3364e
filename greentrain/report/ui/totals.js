// Sums by project, zone, month and user, as the server adds them up.
import { bars, byOrigin, ORIGIN, PROVENANCE } from "./charts.js";
import { ask, source } from "./data.js";
import { byId, make, replace } from "./dom.js";
import { forTotals } from "./filter.js";
import { GAP } from "./marks.js";
import { set, state } from "./state.js";
import * as units from "./units.js";

const KEYS = [["month", "month (UTC)"], ["project", "project"], ["zone", "zone"], ["user", "user"]];
const MOST = 12;
const MEASURES = {
  total_g: { text: units.mass, parts: (total) => byOrigin(total), legendOf: ORIGIN },
  energy_j: { text: units.energy, parts: (total) => (total.energy_j === null ? null : [{ value: total.measured_j ?? 0, css: "measured" }, { value: total.modelled_j ?? 0, css: "modelled", hatch: true }]), legendOf: PROVENANCE },
  tokens: { text: units.count, parts: (total) => (total.tokens === null ? null : [{ value: total.tokens, css: "phase" }]), legendOf: [] },
};

export const setUp = () => byId("measure").addEventListener("change", (event) => set({ measure: event.target.value }));

const card = ([key, name], totals, shown) => {
  const measure = MEASURES[shown];
  const sorted = key === "month" ? totals.slice(-2 * MOST) : [...totals].sort((a, b) => (b[shown] ?? -1) - (a[shown] ?? -1)).slice(0, MOST);
  const left = totals.length - sorted.length;
  const rows = sorted.map((total) => {
    const less = total.unpriced_j > 0 || (total.missing_share ?? 0) > GAP;
    const bound = shown === "total_g" && less && total.total_g !== null ? "≥ " : "";
    const missing = shown !== "tokens" && total.missing_share > 0 ? `, ${units.percent(total.missing_share)} missing` : "";
    return {
      label: total.key[key] ?? make("span", { class: "none" }, `(no ${key})`),
      parts: measure.parts(total),
      text: `${bound}${measure.text(total[shown])}`,
      small: `${total.runs} run${total.runs === 1 ? "" : "s"}${missing}`,
    };
  });
  return bars(`By ${name}`, rows, { legendOf: measure.legendOf, hint: left > 0 ? `${left} more ${key === "month" ? "before" : "with less"} are not shown.` : null });
};

let drawn = "";
let asking = 0;
export const show = async () => {
  const { query, left } = forTotals();
  byId("measure").value = Object.hasOwn(MEASURES, state.measure) ? state.measure : "total_g";
  byId("totals-hint").textContent =
    "Each part of a run counts where and when it was: one of two months is in both. Broken runs and copies are in none." +
    (left.length ? ` The filter${left.length > 1 ? "s" : ""} ${left.join(" and ")} do${left.length > 1 ? "" : "es"} not hold here.` : "");
  const now = `${source.epoch} ${source.version} ${state.measure} ${query}`;
  if (now === drawn) return;
  drawn = now;
  const turn = (asking += 1);
  try {
    const found = await Promise.all(KEYS.map(([key]) => ask(`/api/totals?by=${key}&${query}`)));
    if (turn !== asking) return;
    const cards = KEYS.map((key, i) => (found[i].totals.length ? card(key, found[i].totals, byId("measure").value) : null)).filter(Boolean);
    replace(byId("totals"), cards.length ? cards : make("div", { class: "card empty" }, "Nothing is booked."));
  } catch (error) {
    drawn = "";
    if (turn === asking) replace(byId("totals"), make("p", { class: "notice" }, `The totals could not be read: ${error.message}`));
  }
};
