"use strict";
// A crosshair and a box of values over each plot, by mouse, touch and arrow keys. The page is whole without it.
(() => {
  const tips = JSON.parse(document.getElementById("tips").textContent);
  const box = document.getElementById("tip");
  const time = (s) => {
    if (s < 60) return s.toFixed(1) + " s";
    const t = Math.round(s);
    if (t < 3600) return Math.floor(t / 60) + " min " + (t % 60) + " s";
    if (t < 86400) return Math.floor(t / 3600) + " h " + Math.floor((t % 3600) / 60) + " min";
    return Math.floor(t / 86400) + " d " + Math.floor((t % 86400) / 3600) + " h";
  };
  const element = (name, css, text) => {
    const node = document.createElement(name);
    if (css) node.className = css;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  for (const plot of document.querySelectorAll("[data-chart]")) {
    const data = tips[plot.dataset.chart];
    const count = data.rows[0].values.length;
    const cross = element("i", "cross");
    cross.hidden = true;
    plot.append(cross);
    let at = 0;
    const show = (index) => {
      at = Math.max(0, Math.min(count - 1, index));
      const share = (at + 0.5) / count;
      cross.hidden = box.hidden = false;
      cross.style.left = 100 * share + "%";
      const then = share * data.span_s;
      const clock = () => new Date(1000 * (data.start_unix_s + then)).toISOString().slice(0, 16).replace("T", " ") + " UTC";
      box.replaceChildren(element("b", "", data.start_unix_s === undefined ? time(then) : clock()));
      for (const row of data.rows) {
        const value = row.values[at];
        const line = element("div", "row");
        line.append(element("i", row.css ? "dot f-" + row.css : "dot"), element("span", "", row.name));
        line.append(element("em", "", value === null ? "unknown" : (value + " " + row.unit).trim()));
        box.append(line);
      }
      const area = plot.getBoundingClientRect();
      const x = area.left + share * area.width;
      const left = x + 14 + box.offsetWidth > window.innerWidth ? x - 14 - box.offsetWidth : x + 14;
      box.style.left = Math.max(4, left) + window.scrollX + "px";
      box.style.top = area.top + 8 + window.scrollY + "px";
    };
    const hide = () => { cross.hidden = box.hidden = true; };
    plot.addEventListener("pointermove", (event) => {
      const area = plot.getBoundingClientRect();
      show(Math.floor(((event.clientX - area.left) / area.width) * count));
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -count / 10, PageDown: count / 10, Home: -count, End: count }[event.key];
      if (event.key === "Escape") hide();
      if (by === undefined) return;
      event.preventDefault();
      show(Math.round(at + by));
    });
  }
})();
