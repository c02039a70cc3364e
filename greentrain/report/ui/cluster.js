// A cluster: its jobs by time with their gears, what they wait for, power and grams against caps, and prices.
import { axis, legend, stepChart } from "./charts.js";
import { ask, source } from "./data.js";
import { byId, draw, make, replace, say, tag } from "./dom.js";
import { set, state } from "./state.js";
import * as units from "./units.js";

const PAGE = 100;
const MOST_CHARTS = 8;
const STATES = ["running", "ending", "queued", "held", "waiting", "planned", "late", "left out", "done", "failed", "cancelled", "gone"];
const BASES = ["measured", "modelled", "missing"]; // the weakest is the last
const GEARS = { fp8: "gpu", mxfp8: "gpu", nvfp4: "gpu", bf16: "fpga", fp16: "dram", fp32: "cpu" }; // hues as in a run's report
const isCapped = (row) => / at \d+%/.test(row);
const gearOf = (row) => `${row.split(" ")[0]}${isCapped(row) ? " with a power cap" : ""}`;
const colour = (row) => `${Object.hasOwn(GEARS, row.split(" ")[0]) ? GEARS[row.split(" ")[0]] : "other"}-${isCapped(row) ? 2 : 0}`;
const known = (value) => value !== null && value !== undefined;
const SI = [[1e9, "GW"], [1e6, "MW"], [1e3, "kW"], [1, "W"]];
const watts = (value) => {
  if (!known(value)) return units.UNKNOWN;
  const [size, unit] = SI.find(([one]) => value >= one * 0.9995) ?? SI[3];
  return `${units.significant(value / size)} ${unit}`;
};
const perKwh = (value) => `${units.significant(value)} g/kWh`;
const perHour = (value) => `${units.mass(value)}/h`;
const moment = (s) => `${units.moment(s)} UTC`;

let found = null;
let edges = []; // of what is known until now, and of the plan from then on
let first = 0; // step of the plan in which that begins
let drawn = "";

export const setUp = () => {
  byId("c-job").addEventListener("input", (event) => set({ job: event.target.value, page: "1" }));
  byId("c-doing").addEventListener("change", (event) => set({ doing: event.target.value, page: "1" }));
  byId("c-previous").addEventListener("click", () => set({ page: String(Number(state.page) - 1) }));
  byId("c-next").addEventListener("click", () => set({ page: String(Number(state.page) + 1) }));
};

const figure = (head, big, ...small) => make("div", { class: "figure" }, make("h2", {}, head), make("p", { class: "big" }, big), small.filter(Boolean).map((text) => make("p", {}, text)));

const figures = () => {
  const { jobs, sites, step_g: stepG, past } = found;
  const count = (name) => jobs.filter((job) => job.state === name).length;
  const at = Math.max(0, found.edges_s.findIndex((t) => t > found.t_unix_s) - 1);
  const all = (values) => values.reduce((sum, value) => (sum === null || !known(value) ? null : sum + value), 0);
  const [planned, cap] = ["power_w", "cap_w"].map((name) => all(sites.map((site) => site[name][at])));
  const seen = Object.values(past.sites);
  const [now, basis] = seen.length ? [all(seen.map((site) => site.now_w)), BASES.findLast((name) => seen.some((site) => site.now_basis === name))] : [planned, "modelled"];
  const soFar = all(seen.length ? seen.flatMap((site) => site.grams.filter(known)) : stepG.slice(0, at));
  const late = jobs.filter((job) => job.is_late).length;
  replace(byId("cluster-figures"),
    figure("Jobs", units.count(jobs.length), STATES.filter(count).map((name) => `${units.count(count(name))} ${name}`).join(", "), found.is_present ? "now" : `at the start of the plan, ${moment(found.t_unix_s)}`),
    figure("Power", watts(now), cap === null ? "no cap" : `of a cap of ${watts(cap)}`, `${basis}, above idle nodes`, seen.length ? `planned: ${watts(planned)}` : ""),
    figure("Emissions", units.mass(found.grams + found.late_g), `CO₂e of the plan, modelled; ${seen.length ? `the jobs emitted ${units.mass(soFar)} since ${moment(edges[0])}` : `${units.mass(soFar)} of it until now`}`, found.budget_g === null ? "no budget" : `of a budget of ${units.mass(found.budget_g)}`),
    figure("How good it is", found.gap === null ? units.UNKNOWN : `within ${units.percent(found.gap)}`, `of the best possible: no plan that meets the same deadlines emits less than ${units.mass(found.bound_g)}`, late ? `${units.count(late)} deadline${late > 1 ? "s" : ""} missed` : "no deadline missed"));
};

const shown = () => {
  const words = state.job.toLowerCase().split(/\s+/).filter(Boolean);
  return found.jobs.filter((job) => (state.doing === "" || job.state === state.doing) &&
    words.every((word) => [job.name, job.user, job.state, job.waits_for, job.row, ...job.stays.map((stay) => stay[4])].some((text) => text?.toLowerCase().includes(word))));
};

const bar = (job) => {
  const [t0, t1] = [edges[0], edges[edges.length - 1]];
  const x = (t) => 100 * Math.min(1, Math.max(0, ((t ?? t0) - t0) / (t1 - t0)));
  const svg = draw("svg", { width: "100%", height: 20, "aria-hidden": "true" });
  const [from, to] = [x(job.release_s), x(job.deadline_s ?? t1)];
  svg.append(draw("rect", { class: "window", x: `${from}%`, width: `${Math.max(0, to - from)}%`, y: 8, height: 4 }));
  const before = (job.past ?? []).filter((stay) => stay[1] > t0).map(([a, ...stay]) => [Math.max(a, t0), ...stay]);
  for (const [a, b, row, nodes, pool] of [...before, ...job.stays]) {
    const at = { x: `${x(a)}%`, width: `${x(b) - x(a)}%`, y: 2, height: 16 };
    svg.append(draw("rect", { ...at, class: `f-${colour(row)}` }, draw("title", {}, `${row}${nodes ? `: ${nodes} nodes of ${pool}` : ""}, ${moment(a)} to ${moment(b)}`)));
    if (job.is_late) svg.append(draw("rect", { ...at, fill: "url(#hatch)", "pointer-events": "none" }));
  }
  if (known(job.deadline_s) && job.deadline_s <= t1) svg.append(draw("rect", { class: "deadline", x: `${to}%`, width: 2, height: 20 }));
  if (found.is_present) svg.append(draw("rect", { class: "present", x: `${x(found.t_unix_s)}%`, width: 1, height: 20 }));
  return svg;
};

const line = (job) => {
  const doing = known(job.row) ? job.row : job.waits_for ? `waits: ${job.waits_for}` : "";
  const end = job.stays.length ? `done by ${units.moment(job.stays[job.stays.length - 1][1])}` : "";
  const power = known(job.power_w) ? `${watts(job.power_w)} ${job.basis}` : "";
  const due = !known(job.deadline_s) ? "" : `due ${units.moment(job.deadline_s)}`;
  return make("tr", { "data-job": job.name },
    make("th", { scope: "row" }, job.name, make("small", {}, [job.user, job.stays[0]?.[4]].filter(Boolean).join(" · "))),
    make("td", { class: "bar" }, bar(job)),
    make("td", {}, tag(job.state, job.is_late || job.state === "left out" ? "missing" : ""), ` ${doing}`, known(job.until_s) ? ` until ${units.moment(job.until_s)}` : "", make("small", {}, [power, end, due].filter(Boolean).join("; "))));
};

let offered = "";
const gantt = () => {
  const jobs = shown();
  const pages = Math.max(1, Math.ceil(jobs.length / PAGE));
  const page = Math.min(Math.max(1, Math.floor(Number(state.page)) || 1), pages);
  const part = jobs.slice((page - 1) * PAGE, page * PAGE);
  if (document.activeElement !== byId("c-job")) byId("c-job").value = state.job;
  say("cluster-count", `${units.count(jobs.length)} of ${units.count(found.jobs.length)} jobs`);
  say("c-place", `${(page - 1) * PAGE + 1}–${(page - 1) * PAGE + part.length} of ${units.count(jobs.length)}`);
  byId("c-previous").disabled = page <= 1;
  byId("c-next").disabled = page >= pages;
  byId("cluster-pages").hidden = pages <= 1;
  const states = STATES.filter((name) => name === state.doing || found.jobs.some((job) => job.state === name));
  if (states.join() !== offered) replace(byId("c-doing"), make("option", { value: "" }, "all"), states.map((name) => make("option", { value: name }, name)));
  offered = states.join();
  byId("c-doing").value = states.includes(state.doing) ? state.doing : "";
  const gears = new Map(found.jobs.flatMap((job) => [...(job.past ?? []), ...job.stays].map((stay) => [gearOf(stay[2]), colour(stay[2])])));
  replace(byId("cluster-legend"), ...legend([...[...gears].map(([label, css]) => ({ label, css })), { label: "from release to deadline", css: "grid" }, { label: "too late", css: "grid", hatch: true }]).childNodes);
  replace(byId("cluster-axis"), make("tr", {}, make("th", { scope: "col" }, "Job"), make("th", { scope: "col", class: "times" }, make("span", { class: "hidden" }, "Time (UTC)"), axis(edges)), make("th", { scope: "col" }, "Now")));
  replace(byId("cluster-jobs"), part.map(line));
};

const charts = () => {
  const { sites, pools, step_g: stepG, past } = found;
  const old = past.edges_s.length - 1;
  const nowS = found.is_present ? found.t_unix_s : null;
  const options = (text, hint) => ({ text, hint, when: moment, nowS });
  const some = (list, used) => [...list].sort((a, b) => Math.max(...b[used]) - Math.max(...a[used])).slice(0, MOST_CHARTS);
  const none = Array(old).fill(null);
  const later = (values) => [...none, ...values.slice(first)];
  const earlier = (values) => [...(values ?? none), ...stepG.slice(first).map(() => null)];
  const whole = (values, plan) => [...(values ?? none), ...plan.slice(first)];
  const free = (values) => values.every((value) => !value);
  let sum = 0;
  const emitted = past.edges_s.slice(1).map((_, i) => { // of all sites; unknown where one is
    const values = Object.values(past.sites).map((site) => site.grams[i]);
    return values.every(known) ? (sum += values.reduce((a, b) => a + b, 0)) : null;
  });
  const begun = sum;
  const left = (edges[old + 1] - edges[old]) / (found.edges_s[first + 1] - found.edges_s[first]);
  const cumulative = stepG.map((g, i) => (sum += i < first ? 0 : i > first ? g : left * g));
  const budget = found.budget_g === null ? [] : [{ name: "budget of the plan", css: "staticline", values: later(stepG.map(() => begun + found.budget_g)) }];
  replace(byId("cluster-charts"),
    some(sites, "power_w").map((site) => {
      const was = past.sites[site.name];
      return stepChart(`Power at ${site.name}`, edges, [
        { name: "planned", css: "phase", values: later(site.power_w), area: true, hatch: true },
        { name: "modelled", css: "modelled", values: earlier(was?.modelled), area: true, hatch: true }, { name: "measured", css: "measured", values: earlier(was?.measured), area: true },
        { name: "cap", css: "staticline", values: whole(was?.cap_w, site.cap_w) },
      ], options(watts, "At the meter of the facility, above idle nodes; what is planned is modelled by the tables of the jobs' rows, and its cap is what idle nodes leave."));
    }),
    stepChart(`CO₂e since ${moment(edges[0])}`, edges, [
      { name: "planned", css: "carbon", values: later(cumulative), area: true, hatch: true }, { name: "emitted", css: "embodied", values: earlier(emitted), area: true }, ...budget,
    ], options(units.mass, "All jobs at all sites, by the end of each step; what is planned is modelled.")),
    some(sites, "watt_price").map((site) => stepChart(`What a kWh costs at ${site.name}`, edges, [
      { name: "with the price of scarce watts", css: "modelled", values: later(site.g_per_kwh.map((g, i) => g + site.watt_price[i])), area: true },
      { name: "grid, with PUE", css: "carbon", values: later(site.g_per_kwh), area: true },
    ], options(perKwh, free(site.watt_price) ? "Watts are not scarce here: the cap binds in no step." : "Where jobs want more watts than the cap leaves, a watt is worth more than its grams."))),
    some(pools, "used").map((pool) => stepChart(`Nodes of ${pool.name}${pool.device ? ` (${pool.device})` : ""}`, edges, [
      { name: "planned", css: "phase", values: later(pool.used), area: true, hatch: true }, { name: "there are", css: "staticline", values: later(pool.nodes) },
    ], options((value) => units.significant(value), null))),
    some(pools.filter((pool) => !free(pool.node_price)), "node_price").map((pool) => stepChart(`What a node costs in ${pool.name}`, edges, [{ name: "price", css: "modelled", values: later(pool.node_price), area: true }],
      options(perHour, "In CO₂e: about what one more node would save."))),
    [sites, pools].some((list) => list.length > MOST_CHARTS) ? make("p", { class: "hint" }, `Of ${sites.length} sites and ${pools.length} pools, the ${MOST_CHARTS} with most are shown.`) : []);
};

const controller = () => {
  const { fleet, reason } = found;
  byId("cluster-controller").hidden = !fleet;
  byId("cluster-controller").className = fleet?.alive && !fleet.note ? "hint above" : "notice";
  if (!fleet) return;
  const heard = fleet.beat_s ? `was last heard of at ${moment(fleet.beat_s)}` : "was never there";
  say("cluster-controller", `Fleet ${fleet.name}: ${fleet.alive ? `${fleet.holder} controls it${fleet.dry_run ? " (dry run: it changes nothing)" : ""} and ${heard}` : `no controller. ${fleet.holder || "It"} ${heard}; jobs go on as they are`}.${reason ? ` The plan is of: ${reason}.` : ""}${fleet.note ? ` ${fleet.note}` : ""}`);
};

const actions = () => {
  const heads = ["Time (UTC)", "Job", "Action", "Reason", "Outcome"].map((head) => make("th", { scope: "col" }, head));
  const rows = found.actions.map((one) => make("tr", {}, [units.moment(one.t_s), one.job, `${one.verb} ${one.what}`, one.reason].map((text) => make("td", {}, text)),
    make("td", {}, tag(one.outcome ?? "not known: cut off", one.outcome === "done" ? "measured" : "assumed"))));
  replace(byId("cluster-actions"), rows.length ? make("section", { class: "card" }, make("h2", {}, "What the controller did last"), make("div", { class: "scroll", tabindex: 0 }, make("table", { class: "grid" }, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, rows)))) : []);
};

const trouble = (text) => {
  byId("cluster-trouble").hidden = !text;
  say("cluster-trouble", text);
  for (const node of byId("view-cluster").querySelectorAll(":scope > div")) node.hidden = Boolean(text);
};

let asking = 0;
export const show = async () => {
  const version = `${source.epoch} ${source.cluster}`;
  if (version !== drawn) {
    const turn = (asking += 1);
    try {
      const answer = await ask("/api/cluster");
      if (turn !== asking) return;
      [found, drawn] = [answer, version];
      const cut = answer.past.edges_s.at(-1);
      first = Math.max(0, answer.edges_s.findIndex((t) => t > cut) - 1);
      edges = [...answer.past.edges_s, ...answer.edges_s.slice(first + 1)];
      trouble("");
      controller();
      figures();
      charts();
      actions();
    } catch (error) {
      if (turn === asking) trouble(`The plan cannot be shown: ${error.message}`);
      return;
    }
  }
  gantt();
};
