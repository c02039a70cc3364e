// What must be said beside a figure: how its run stands, and where its joules are from.
import { make, tag } from "./dom.js";
import * as units from "./units.js";

export const GAP = 0.01; // share of the device time without a reading from which a figure is a lower bound
const GOOD = new Set(["finished", "running"]);

export const stateTag = (run) =>
  make("span", { class: `state ${GOOD.has(run.state) ? "good" : "warn"}${run.state === "running" ? " live" : ""}`, title: run.error ?? run.duplicate_of }, run.state);

export const reportLink = (run, text) =>
  run.error ? make("span", {}, text)
    : make("a", { href: `/runs/${run.id}/report.html`, target: "_blank", rel: "noopener", "data-key": `report-${run.id}` }, text);

export const grams = (run, value) => (isBound(run) ? `≥ ${units.mass(value)}` : units.mass(value));

// True if what is known is less than all.
export const isBound = (run) => run.bounded || (run.missing_share ?? 0) > GAP;

// What no joule tells: device time and ranks that are in no figure.
export const gaps = (run) =>
  [run.missing_share > 0 ? `${units.percent(run.missing_share)} missing` : "", run.missing_ranks > 0 ? `${run.missing_ranks} of ${run.world_size} ranks missing` : ""].filter(Boolean);

export const marks = (run) => {
  const out = [];
  if (run.modelled_share > 0) out.push(tag(`${units.percent(run.modelled_share)} modelled`, "modelled", "share of the joules that no sensor measured"));
  if (run.missing_share > 0) out.push(tag(`${units.percent(run.missing_share)} missing`, "missing", "share of the device time without a reading: nothing is counted for it"));
  if (run.missing_ranks > 0) out.push(tag(`${run.missing_ranks} of ${run.world_size} ranks missing`, "missing"));
  if (run.unpriced_j > 0) out.push(tag(`${units.percent(run.unpriced_j / run.energy_j)} without intensity`, "missing", "share of the joules that are in no gram"));
  if (!run.tokens) out.push(tag("no tokens counted", "missing"));
  if (run.embodied_g === null && run.total_g !== null) out.push(tag("embodied unknown", "missing"));
  if (run.state !== "finished") out.push(tag(run.state, "assumed"));
  return out;
};
