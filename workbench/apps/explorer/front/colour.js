// Colour with meaning: blue is attention from the query in question, orange attention to it, on both grounds; of a
// difference, green is more here and purple more in the pinned view.

import { byBits, byRow } from "./bundle.js";

const STOPS = {
  light: {
    from: ["#f1f4f9", "#9cc3f5", "#2f78dc", "#07305f"],
    to: ["#f8f3ee", "#f9c08b", "#d9660f", "#5f2400"],
  },
  dark: {
    from: ["#1a2028", "#1d4f8f", "#4a9bf5", "#e3f1ff"],
    to: ["#231d18", "#8a4510", "#f08c35", "#fff0df"],
  },
};
const HUES = {
  light: { from: [20, 95, 215], to: [214, 92, 8], here: [20, 120, 55], pinned: [125, 40, 140] },
  dark: { from: [64, 156, 255], to: [255, 146, 48], here: [80, 200, 115], pinned: [205, 130, 235] },
};
/** Several heads at once; after Okabe and Ito, which colour-blind readers tell apart. */
export const HEADS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#8c8c8c"];

const tables = new Map();

/** 256 colours from nothing to most, as red, green, blue. */
export function ramp(theme, direction) {
  const key = theme + direction;
  if (!tables.has(key)) {
    const stops = STOPS[theme][direction].map(parts);
    const table = new Uint8ClampedArray(256 * 3);
    for (let i = 0; i < 256; i++) {
      const place = (i / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(place), stops.length - 2);
      for (let c = 0; c < 3; c++) {
        table[i * 3 + c] = stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (place - low);
      }
    }
    tables.set(key, table);
  }
  return tables.get(key);
}

export function hue(theme, direction) {
  return HUES[theme][direction];
}

/** Whether light letters are read better than dark ones on a hue of some opacity over the ground of a theme. */
export function lightLetters(theme, direction, alpha) {
  const ground = theme === "dark" ? [20, 24, 30] : [255, 255, 255];
  const over = HUES[theme][direction].map((part, c) => part * alpha + ground[c] * (1 - alpha));
  const [red, green, blue] = over.map((part) => (part <= 10 ? part / 3295 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue; // relative luminance, as WCAG defines it
  return 1.05 / (light + 0.05) > (light + 0.05) / 0.059;
}

function parts(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

const LOG_FLOOR = 1e-3; // of the largest value: three decades
/** Times uniform attention: where colour by that ratio is full. At 1 and below it is transparent. */
export const RATIO = 16;

/** A value as a share of the scale, 0 to 1: linear, square root, logarithmic over three decades, or from 1 to `RATIO` times uniform. */
export function scaled(value, limit, scale) {
  if (!(value > 0) || !(limit > 0)) return 0;
  const share = Math.min(1, value / limit);
  if (scale === "sqrt") return Math.sqrt(share);
  if (scale === "log") return Math.max(0, 1 - Math.log(share) / Math.log(LOG_FLOOR));
  if (scale === "ratio") return Math.max(0, 1 + Math.log(share) / Math.log(RATIO));
  return share;
}

/** The value at a share of the scale: what a colour bar writes. */
export function unscaled(share, limit, scale) {
  if (scale === "sqrt") return limit * share * share;
  if (scale === "log") return limit * LOG_FLOOR ** (1 - share);
  if (scale === "ratio") return limit * RATIO ** (share - 1);
  return limit * share;
}

/** The share that a fraction of sorted values lies below. */
export function quantile(values, fraction) {
  const known = Float64Array.from(values).filter(Number.isFinite).sort();
  if (!known.length) return NaN;
  const place = fraction * (known.length - 1);
  const low = Math.floor(place);
  return known[low] + (known[Math.min(low + 1, known.length - 1)] - known[low]) * (place - low);
}

/** A canvas as large as its box, in device pixels, cleared; null where the box has no size. */
export function fresh(canvas, width, height) {
  const ratio = printed ?? (globalThis.devicePixelRatio || 1) * (canvas.currentCSSZoom || 1);
  if (width < 1 || height < 1) return null;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

let printed = null;

/** Have `act` draw with so many pixels of a canvas to one of the page. */
export function dense(times, act) {
  printed = times;
  try {
    return act();
  } finally {
    printed = null;
  }
}

/** Pixels of a canvas to one of the page: those of an export, or of the screen. */
export function density() {
  return printed ?? globalThis.devicePixelRatio;
}

const palettes = new Map();

/** The colours and letters of a theme, asked of the style sheet once: asking while drawing makes the browser lay out. */
export function palette(theme, box) {
  if (!palettes.has(theme)) {
    const style = getComputedStyle(box);
    const names = ["ink", "muted", "line", "panel", "bar", "band", "soft"];
    const colours = Object.fromEntries(names.map((name) => [`--${name}`, style.getPropertyValue(`--${name}`)]));
    palettes.set(theme, { fontFamily: style.fontFamily, getPropertyValue: (name) => colours[name] });
  }
  return palettes.get(theme);
}

const scratch = { canvas: null };

/** Draw values row by row into a box, one rectangle each, through a ramp. */
export function mosaic(pen, values, columns, rows, limit, look, box) {
  mosaics(pen, [{ values, box }], columns, rows, limit, look);
}

/** The same of many maps of one size: their pixels are handed over at once. */
export function mosaics(pen, maps, columns, rows, limit, look) {
  const canvas = (scratch.canvas ??= document.createElement("canvas"));
  canvas.width = columns;
  canvas.height = rows * maps.length;
  const inner = canvas.getContext("2d");
  const image = inner.createImageData(columns, rows * maps.length);
  const pixels = new Uint32Array(image.data.buffer);
  const table = packed(look.theme, look.direction);
  const size = columns * rows;
  maps.forEach(({ values }, place) => {
    for (let i = 0; i < size; i++) {
      if (i >= values.length || !Number.isFinite(values[i])) continue; // nothing: seen through
      pixels[place * size + i] = table[Math.round(scaled(values[i], limit, look.scale) * 255)];
    }
  });
  inner.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  maps.forEach(({ box, faint }, place) => {
    pen.globalAlpha = faint ?? 1;
    pen.drawImage(canvas, 0, place * rows, columns, rows, box.x, box.y, box.width, box.height);
  });
  pen.globalAlpha = 1;
}

/** A matrix of float16 bits as a canvas of one pixel for each, through a ramp; `limits` are those of its rows where they differ. */
export function bitmap(bits, columns, rows, limit, look, limits = null) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const table = packed(look.theme, look.direction);
  const colours = byBits(new Uint32Array(65536), (value) => table[Math.round(scaled(value, limit, look.scale) * 255)]);
  if (limits) byRow(pixels, bits, columns, (value, row) => table[Math.round(scaled(value, limits[row], look.scale) * 255)]);
  else for (let i = 0; i < pixels.length; i++) pixels[i] = colours[bits[i]];
  pen.putImageData(image, 0, 0);
  return canvas;
}

/** A ramp as pixels of four bytes, in the order of this machine. */
function packed(theme, direction) {
  const key = `${theme}${direction} packed`;
  if (!tables.has(key)) {
    const table = ramp(theme, direction);
    const bytes = new Uint8ClampedArray(256 * 4);
    for (let i = 0; i < 256; i++) bytes.set([table[i * 3], table[i * 3 + 1], table[i * 3 + 2], 255], i * 4);
    tables.set(key, new Uint32Array(bytes.buffer));
  }
  return tables.get(key);
}

/** A colour bar 28 px high: nothing, half and most of a scale in words, and a tick at a level. */
export function colourBar(pen, width, { limit, scale, level = NaN, colour, style }) {
  const [left, wide] = [8, width - 30];
  for (let i = 0; i < wide; i++) {
    pen.fillStyle = colour(i / wide);
    pen.fillRect(left + i, 4, 1, 8);
  }
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.strokeRect(left - 0.5, 3.5, wide + 1, 9);
  pen.font = `10.5px ${style.fontFamily}`;
  pen.fillStyle = style.getPropertyValue("--muted");
  pen.textBaseline = "top";
  for (const share of [0, 0.5, 1]) {
    pen.textAlign = share === 0 ? "left" : "center";
    const value = unscaled(share, limit, scale);
    const words = scale === "ratio" ? `${number(value).replace(/\.0+$/, "")}\u00a0×` : share === 0 && scale !== "log" ? "0" : percent(value);
    pen.fillText(words, left + share * wide - (share === 0 ? 3 : 0), 16);
  }
  if (!Number.isFinite(level)) return;
  pen.fillStyle = style.getPropertyValue("--ink");
  pen.fillRect(left + scaled(level, limit, scale) * wide, 1, 1.5, 14);
}

/** The colour of a ramp at a share of it, as CSS. */
export function rampColour({ theme, direction }, share) {
  const start = 3 * Math.round(share * 255);
  return `rgb(${ramp(theme, direction).subarray(start, start + 3).join(",")})`;
}

/** 0.1234 as "12.3 %", and very little as "0.02 %". */
export function percent(value) {
  if (!Number.isFinite(value)) return "–";
  const digits = value >= 0.0995 ? 0 : value >= 0.00995 ? 1 : 2;
  return `${(value * 100).toFixed(digits)}\u00a0%`;
}

/** A number with three digits that count. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}
