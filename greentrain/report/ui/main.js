// Lets the reader in, asks for what is new, and draws the view that the address names.
import * as board from "./board.js";
import * as cluster from "./cluster.js";
import * as compare from "./compare.js";
import { enter, poll, RefusedError, source } from "./data.js";
import { byId, say } from "./dom.js";
import { isBound } from "./marks.js";
import { fillFilters, filtered } from "./filter.js";
import { chosen, FILTERS, hashWith, onChange, read, set, state } from "./state.js";
import * as table from "./table.js";
import * as totals from "./totals.js";
import * as units from "./units.js";

const VIEWS = ["runs", "compare", "board", "totals", "cluster"];

const sums = (runs) => {
  const counted = runs.filter((run) => run.counted);
  const sum = (name) => counted.reduce((all, run) => (run[name] === null ? all : (all ?? 0) + run[name]), null);
  const [energy, measured, grams] = [sum("energy_j"), sum("measured_j"), sum("total_g")];
  const dark = counted.filter((run) => run.energy_j === null).length;
  const bounded = counted.some((run) => isBound(run) || run.total_g === null);
  const [deviceS, missingS] = [sum("device_s") ?? 0, sum("missing_s") ?? 0];
  const short = counted.filter((run) => run.missing_ranks > 0).length;
  const bare = counted.filter((run) => run.total_g !== null && run.embodied_g === null).length;
  const runsOf = (n) => `${units.count(n)} run${n > 1 ? "s" : ""}`;
  const provenance = [
    energy ? `${units.percent(measured / energy)} measured` : "",
    missingS > 0 ? `${units.percent(missingS / (deviceS + missingS))} of the device time missing` : "",
    dark ? `unknown of ${runsOf(dark)}` : "",
    short ? `ranks of ${runsOf(short)} missing` : "",
  ];
  const states = new Map();
  for (const run of runs) states.set(run.state, (states.get(run.state) ?? 0) + 1);
  say("sum-runs", units.count(runs.length));
  say("sum-states", [...states].sort(([, a], [, b]) => b - a).map(([name, n]) => `${units.count(n)} ${name}`).join(", "));
  say("sum-energy", units.energy(energy));
  say("sum-provenance", provenance.filter(Boolean).join("; "));
  say("sum-mass", grams === null ? units.UNKNOWN : `${bounded ? "≥ " : ""}${units.mass(grams)}`);
  say("sum-parts", grams === null ? "" : `CO₂e: ${units.mass(sum("operational_g"))} operational, ${units.mass(sum("embodied_g"))} embodied${bare && bare < counted.length ? ` (unknown of ${runsOf(bare)})` : ""}`);
  const withTokens = counted.filter((run) => run.tokens && run.energy_j !== null);
  const [tokens, tokenJ] = [withTokens.reduce((n, run) => n + run.tokens, 0), withTokens.reduce((n, run) => n + run.energy_j, 0)];
  say("sum-tokens", units.count(sum("tokens")));
  say("sum-per", tokens ? `${units.joules(tokenJ / tokens)}/token on average` : "no tokens were counted");
};

const showPulse = () => {
  const { reading, trouble, list } = source;
  const running = list.filter((run) => run.state === "running").length;
  say("pulse", reading ? "Reading" : running ? `${running} running` : "Up to date");
  byId("pulse").classList.toggle("live", running > 0 && !reading);
  byId("progress").hidden = !(reading && reading.of > 0);
  if (reading && reading.of > 0) {
    Object.assign(byId("progress-bar"), { max: reading.of, value: reading.done });
    say("progress-text", `Reading runs: ${reading.done} of ${reading.of}`);
  }
  byId("trouble").hidden = !trouble;
  say("trouble", trouble ? `These figures are old: ${trouble}` : "");
};

const show = () => {
  const asked = VIEWS.includes(state.view) ? state.view : "runs";
  const view = asked === "runs" && source.cluster && !source.list.length ? "cluster" : asked;
  const ids = chosen();
  say("root", source.root || "Runs");
  document.title = `${source.root ? `${source.root}: ` : ""}GreenTrain runs`;
  showPulse();
  byId("content").hidden = false;
  for (const name of VIEWS) byId(`view-${name}`).hidden = name !== view;
  for (const link of byId("views").querySelectorAll("a")) {
    link.href = hashWith({ view: link.dataset.view });
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  say("chosen", ids.length ? `${ids.length}` : "");
  byId("basket").hidden = !ids.length || view !== "runs";
  say("basket-text", `${ids.length} run${ids.length === 1 ? "" : "s"} chosen`);
  byId("basket-compare").href = hashWith({ view: "compare" });
  fillFilters(source.list);
  byId("to-cluster").hidden = !source.cluster && view !== "cluster";
  byId("filters").hidden = view === "compare" || view === "cluster";
  byId("sums").hidden = view === "cluster";
  const runs = filtered(source.list);
  sums(view === "compare" ? source.list.filter((run) => ids.includes(run.id)) : runs);
  if (view === "runs") table.show(runs, source.list);
  if (view === "compare") compare.show();
  if (view === "board") board.show(runs, source.list);
  if (view === "totals") totals.show();
  if (view === "cluster") cluster.show();
};

const refuse = () => {
  byId("login").hidden = false;
  byId("content").hidden = true;
  say("pulse", "Closed");
};

let timer = 0;
const again = async () => {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const isNew = await poll();
    if (isNew || byId("content").hidden || byId("pulse").classList.contains("lost")) {
      byId("pulse").classList.remove("lost");
      show();
    }
  } catch (error) {
    if (error instanceof RefusedError) return refuse();
    byId("pulse").classList.add("lost");
    say("pulse", "The server does not answer");
  }
  timer = setTimeout(again, 1000 * (source.reading ? Math.min(source.everyS, 0.5) : source.everyS));
};

const setUp = () => {
  table.setUp();
  board.setUp();
  totals.setUp();
  cluster.setUp();
  for (const name of FILTERS) {
    const field = byId(`f-${name}`);
    field.addEventListener(name === "q" ? "input" : "change", () => set({ [name]: field.value, page: "1" }));
  }
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("clear").addEventListener("click", () => set({ ...Object.fromEntries(FILTERS.map((name) => [name, ""])), page: "1" }));
  byId("basket-clear").addEventListener("click", () => set({ sel: "" }));
  if (matchMedia("(max-width: 760px)").matches) byId("more").open = false;
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      byId("f-q").focus();
    }
  });
  byId("login").addEventListener("submit", async (event) => {
    event.preventDefault();
    const isIn = await enter(byId("token").value.trim());
    byId("token").value = "";
    byId("login").hidden = isIn === true;
    byId("login-wrong").hidden = isIn === true;
    say("login-wrong", isIn === null ? "The server does not answer." : isIn ? "" : "This is not the token.");
    if (isIn) again();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });
  onChange(show);
};

// The word of a link is used and taken out of the address before anything else. Returns false without one.
const comeIn = async () => {
  const found = new URLSearchParams(location.hash.slice(1));
  const word = found.get("token");
  if (word === null) return false;
  found.delete("token");
  history.replaceState(null, "", `#${found}`);
  await enter(word);
  return true;
};

// A link that is opened in a tab of this page changes the fragment only, and loads nothing.
addEventListener("hashchange", async () => {
  if (!(await comeIn())) return;
  byId("login").hidden = true;
  again();
});

const open = async () => {
  await comeIn();
  read();
  setUp();
  await again();
};

open();
