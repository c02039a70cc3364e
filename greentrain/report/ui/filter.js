// Which runs are shown, and in which order.
import { byId, make, replace } from "./dom.js";
import { FILTERS, state } from "./state.js";

const NONE = "none"; // a value begins with "=", so that no name can be mistaken for it
const MOST_OPTIONS = 500;
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const DAY_S = 86400;

const pair = (name, value) => `=${encodeURIComponent(name)}=${encodeURIComponent(value)}`;
const plain = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // an address that somebody mistyped
  }
};
const tagsOf = (run) => Object.entries(run.tags).filter(([name]) => name !== "project" && name !== "user");
const one = (value) => [value === null || value === undefined ? [NONE, "(none)"] : [`=${value}`, value]];
const CHOICES = {
  project: (run) => one(run.project),
  user: (run) => one(run.user),
  zone: (run) => one(run.zone),
  policy: (run) => one(run.policy),
  device: (run) => (run.devices.length ? run.devices.map((name) => [`=${name}`, name]) : one(null)),
  tag: (run) => tagsOf(run).map(([name, value]) => [pair(name, value), `${name} = ${value}`]),
  state: (run) => one(run.state),
};

const dayS = (text) => (text ? Date.parse(`${text}T00:00:00Z`) / 1000 : NaN);

const test = () => {
  const tests = [];
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) tests.push((run) => words.every((word) => run.text.includes(word)));
  for (const [name, choices] of Object.entries(CHOICES)) {
    const wanted = state[name];
    if (wanted === "") continue;
    if (name === "state" && wanted === "unfinished") tests.push((run) => run.state !== "finished");
    else tests.push((run) => choices(run).some(([value]) => value === wanted));
  }
  const [from, to] = [dayS(state.from), dayS(state.to) + DAY_S];
  if (!Number.isNaN(from)) tests.push((run) => (run.end_unix_s ?? run.created_unix_s ?? -Infinity) >= from);
  if (!Number.isNaN(to)) tests.push((run) => (run.created_unix_s ?? Infinity) < to);
  return (run) => tests.every((each) => each(run));
};

// Unknown is last, whichever way the rest is sorted.
export const order = (sort) => {
  const down = sort.startsWith("-");
  const name = sort.replace(/^-/, "");
  return (a, b) => {
    const [x, y] = [a[name] ?? null, b[name] ?? null];
    if (x === null || y === null) return (x === null) - (y === null) || (a.id < b.id ? -1 : 1);
    const by = typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y));
    return (down ? -by : by) || (a.id < b.id ? -1 : 1);
  };
};

export const filtered = (runs) => runs.filter(test());

const options = (runs, name) => {
  const counts = new Map();
  for (const run of runs) {
    for (const [value, label] of CHOICES[name](run)) {
      const found = counts.get(value) ?? { label, runs: 0 };
      found.runs += 1;
      counts.set(value, found);
    }
  }
  const sorted = [...counts].sort(([a, x], [b, y]) => (a === NONE) - (b === NONE) || collator.compare(x.label, y.label));
  const more = name === "state" ? [make("option", { value: "unfinished" }, "not finished")] : [];
  const shown = sorted.slice(0, MOST_OPTIONS).map(([value, { label, runs: n }]) => make("option", { value }, `${label} (${n})`));
  const wanted = state[name];
  if (wanted && wanted !== "unfinished" && !sorted.slice(0, MOST_OPTIONS).some(([value]) => value === wanted)) {
    shown.push(make("option", { value: wanted }, name === "tag" ? plain(wanted.slice(1)) : wanted.replace(/^=/, "")));
  }
  return [make("option", { value: "" }, "all"), ...more, ...shown];
};

let filledFor = null;
export const fillFilters = (runs) => {
  if (filledFor !== runs) {
    for (const name of Object.keys(CHOICES)) {
      if (document.activeElement !== byId(`f-${name}`)) replace(byId(`f-${name}`), options(runs, name));
    }
    filledFor = runs;
  }
  for (const name of FILTERS) {
    const field = byId(`f-${name}`);
    if (field.value !== state[name] && document.activeElement !== field) {
      field.value = state[name];
      if (field.value !== state[name] && field.tagName === "SELECT") {
        replace(field, options(runs, name));
        field.value = state[name];
      }
    }
  }
  const active = FILTERS.filter((name) => name !== "q" && state[name] !== "").length;
  byId("active").textContent = active ? `(${active})` : "";
};

// The part of the filters that the server's totals know, as a query, and the names of the rest.
export const forTotals = () => {
  const query = new URLSearchParams();
  const left = { q: "search", device: "device", state: "state" };
  const where = (key, name, value) => {
    // there NAME ends at the first "=", and an empty VALUE asks for runs without one
    if (value === "" || /=|\s$/.test(name)) left[key] = key;
    else query.append("where", `${name}=${value ?? ""}`);
  };
  for (const name of ["project", "user", "zone", "policy"]) {
    if (state[name]) where(name, name, state[name] === NONE ? null : state[name].slice(1));
  }
  if (state.tag) {
    const [name, value] = state.tag.slice(1).split("=").map(plain);
    where("tag", `tag:${name}`, value ?? "");
  }
  if (state.from) query.set("since", state.from);
  if (state.to) query.set("until", state.to);
  return { query, left: Object.keys(left).filter((name) => state[name] !== "").map((name) => left[name]) };
};
