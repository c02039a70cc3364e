// The runs as the server has them; asked every few seconds for what changed.
const runs = new Map();
export const source = { root: "", everyS: 3, epoch: "", version: -1, reading: null, trouble: null, cluster: null, list: [], changes: 0 };
let seen = 0;

export class RefusedError extends Error {}

export const ask = async (path) => {
  const answer = await fetch(path, { credentials: "same-origin", redirect: "error" });
  if (answer.status === 401) throw new RefusedError();
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `${answer.status}`);
  return body;
};

// Returns null if there is no answer.
export const enter = async (word) => {
  if (/[^\x21-\x7e]/.test(word)) return false; // no header can hold it
  try {
    return (await fetch("/session", { headers: { Authorization: `Bearer ${word}` }, redirect: "error" })).ok;
  } catch {
    return null;
  }
};

const words = (run) =>
  [run.name, run.run_id, run.folder, run.project, run.user, run.zone, run.policy, run.signal, run.state, ...run.devices,
    ...Object.entries(run.tags).map(([name, value]) => `${name}=${value}`)].filter(Boolean).join("\n").toLowerCase();

const known = (value) => value !== null && value !== undefined;

// What follows from a row, once.
const prepared = (run) => {
  const deviceS = (run.device_s ?? 0) + Math.max(run.missing_s ?? 0, 0);
  return {
    ...run,
    seen: (seen += 1),
    text: words(run),
    label: run.name ?? run.run_id,
    counted: !run.error && !run.duplicate_of,
    measured_share: run.energy_j ? (run.measured_j ?? 0) / run.energy_j : null,
    modelled_share: run.energy_j ? (run.modelled_j ?? 0) / run.energy_j : null,
    missing_share: deviceS > 0 ? Math.max(run.missing_s ?? 0, 0) / deviceS : null,
    bounded: known(run.total_g) && ((run.unpriced_j ?? 0) > 0 || run.missing_ranks > 0),
    device: run.devices.join(", ") || null,
    model: run.tags.model ?? run.name ?? null,
  };
};

// Returns true if something is new.
export const poll = async () => {
  const query = source.version < 0 ? "" : `?after=${source.version}&epoch=${source.epoch}`;
  const found = await ask(`/api/runs${query}`);
  const told = () => JSON.stringify([source.reading, source.trouble, source.cluster]);
  const before = told();
  if (found.whole) runs.clear();
  for (const run of found.runs) runs.set(run.id, prepared(run));
  for (const id of found.gone) runs.delete(id);
  const isNew = found.whole || found.runs.length > 0 || found.gone.length > 0;
  Object.assign(source, {
    root: found.root, everyS: found.every_s, epoch: found.epoch, version: found.version, reading: found.reading, trouble: found.trouble, cluster: found.cluster,
  });
  if (isNew) Object.assign(source, { list: [...runs.values()], changes: source.changes + 1 });
  return isNew || before !== told();
};

export const find = (id) => runs.get(id);
