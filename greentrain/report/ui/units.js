// Figures with units, as greentrain.utils.format writes them; unknown is "unknown", never 0.
export const UNKNOWN = "unknown";
const THIN = "\u2009";
const ENERGY = [[3.6e9, "MWh"], [3.6e6, "kWh"], [3600, "Wh"], [3.6, "mWh"]];
const MASS = [[1e6, "t"], [1e3, "kg"], [1, "g"], [1e-3, "mg"], [1e-6, "µg"]];
const JOULE = [[1e9, "GJ"], [1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"], [1e-6, "µJ"]];
const TIME = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const COUNT = [[1e12, "T"], [1e9, "G"], [1e6, "M"]];
const known = (value) => value !== null && value !== undefined;

const grouped = (text) => {
  const [whole, part] = text.split(".");
  const set = whole.replace(/\B(?=(\d{3})+$)/g, THIN);
  return part === undefined ? set : `${set}.${part}`;
};

export const significant = (value, digits = 3) => {
  if (value === 0) return "0";
  const exponent = Number(Math.abs(value).toExponential(digits - 1).split("e")[1]);
  const places = digits - 1 - exponent;
  if (places >= 0) return grouped(value.toFixed(Math.min(places, 100)));
  const size = 10 ** -places;
  return grouped((Math.round(value / size) * size).toFixed(0));
};

const scaled = (value, units) => {
  if (!known(value)) return UNKNOWN;
  const found = units.find(([size]) => Math.abs(value) >= size * 0.9995);
  const [size, unit] = found ?? (value ? units[units.length - 1] : units.find(([one]) => one === 1 || one === 3600));
  return `${significant(value / size)} ${unit}`;
};

export const energy = (value) => scaled(value, ENERGY);
export const mass = (value) => scaled(value, MASS);
export const joules = (value) => scaled(value, JOULE);

export const percent = (share) => {
  if (!known(share)) return UNKNOWN;
  if (share > 0 && share < 0.001) return "< 0.1 %";
  if (share > 0.999 && share < 1) return "> 99.9 %";
  return share > 0 && share < 1 ? `${(share * 100).toFixed(1)} %` : `${(share * 100).toFixed(0)} %`;
};

export const duration = (value) => {
  if (!known(value)) return UNKNOWN;
  if (value < 60) return scaled(value, TIME);
  const total = Math.round(value);
  for (const [size, unit, small, smaller] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (total >= size) {
      const rest = Math.floor((total % size) / small);
      return `${Math.floor(total / size)} ${unit}` + (rest ? ` ${rest} ${smaller}` : "");
    }
  }
  return `${total} s`;
};

export const count = (value) => {
  if (!known(value)) return UNKNOWN;
  const found = COUNT.find(([size]) => value >= size);
  return found ? `${significant(value / found[0])} ${found[1]}` : grouped(value.toFixed(0));
};

export const rate = (value) => (known(value) ? `${significant(value)}/s` : UNKNOWN);
export const moment = (value) => (known(value) ? new Date(1000 * value).toISOString().slice(0, 16).replace("T", " ") : UNKNOWN);
export const ratio = (value, first) => (known(value) && known(first) && first > 0 ? `× ${significant(value / first)}` : "");
