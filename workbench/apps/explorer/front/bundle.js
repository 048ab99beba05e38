// Reads a bundle (docs/bundle.md): a safetensors file whose metadata holds a JSON header.

const SCHEMA = 5;
export const SINK = 0.3; // as `workbench.analyze("sinks")` has it
const ARRAYS = { F64: Float64Array, F32: Float32Array, F16: Uint16Array, U8: Uint8Array };

/** float16 bits to numbers: a table of all 65 536, since browsers differ in Float16Array. */
const HALF = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 0) table[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else table[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
})();

const INFINITE = 0x7c00; // bits from here to those of numbers below zero are of no number
const NEGATIVE = 0x8000;

/** What a function gives for every float16, by its bits. */
export function byBits(values, of) {
  for (let bits = 0; bits < HALF.length; bits++) if (!Number.isNaN(HALF[bits])) values[bits] = of(HALF[bits]);
  return values;
}

/** What a function gives for every float16 of a matrix and its row. */
export function byRow(values, bits, columns, of) {
  for (let i = 0; i < values.length; i++) values[i] = of(HALF[bits[i]], Math.floor(i / columns));
}

/** The bits of the float16 at or just above a number from 0 up. */
function halved(value) {
  let [low, high] = [0, INFINITE];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (HALF[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

const SINGLE = new Float32Array(1);
const WORD = new Uint32Array(SINGLE.buffer);

/** The bits of the float16 nearest to a number from 0 up. */
function nearest(value) {
  if (value < 2 ** -14) return Math.round(value * 2 ** 24);
  SINGLE[0] = value;
  return Math.min((WORD[0] - 0x38000000 + 0x1000) >> 13, INFINITE);
}

/** Numbers as the bits of the nearest float16, and the largest distance from one to its own. */
export function rounded(values) {
  let error = 0;
  const bits = Uint16Array.from(values, (value) => {
    const size = Math.abs(value);
    const found = nearest(size);
    error = Math.max(error, Math.abs(size - HALF[found]));
    return found | (value < 0 ? NEGATIVE : 0);
  });
  return { bits, error };
}

export class BundleError extends Error {}

/** One attention layer of one input: rows and columns of its matrices by head, decoded from float16 as they are asked for. */
export class Maps {
  constructor(bits, shape, tokens) {
    [this.heads, this.rows, this.columns] = shape;
    this.bits = bits;
    this.tokens = tokens;
    this.pooled = this.columns < tokens;
    this.queries = this.pooled && this.rows > 1 ? tokens : this.rows;
    this.means = new Map();
  }

  /** Where a token's row is: its own, its bin's, or the only one. */
  rowOf(token) {
    if (this.rows === 1) return 0;
    return this.pooled ? Math.floor((token * this.rows) / this.tokens) : token;
  }

  columnOf(token) {
    return this.pooled ? Math.floor((token * this.columns) / this.tokens) : token;
  }

  at(head, query, key) {
    return HALF[this.bits[(head * this.rows + query) * this.columns + key]];
  }

  /** A head's whole matrix as it is stored, row by row. */
  matrix(head) {
    const size = this.rows * this.columns;
    return this.bits.subarray(head * size, (head + 1) * size);
  }

  /** The mean over heads, each of its own maps, as maps of one head; those of other sizes are left out. */
  static mean(pairs) {
    const [[first]] = pairs;
    const parts = pairs.filter(([maps]) => maps?.rows === first.rows && maps.columns === first.columns).map(([maps, head]) => maps.matrix(head));
    const bits = Uint16Array.from(parts[0], (_, i) => halved(parts.reduce((sum, part) => sum + HALF[part[i]], 0) / parts.length));
    return new Maps(bits, [1, first.rows, first.columns], first.tokens);
  }

  /** Share of each key in the summed norms that a head writes to a query: attention × ‖v W_O‖ of the key (head, key), over the sum of the row. */
  written(norms) {
    const { rows, columns } = this;
    const bits = new Uint16Array(this.bits.length);
    const parts = new Float64Array(columns);
    for (let row = 0; row < this.heads * rows; row++) {
      const own = Math.floor(row / rows) * columns;
      let sum = 0;
      for (let key = 0; key < columns; key++) sum += parts[key] = HALF[this.bits[row * columns + key]] * norms[own + key];
      for (let key = 0; key < columns && sum > 0; key++) bits[row * columns + key] = nearest(parts[key] / sum);
    }
    return new Maps(bits, [this.heads, rows, columns], this.tokens);
  }

  /** A head's largest value, and the one that a share of its values lies below: counted, for float16 has few values. */
  extent(head, share) {
    const bits = this.matrix(head);
    const counts = new Uint32Array(HALF.length);
    for (let i = 0; i < bits.length; i++) counts[bits[i]] += 1;
    let below = 0; // numbers below zero come first
    for (let value = NEGATIVE; value <= NEGATIVE + INFINITE; value++) below += counts[value];
    const known = counts.subarray(0, INFINITE + 1).reduce((sum, count) => sum + count, below);
    let [most, limit] = [0, 0];
    for (let value = 0; value <= INFINITE; value++) {
      if (!counts[value]) continue;
      if (below < share * known) limit = value;
      below += counts[value];
      most = value;
    }
    return { most: HALF[most], limit: HALF[limit] };
  }

  /** Attention of one query to every token. */
  from(head, token) {
    const start = (head * this.rows + this.rowOf(token)) * this.columns;
    const found = new Float32Array(this.tokens);
    for (let key = 0; key < this.tokens; key++) found[key] = HALF[this.bits[start + this.columnOf(key)]];
    return found;
  }

  /** Attention of every query to one token; of a layer with one query, only that. */
  to(head, token) {
    const column = this.columnOf(token);
    const found = new Float32Array(this.queries);
    for (let query = 0; query < found.length; query++) found[query] = this.at(head, this.rowOf(query), column);
    return found;
  }

  /** Mean over the queries that are real tokens. */
  mean(head, real) {
    if (this.means.has(head)) return this.means.get(head);
    const sums = new Float64Array(this.columns);
    let count = 0;
    for (let query = 0; query < this.queries; query++) {
      if (this.rows > 1 && !real[query]) continue;
      const start = (head * this.rows + this.rowOf(query)) * this.columns;
      for (let key = 0; key < this.columns; key++) sums[key] += HALF[this.bits[start + key]];
      count += 1;
    }
    const found = new Float32Array(this.tokens);
    for (let key = 0; key < this.tokens; key++) found[key] = sums[this.columnOf(key)] / count;
    this.means.set(head, found);
    return found;
  }

  /** Keys with more than `SINK` of a head's attention, mean over the real queries. */
  sinks(head, real) {
    const mean = this.mean(head, real);
    return [...mean.keys()].filter((key) => mean[key] > SINK);
  }

  /** Whether no query attends to a later key, in any head: it may then see the keys up to itself alone. */
  get causal() {
    this.looks ??= this.rows === 1 || this.rows !== this.columns
      || this.bits.some((bit, i) => bit && i % this.columns > Math.floor(i / this.columns) % this.rows);
    return !this.looks;
  }

  /** Whether the mask hides a key from a query: of a causal layer every later key. */
  hides(query, key) {
    return this.causal && this.columnOf(key) > this.rowOf(query);
  }

  /** What the queries would give each real key that they may see, on average. */
  even(queries, real) {
    let sum = 0;
    this.upTo ??= Int32Array.from(real, (one) => (sum += one ? 1 : 0)); // real keys up to each token
    const count = this.upTo.at(-1);
    const seen = (query) => (this.causal ? this.upTo[query] : count) || 1;
    return queries.reduce((sum, query) => sum + 1 / seen(query), 0) / queries.length;
  }
}

/** A bundle from an ArrayBuffer. Throws BundleError with words for a person. */
export function readBundle(buffer) {
  const { header, view } = readHeader(buffer);
  const known = new Map();
  const array = (name) => {
    if (!known.has(name)) known.set(name, view(name));
    return known.get(name);
  };
  /** An array as numbers, whether it was rounded or not. */
  const floats = (name) => {
    const key = `${name} decoded`;
    if (!known.has(key)) {
      const found = array(name);
      known.set(key, found && { shape: found.shape, values: found.values instanceof Uint16Array ? Float32Array.from(found.values, (bits) => HALF[bits]) : found.values });
    }
    return known.get(key);
  };
  const planeOf = (start, head) => {
    const [q, k, share] = ["q", "k", "share"].map((site) => array(`${start}.${site}`));
    if (!q || !k || !share) return null;
    const points = ({ values, shape }) => Array.from({ length: shape[1] }, (_, row) => Array.from(values.subarray((head * shape[1] + row) * 2, (head * shape[1] + row) * 2 + 2)));
    return { q: points(q), k: points(k), share: Array.from(share.values.subarray(head * 2, head * 2 + 2)) };
  };
  const spectrumOf = (start, name, layer, head) => {
    const found = { name };
    for (const which of ["value", "null_mean", "null_low", "null_high"]) {
      const one = array(`${start}.${which}`);
      if (!one) return null;
      const [heads, ranks] = one.shape;
      const group = Math.floor((head * heads) / layer.heads);
      found[which] = one.values.subarray(group * ranks, (group + 1) * ranks);
    }
    return found;
  };
  const layers = header.layers.map((card, place) => ({ ...card, place }));
  const inputs = header.inputs.map((card, place) => {
    const start = `inputs.${place}.`;
    const maps = new Map();
    const written = new Map();
    const views = new Map();
    return {
      ...card,
      /** The input as a layer sees it: its own tokens or those of another stream; of cross attention the keys, which `asks` attend to. */
      at(layer) {
        const own = views.get("0.0") ?? this;
        views.set("0.0", own);
        const key = `${layer.queries}.${layer.keys}`;
        if (!views.has(key)) {
          const [asks, keys] = [layer.queries, layer.keys].map((stream) => (stream ? card.streams[stream - 1] : card));
          const { labels, kinds, real, grid } = keys;
          views.set(key, Object.assign(Object.create(own), { labels, kinds, real, grid, cells: keys === card ? own.cells : null, count: labels.length, asks: asks === keys ? null : asks, prediction: null, generated: 0 }));
        }
        return views.get(key);
      },
      place,
      count: card.labels.length,
      generated: card.generated ?? 0,
      checkpoint: card.checkpoint ?? "",
      layerAt: (index) => layers.find((layer) => layer.index === index),
      cells: array(start + "cells")?.values ?? null,
      pixels: card.image ? array(start + "image").values : null,
      maps(layer) {
        if (layer.without) return null;
        if (!maps.has(layer.index)) {
          const { values, shape } = array(`${start}layers.${layer.index}.${layer.pooled ? "attn_mean" : "attn"}`);
          maps.set(layer.index, new Maps(values, shape, this.at(layer).count));
        }
        return maps.get(layer.index);
      },
      /** What heads write, by query and key: the layer's maps weighted by the norms of its values; null where they are not here. */
      written(layer) {
        if (!written.has(layer.index)) {
          const norms = this.norms(layer, "written");
          written.set(layer.index, norms && this.maps(layer)?.written(norms.values));
        }
        return written.get(layer.index) ?? null;
      },
      norms(layer, site) {
        return array(`${start}layers.${layer.index}.norms.${site}`, true);
      },
      /** Whether a layer has an array in this file. */
      has: (layer, site) => Boolean(array(`${start}layers.${layer.index}.${site}`)),
      /** Vectors of one head by token, or null: of grouped heads the keys are those of the group. */
      operand(layer, site, head) {
        const found = floats(`${start}layers.${layer.index}.${site}`);
        if (!found) return null;
        const [heads, rows, width] = found.shape;
        const first = Math.floor((head * heads) / layer.heads) * rows * width;
        return Array.from({ length: rows }, (_, row) => Array.from(found.values.subarray(first + row * width, first + (row + 1) * width)));
      },
      scale(layer, head) {
        return array(`${start}layers.${layer.index}.scale`).values[head];
      },
      /** Queries and keys of a head as points, and the share of the variance along both axes. */
      plane(layer, head) {
        return planeOf(`${start}layers.${layer.index}.plane`, head);
      },
      /** Memberships of every token by head, or null. */
      membership(layer) {
        const found = array(`${start}layers.${layer.index}.membership`);
        if (!found) return null;
        const [heads, count] = found.shape;
        return Array.from({ length: heads }, (_, head) => found.values.subarray(head * count, (head + 1) * count));
      },
      /** Of a layer and position the strongest links (head, key, what it adds to the logit) and the sum of all, or null. */
      route(layer, position) {
        const [links, total] = ["links", "total"].map((name) => array(`${start}layers.${layer.index}.route.${name}`));
        if (!links || !Number.isFinite(total.values[position])) return null;
        const [, count, fields] = links.shape;
        const rows = Array.from({ length: count }, (_, row) => Array.from(links.values.subarray((position * count + row) * fields, (position * count + row + 1) * fields)));
        return { links: rows.filter(([head]) => Number.isFinite(head)), total: total.values[position] };
      },
      /** A metric by rank with its null distribution; of grouped heads that of the group. */
      spectrum(layer, head, name) {
        return spectrumOf(`${start}layers.${layer.index}.spectra.${name}`, name, layer, head);
      },
      /** Probabilities of the likeliest outcomes at a position. */
      predicted(position) {
        const { values, shape } = array(start + "prediction.probability");
        return values.subarray(position * shape[1], (position + 1) * shape[1]);
      },
      predictedActual(position) {
        return array(start + "prediction.actual").values[position];
      },
      /** Numbers at a position without one head: `count` of them follow one another. */
      ablated(mode, what, layer, head, position, count) {
        const found = floats(`${start}ablations.${mode}.${what}`);
        if (!found) return new Float32Array(count).fill(NaN);
        const [, heads, positions] = found.shape;
        const first = ((layer.place * heads + head) * positions + position) * count;
        return found.values.subarray(first, first + count);
      },
      /** Numbers at a position without one patch or word: `count` of them follow one another. */
      without(token, what, position, count) {
        const found = floats(`${start}removal.${what}`);
        if (!found) return new Float32Array(count).fill(NaN);
        const first = (token * found.shape[1] + position) * count;
        return found.values.subarray(first, first + count);
      },
      metric(name, number, layer, head) {
        const found = array(`${start}metrics.${name}.${number}`);
        return found ? found.values[layer.place * found.shape[1] + head] : NaN;
      },
      /** A number of a whole layer. */
      ofLayer(name, number, layer) {
        return array(`${start}by_layer.${name}.${number}`)?.values[layer.place] ?? NaN;
      },
    };
  });
  /** Of the cards over many inputs: singular values of a circuit, and the plane of queries and keys. */
  const circuit = (layer, head, name) => spectrumOf(`cards.layers.${layer.index}.circuits.${name}`, name, layer, head);
  const cardPlane = (layer, head) => planeOf(`cards.layers.${layer.index}.plane`, head);
  const weight = (name) => array(`network.${name}`).values;
  return { ...header, header, layers, inputs, circuit, cardPlane, weight };
}

/** The bytes of a bundle of these arrays, each as values and shape, by name. */
export function writeBundle(header, arrays) {
  const outer = { __metadata__: { workbench: JSON.stringify(header) } };
  let end = 0;
  for (const [name, [values, shape]] of Object.entries(arrays)) {
    const dtype = Object.keys(ARRAYS).find((kind) => values instanceof ARRAYS[kind]);
    outer[name] = { dtype, shape, data_offsets: [end, (end += values.byteLength)] };
  }
  const words = new TextEncoder().encode(JSON.stringify(outer));
  const bytes = new Uint8Array(8 + words.length + end);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(words.length), true);
  bytes.set(words, 8);
  for (const [name, [values]] of Object.entries(arrays)) bytes.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), 8 + words.length + outer[name].data_offsets[0]);
  return bytes.buffer;
}

function readHeader(buffer) {
  const cut = () => new BundleError("This file is cut short, or is no bundle of the explorer. Write it again.");
  if (buffer.byteLength < 8) throw cut();
  const words = new DataView(buffer);
  const length = Number(words.getBigUint64(0, true));
  if (length > buffer.byteLength - 8) throw cut();
  let outer, header;
  try {
    outer = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(buffer, 8, length)));
    header = JSON.parse(outer.__metadata__.workbench);
  } catch {
    throw new BundleError("The header of this file cannot be read: it is no bundle of the explorer.");
  }
  if (!header || header.format !== "attention-bundle") throw new BundleError("This file is no bundle of the explorer.");
  if (header.bundle_schema !== SCHEMA) {
    throw new BundleError(
      `This bundle is written in schema ${String(header.bundle_schema).slice(0, 20)}; this page reads schema ${SCHEMA}. ` +
        "Write bundle and page with one version.",
    );
  }
  const view = (name) => {
    const entry = Object.hasOwn(outer, name) ? outer[name] : null;
    if (!entry) return null;
    const [first, last] = entry.data_offsets;
    const kind = ARRAYS[entry.dtype];
    const size = entry.shape.reduce((product, side) => product * side, 1);
    if (!kind || last > buffer.byteLength - 8 - length || (last - first) !== size * kind.BYTES_PER_ELEMENT) throw cut();
    return { values: new kind(buffer.slice(8 + length + first, 8 + length + last)), shape: entry.shape };
  };
  return { header, view };
}
