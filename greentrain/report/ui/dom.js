// Elements made by hand: text is only ever text, so no name of a run can become markup.
const SVG = "http://www.w3.org/2000/svg";

const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
};

export const byId = (id) => document.getElementById(id);
export const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const draw = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// Replace children, and keep the keyboard where it was.
export const replace = (node, ...children) => {
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...children.flat());
  if (key) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
};

export const say = (id, text) => {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
};

export const tag = (text, css = "", title = null) => make("span", { class: `tag ${css}`.trim(), title }, text);
