// What is looked at, in the address: a link shows the same view.
const DEFAULTS = {
  view: "runs", q: "", project: "", user: "", zone: "", device: "", policy: "", tag: "", state: "", from: "", to: "",
  sort: "-created_unix_s", page: "1", sel: "", within: "model", measured: "", complete: "", measure: "total_g",
  job: "", doing: "",
};
export const FILTERS = ["q", "project", "user", "zone", "device", "policy", "tag", "state", "from", "to"];
export const state = { ...DEFAULTS };
let told = () => {};

export const read = () => {
  const found = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(DEFAULTS)) state[name] = found.get(name) ?? DEFAULTS[name];
  for (const name of ["from", "to"]) if (!/^\d{4}-\d{2}-\d{2}$/.test(state[name])) state[name] = "";
};

export const hashWith = (changes) => {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...state, ...changes })) if (value !== DEFAULTS[name]) out.set(name, value);
  return `#${out}`;
};

// A step back in the browser leads to the view before, not to the letter before.
export const set = (changes, step = false) => {
  const hash = hashWith(changes);
  Object.assign(state, changes);
  if (hash !== (location.hash || "#")) history[step ? "pushState" : "replaceState"](null, "", hash);
  told();
};

export const chosen = () => (state.sel ? state.sel.split(",").filter((id) => /^[0-9a-f]{16}$/.test(id)) : []);
export const isFiltered = () => FILTERS.some((name) => state[name] !== "");

export const onChange = (call) => {
  told = call;
  addEventListener("hashchange", () => { read(); call(); });
  addEventListener("popstate", () => { read(); call(); });
};
