// A cluster: its jobs by time with their gears, what they wait for, power and grams against caps, and prices.
import { axis, legend, stepChart } from "./charts.js";
import { ask, source } from "./data.js";
import { byId, draw, make, replace, say, tag } from "./dom.js";
import { set, state } from "./state.js";
import * as units from "./units.js";

const PAGE = 100;
const MOST_CHARTS = 8;
const STATES = ["running", "waiting", "planned", "late", "left out", "done"];
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
let drawn = "";

export const setUp = () => {
  byId("c-doing").append(make("option", { value: "" }, "all"), ...STATES.map((name) => make("option", { value: name }, name)));
  byId("c-job").addEventListener("input", (event) => set({ job: event.target.value, page: "1" }));
  byId("c-doing").addEventListener("change", (event) => set({ doing: event.target.value, page: "1" }));
  byId("c-previous").addEventListener("click", () => set({ page: String(Number(state.page) - 1) }));
  byId("c-next").addEventListener("click", () => set({ page: String(Number(state.page) + 1) }));
};

const figure = (head, big, ...small) => make("div", { class: "figure" }, make("h2", {}, head), make("p", { class: "big" }, big), small.filter(Boolean).map((text) => make("p", {}, text)));

const figures = () => {
  const { jobs, sites, step_g: stepG, edges_s: edges } = found;
  const count = (name) => jobs.filter((job) => job.state === name).length;
  const at = Math.max(0, edges.findIndex((t) => t > found.t_unix_s) - 1);
  const [now, cap] = ["power_w", "cap_w"].map((name) => sites.reduce((sum, site) => (sum === null || site[name][at] === null ? null : sum + site[name][at]), 0));
  const late = jobs.filter((job) => job.is_late).length;
  replace(byId("cluster-figures"),
    figure("Jobs", units.count(jobs.length), STATES.filter(count).map((name) => `${units.count(count(name))} ${name}`).join(", "), found.is_present ? "now" : `at the start of the plan, ${moment(found.t_unix_s)}`),
    figure("Power", watts(now), cap === null ? "no cap" : `of a cap of ${watts(cap)}`, "modelled, above idle nodes"),
    figure("Emissions", units.mass(found.grams + found.late_g), `CO₂e of the plan, modelled; ${units.mass(stepG.slice(0, at).reduce((a, b) => a + b, 0))} of it until now`, found.budget_g === null ? "no budget" : `of a budget of ${units.mass(found.budget_g)}`),
    figure("How good it is", found.gap === null ? units.UNKNOWN : `within ${units.percent(found.gap)}`, `of the best possible: no plan that meets the same deadlines emits less than ${units.mass(found.bound_g)}`, late ? `${units.count(late)} deadline${late > 1 ? "s" : ""} missed` : "no deadline missed"));
};

const shown = () => {
  const words = state.job.toLowerCase().split(/\s+/).filter(Boolean);
  return found.jobs.filter((job) => (state.doing === "" || job.state === state.doing) &&
    words.every((word) => [job.name, job.user, job.state, job.waits_for, job.row, ...job.stays.map((stay) => stay[4])].some((text) => text?.toLowerCase().includes(word))));
};

const bar = (job) => {
  const { edges_s: edges } = found;
  const [t0, t1] = [edges[0], edges[edges.length - 1]];
  const x = (t) => 100 * Math.min(1, Math.max(0, ((t ?? t0) - t0) / (t1 - t0)));
  const svg = draw("svg", { width: "100%", height: 20, "aria-hidden": "true" });
  const [from, to] = [x(job.release_s), x(job.deadline_s ?? t1)];
  svg.append(draw("rect", { class: "window", x: `${from}%`, width: `${Math.max(0, to - from)}%`, y: 8, height: 4 }));
  for (const [a, b, row, nodes, pool] of job.stays) {
    const at = { x: `${x(a)}%`, width: `${x(b) - x(a)}%`, y: 2, height: 16 };
    svg.append(draw("rect", { ...at, class: `f-${colour(row)}` }, draw("title", {}, `${row}: ${nodes} nodes of ${pool}, ${moment(a)} to ${moment(b)}`)));
    if (job.is_late) svg.append(draw("rect", { ...at, fill: "url(#hatch)", "pointer-events": "none" }));
  }
  if (job.deadline_s !== null && job.deadline_s <= t1) svg.append(draw("rect", { class: "deadline", x: `${to}%`, width: 2, height: 20 }));
  if (found.is_present) svg.append(draw("rect", { class: "present", x: `${x(found.t_unix_s)}%`, width: 1, height: 20 }));
  return svg;
};

const line = (job) => {
  const doing = known(job.row) ? job.row : job.waits_for ? `waits for ${job.waits_for}` : "";
  const end = job.stays.length ? `done by ${units.moment(job.stays[job.stays.length - 1][1])}` : "";
  const due = job.deadline_s === null ? "" : `due ${units.moment(job.deadline_s)}`;
  return make("tr", { "data-job": job.name },
    make("th", { scope: "row" }, job.name, make("small", {}, [job.user, job.stays[0]?.[4]].filter(Boolean).join(" · "))),
    make("td", { class: "bar" }, bar(job)),
    make("td", {}, tag(job.state, job.is_late || job.state === "left out" ? "missing" : ""), ` ${doing}`, known(job.until_s) ? ` until ${units.moment(job.until_s)}` : "", make("small", {}, [end, due].filter(Boolean).join("; "))));
};

const gantt = () => {
  const jobs = shown();
  const pages = Math.max(1, Math.ceil(jobs.length / PAGE));
  const page = Math.min(Math.max(1, Math.floor(Number(state.page)) || 1), pages);
  const part = jobs.slice((page - 1) * PAGE, page * PAGE);
  if (document.activeElement !== byId("c-job")) byId("c-job").value = state.job;
  byId("c-doing").value = STATES.includes(state.doing) ? state.doing : "";
  say("cluster-count", `${units.count(jobs.length)} of ${units.count(found.jobs.length)} jobs`);
  say("c-place", `${(page - 1) * PAGE + 1}–${(page - 1) * PAGE + part.length} of ${units.count(jobs.length)}`);
  byId("c-previous").disabled = page <= 1;
  byId("c-next").disabled = page >= pages;
  byId("cluster-pages").hidden = pages <= 1;
  const gears = new Map(found.jobs.flatMap((job) => job.stays.map((stay) => [gearOf(stay[2]), colour(stay[2])])));
  replace(byId("cluster-legend"), ...legend([...[...gears].map(([label, css]) => ({ label, css })), { label: "from release to deadline", css: "grid" }, { label: "too late", css: "grid", hatch: true }]).childNodes);
  replace(byId("cluster-axis"), make("tr", {}, make("th", { scope: "col" }, "Job"), make("th", { scope: "col", class: "times" }, make("span", { class: "hidden" }, "Time (UTC)"), axis(found.edges_s)), make("th", { scope: "col" }, "Now")));
  replace(byId("cluster-jobs"), part.map(line));
};

const charts = () => {
  const { edges_s: edges, sites, pools, step_g: stepG } = found;
  const nowS = found.is_present ? found.t_unix_s : null;
  const options = (text, hint) => ({ text, hint, when: moment, nowS });
  const some = (list, used) => [...list].sort((a, b) => Math.max(...b[used]) - Math.max(...a[used])).slice(0, MOST_CHARTS);
  let sum = 0;
  const cumulative = stepG.map((g) => (sum += g));
  const budget = found.budget_g === null ? [] : [{ name: "budget", css: "staticline", values: stepG.map(() => found.budget_g) }];
  const free = (values) => values.every((value) => !value);
  replace(byId("cluster-charts"),
    some(sites, "power_w").map((site) => stepChart(`Power at ${site.name}`, edges, [
      { name: "planned", css: "phase", values: site.power_w, area: true, hatch: true }, { name: "cap", css: "staticline", values: site.cap_w },
    ], options(watts, "At the meter of the facility, above idle nodes; modelled by the tables of the jobs' rows."))),
    stepChart("CO₂e since the start of the plan", edges, [{ name: "planned", css: "carbon", values: cumulative, area: true, hatch: true }, ...budget], options(units.mass, "All jobs at all sites, by the end of each step; modelled.")),
    some(sites, "watt_price").map((site) => stepChart(`What a kWh costs at ${site.name}`, edges, [
      { name: "with the price of scarce watts", css: "modelled", values: site.g_per_kwh.map((g, i) => g + site.watt_price[i]), area: true }, { name: "grid, with PUE", css: "carbon", values: site.g_per_kwh, area: true },
    ], options(perKwh, free(site.watt_price) ? "Watts are not scarce here: the cap binds in no step." : "Where jobs want more watts than the cap leaves, a watt is worth more than its grams."))),
    some(pools, "used").map((pool) => stepChart(`Nodes of ${pool.name}${pool.device ? ` (${pool.device})` : ""}`, edges, [
      { name: "planned", css: "phase", values: pool.used, area: true, hatch: true }, { name: "there are", css: "staticline", values: pool.nodes },
    ], options((value) => units.significant(value), null))),
    some(pools.filter((pool) => !free(pool.node_price)), "node_price").map((pool) => stepChart(`What a node costs in ${pool.name}`, edges, [{ name: "price", css: "modelled", values: pool.node_price, area: true }],
      options(perHour, "In CO₂e: about what one more node would save."))),
    [sites, pools].some((list) => list.length > MOST_CHARTS) ? make("p", { class: "hint" }, `Of ${sites.length} sites and ${pools.length} pools, the ${MOST_CHARTS} with most are shown.`) : []);
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
      trouble("");
      figures();
      charts();
    } catch (error) {
      if (turn === asking) trouble(`The plan cannot be shown: ${error.message}`);
      return;
    }
  }
  gantt();
};
